"""Random histories with crashes: no promise breaks, whatever dies. The long form: ./dev soak."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    rule,
    run_state_machine_as_test,
)
from soak import run
from soak.blow import Blow, Tally
from soak.node import Node
from soak.services import Kind
from soak.walk import Walk

pytestmark = [pytest.mark.needs("root", "cgroup2", "bpf"), pytest.mark.timeout(600)]

FIXED = 20_261_130
SECONDS = 15.0
STEADY = random.Random(0)  # noqa: S311  # where hypothesis has nothing to say


@pytest.mark.parametrize("kind", ["fixed", "random"])
def test_no_crash_breaks_a_promise(kind, told):
    seed = FIXED if kind == "fixed" else random.SystemRandom().randrange(1 << 32)
    told(f"soak: {kind} seed {seed} (again: ./dev soak --seed {seed})")
    tally = run.histories(seed, run.Limits(seconds=SECONDS))
    told(
        f"soak: {kind} seed {seed}: {tally.crashed} crashes in {tally.steps} steps,"
        f" {tally.checks} comparisons with the kernel, {tally.opens} opens tried by jobs"
    )
    assert tally.crashed > 10
    assert tally.opens > 1000


@pytest.mark.parametrize("role", ["supervisor", "agent"])
def test_who_was_killed_is_started_again_before_anything_is_asked(crew, role):
    node = Node(crew, Tally(), Kind("cgroup2", "systemd"))
    try:
        node.open()
        for _ in range(10):  # the answer is there before the signal is felt, or after it
            blow = Blow(role)
            node.strike(blow, [("ListBindings", {})])
            node.services.settle(blow)
            assert node.services.pids(role) != [blow.fell_on]
        assert node.tally.crashes[role, "outside"] > 0
    finally:
        node.close()


@pytest.mark.parametrize(
    ("backend", "shape"), [("cgroup2", "systemd"), ("cgroup2", "hand"), ("cgroup1", "systemd")]
)
def test_no_history_breaks_a_promise(backend, shape, crew, told):
    if backend not in crew.cgroups:
        pytest.skip("no cgroup v1 devices controller is mounted")
    tally = Tally()

    class History(RuleBasedStateMachine):
        """A node, and steps of the walk in an order that hypothesis can shorten."""

        def __init__(self) -> None:
            super().__init__()
            self.node = Node(crew, tally, Kind(backend, shape))
            self.node.open()
            self.walk = Walk(self.node, STEADY)

        def take(self, name: str, seed: int) -> None:
            # What is drawn from this depends on what crashes when, which hypothesis must not see.
            self.walk.dice.chance = random.Random(seed)  # noqa: S311  # told by hypothesis
            self.walk.step(name)

        @rule(seed=SEEDS)
        def prepare(self, seed):
            self.take("prepare", seed)

        @rule(seed=SEEDS)
        def crowd(self, seed):
            self.take("crowd", seed)

        @rule(
            seed=SEEDS,
            name=st.sampled_from(["again", "grow", "shrink", "release", "release", "restart"]),
        )
        def go_on(self, name, seed):
            self.take(name, seed)

        @rule(
            seed=SEEDS,
            name=st.sampled_from(
                [
                    "keep",
                    "die",
                    "escape",
                    "kill",
                    "requeue",
                    "join",
                    "reconcile",
                    "lose",
                    "vanish",
                ]
            ),
        )
        def end_otherwise(self, seed, name):
            self.take(name, seed)

        @rule(seed=SEEDS, name=st.sampled_from(["late", "drain", "quiet", "leave", "reboot"]))
        def happen(self, name, seed):
            self.take(name, seed)

        def teardown(self) -> None:
            try:
                self.walk.dice.chance = STEADY
                self.walk.finish()
            finally:
                self.node.close()

    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=12,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    told(f"soak: {backend}, {shape}: {tally.crashed} crashes in {tally.steps} steps")


SEEDS = st.integers(0, 999)
