"""A harness that finds nothing must be one that would have found something."""

from __future__ import annotations

import random

import pytest
from soak import run
from soak.blow import Tally
from soak.node import Node
from soak.planted import PLANTED
from soak.services import Kind
from soak.story import BrokenPromise
from soak.walk import Walk

pytestmark = [pytest.mark.needs("root", "cgroup2", "bpf"), pytest.mark.timeout(300)]

STEPS = {
    "commits_are_not_written": ("prepare", "release", "restart", "late"),
    "committed_is_not_carried_out": ("prepare", "restart"),
    "grants_outlive_the_release": ("prepare", "release", "check"),
    "a_binder_lets_its_predecessor_live": ("stale", "release", "release", "die"),
    "overlapping_instances_are_free": ("prepare",),
    "marks_are_left_out": ("prepare", "check"),
    "a_quarantine_is_looked_at_once": ("prepare", "keep", "die"),
    "a_listener_is_not_looked_for": ("prepare", "escape"),
    "a_kill_hits_whoever_is_there": ("requeue", "release"),
    "a_kill_is_forgotten": ("prepare", "kill"),
    "who_joins_stays_where_he_is": ("prepare", "join"),
    "reconcile_releases_nobody": ("prepare", "reconcile"),
    "a_lost_ledger_is_an_empty_one": ("prepare", "lose"),
    "a_restart_opens_for_a_moment": ("prepare", "restart"),
    "a_repair_detaches_first": ("prepare", "grow", "shrink"),
    "who_has_lost_his_cgroup_is_bound": ("prepare", "vanish"),
}

ONCE = ("was not given",)
OPEN = (*ONCE, "without a grant")
SAID = {
    "commits_are_not_written": ("should be", "nobody asked for it", "released attempt"),
    "committed_is_not_carried_out": ("is gone", "committed for ever"),
    "grants_outlive_the_release": OPEN,
    "a_binder_lets_its_predecessor_live": (*OPEN, "is left over"),
    "overlapping_instances_are_free": ("both hold",),
    "marks_are_left_out": ("its mark is None",),
    "a_quarantine_is_looked_at_once": ("quarantined for ever", "releasing for ever"),
    "a_listener_is_not_looked_for": ("still listens",),
    "a_kill_hits_whoever_is_there": ("its process ended", "should be Held"),
    "a_kill_is_forgotten": ("is not ended", "quarantined for ever"),
    "who_joins_stays_where_he_is": ("joined, and is not in",),
    "reconcile_releases_nobody": ("should be None", "nobody asked for it"),
    "a_lost_ledger_is_an_empty_one": ("should be Held",),
    "a_restart_opens_for_a_moment": ONCE,
    "a_repair_detaches_first": ONCE,
    "who_has_lost_his_cgroup_is_bound": ("is gone",),
}
"""What is said of it: which comes first is chance."""


def _take(walk, steps):
    for step in steps:
        walk.step(step)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name):
    chance = random.Random(name)  # noqa: S311  # the same steps each time
    with run.crew(plant=name) as crew:
        node = Node(crew, Tally(), Kind("cgroup2", "systemd", grace=1), patience=4.0)
        try:
            node.open()
            walk = Walk(node, chance)
            with pytest.raises(BrokenPromise) as broken:
                _take(walk, STEPS[name] * 100)
            said = str(broken.value).splitlines()[0]
            assert any(words in said for words in SAID[name]), said
        finally:
            node.close()
