"""Another process of root changes the programs on a job's cgroup; a process of the job tries on."""

from __future__ import annotations

import logging
import os

import pytest

from xce_nodeagent.binding import record
from xce_nodeagent.privileged import bpf
from xce_nodeagent.privileged.fence2 import SharedFence

ALLOW_ALL = bpf.anchor()


def our_name(stage):
    return bpf.FENCE_NAME if stage.world.shared else bpf.INLINE_NAME


def test_whole_binding_is_left_alone(stage, hand):
    trier = stage.trying()
    before = hand.infos(stage.path)
    stage.asked.clear()
    assert stage.look().result == "whole"
    assert not [ask for ask in stage.asked if type(ask).__name__ == "Bind"]
    assert hand.infos(stage.path) == before
    told = trier.tell()
    assert not told["refused"] + told["stolen"]


def test_detached_program_is_attached_again_with_its_grants(stage, hand, caplog):
    trier = stage.trying()
    hand.detach(stage.path)
    assert trier.later()["stolen"]  # the fault itself opens the fence
    found = stage.look()
    assert (found.result, found.text) == ("repaired", "its device program is not attached")
    trier.is_fenced()
    assert stage.fault == ""
    assert "job 1: the fence is put back: its device program is not attached" in caplog.text
    assert stage.look().result == "whole"


def test_program_of_our_name_that_allows_everything_is_swapped(stage, hand):
    trier = stage.trying()
    (ours,) = hand.ids(stage.path)
    hand.attach(stage.path, ALLOW_ALL, our_name(stage), replaces=ours)
    assert trier.later()["stolen"]
    found = stage.look()
    assert (found.result, found.text) == ("repaired", "another device program of ours is attached")
    trier.is_fenced()
    assert len(hand.ids(stage.path)) == 1


@pytest.mark.needs("root", "cgroup2", "bpf")
def test_copy_with_maps_of_its_own_is_swapped(stage2, hand):
    trier = stage2.trying()
    (ours,) = hand.ids(stage2.path)
    copy = SharedFence.take(None, ())  # the same code, and nothing is managed in its maps
    code = bpf.fence(copy._managed, copy._grants, copy._slots)
    hand.attach(stage2.path, code, bpf.FENCE_NAME, replaces=ours)
    copy.close()
    assert trier.later()["stolen"]
    assert stage2.look().text == "another device program of ours is attached"
    trier.is_fenced()
    (now,) = hand.infos(stage2.path)
    assert now.tag == stage2.world.binder._fences.of(stage2.world.job())._info.tag


def test_swap_never_opens_the_fence_and_takes_nothing_away(stage, hand):
    """Older code on the same maps, or with the same rules, is in the right program's place."""
    trier = stage.trying()
    fence = stage.world.binder._fences.of(stage.world.job())
    for _ in range(50):
        (ours,) = hand.ids(stage.path)
        if stage.world.shared:
            older = bpf.fence(fence._managed, fence._grants, fence._slots - 1)
        else:
            rules = stage.binding.plan.grants
            more = {*fence._devices, bpf.Device("c", 1, 77)}
            older = bpf.inline_fence(more, rules)
        hand.attach(stage.path, older, our_name(stage), replaces=ours)
        assert stage.look().result == "repaired"
        assert len(hand.ids(stage.path)) == 1
    told = trier.tell()
    assert told["given"] > 50
    assert not told["refused"] + told["stolen"]


def test_duplicate_is_removed_without_an_open_moment(stage, hand):
    trier = stage.trying()
    for _ in range(20):
        hand.attach(stage.path, ALLOW_ALL, our_name(stage))
        assert "2 device programs of ours" in stage.look().text
        assert len(hand.ids(stage.path)) == 1
    told = trier.tell()
    assert not told["refused"] + told["stolen"]


def test_program_that_only_has_another_name_in_our_place(stage, hand):
    """Nothing of ours is there: ours is put beside it, and the verdict is the stricter one."""
    trier = stage.trying()
    (ours,) = hand.ids(stage.path)
    hand.attach(stage.path, ALLOW_ALL, "theirs", replaces=ours)
    assert stage.look().text == "its device program is not attached"
    trier.is_fenced()
    assert stage.fault == ""


def test_full_cgroup_is_unhealthy_with_its_reason_and_whole_by_itself_later(stage, hand, caplog):
    trier = stage.trying()
    hand.detach(stage.path)
    theirs = [hand.attach(stage.path, ALLOW_ALL, f"tool{n}") for n in range(64)]
    assert stage.look().result == "failed"
    assert "has 64 device programs, more than a kernel takes" in stage.fault
    for _ in range(3):
        stage.look()
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1  # once, and not at every round
    for one in theirs:
        hand.detach(stage.path, one)
    assert stage.look().result == "repaired"
    assert stage.fault == ""
    trier.is_fenced()


def test_full_cgroup_with_ours_among_them_is_healthy(stage, hand):
    trier = stage.trying()
    for number in range(63):
        hand.attach(stage.path, ALLOW_ALL, f"tool{number}")
    assert stage.look().result == "whole"
    assert stage.fault == ""
    trier.is_fenced()


def test_mark_that_was_removed_is_put_back_without_an_open_or_a_closed_moment(stage):
    trier = stage.trying()
    for _ in range(50):
        os.removexattr(stage.path, "trusted.xce.binding")
        found = stage.look()
        assert (found.result, found.text) == ("repaired", "its mark is gone")
        assert os.getxattr(stage.path, "trusted.xce.binding").startswith(b"1\n")
    told = trier.tell()
    assert told["given"] > 50
    assert not told["refused"] + told["stolen"]


def test_mark_that_no_binding_has_is_changed_back(stage):
    trier = stage.trying()
    os.setxattr(stage.path, "trusted.xce.binding", b"someone\nelse")
    assert stage.look().text == "its mark was changed"
    assert os.getxattr(stage.path, "trusted.xce.binding").startswith(b"1\n")
    assert stage.look().result == "whole"
    told = trier.tell()
    assert not told["refused"] + told["stolen"]


def test_cgroup_with_another_live_bindings_mark_is_not_taken_from_it(stage):
    stage.trying()
    first = stage.binding
    elsewhere = stage.world.named("other")
    stage.bind(elsewhere, job="2")
    os.setxattr(first.plan.cgroup.cgroup.path, "trusted.xce.binding", b"2\n")
    assert stage.look_all() == {"1": "cgroup-vanished", "2": "whole"}
    assert [binding.job for binding in stage.ledger.book] == ["2"]


def test_cgroup_made_again_under_its_name_is_fenced_with_the_processes_in_it(stage, hand):
    os.rmdir(stage.path)
    os.mkdir(stage.path)
    trier = stage.trying()
    assert trier.later()["stolen"]
    found = stage.look()
    assert (found.result, found.text) == (
        "repaired",
        "its mark is gone, and its device program is not attached",
    )
    trier.is_fenced()
    assert len(hand.ids(stage.path)) == 1


def test_cgroup_that_is_gone_closes_the_binding(stage):
    os.rmdir(stage.path)
    assert stage.look().result == "cgroup-vanished"
    assert list(stage.ledger.book) == []


@pytest.mark.parametrize("kind", ["cgroup2", "per-job"])
@pytest.mark.needs("root", "cgroup2", "bpf")
def test_thousand_updates_leave_one_program_one_anchor_and_no_descriptor(make_stage, hand, kind):
    stage = make_stage(kind)
    stage.bind()
    world = stage.world
    trier = stage.trying()
    rules = [bpf.Rule(device, 6) for device in sorted(stage.nodes)]
    home_before = hand.infos(world.home.path)
    maps = [info.map_ids for info in hand.infos(stage.path)]
    before = set(os.listdir("/proc/self/fd"))
    same = {"mark": stage.binding.mark, "record": record.encode(stage.binding)}
    for number in range(250):
        world.bind(world.job(), rules[0], rules[3 + number % 3], **same)  # grow
        world.bind(world.job(), rules[0], **same)  # shrink
        if number % 5 == 0:
            hand.detach(stage.path)
        assert stage.look().result == ("repaired" if number % 5 == 0 else "whole")
        world.bind(world.job(), rules[0], **same)
    assert set(os.listdir("/proc/self/fd")) == before
    assert len(hand.ids(stage.path)) == 1
    assert hand.infos(world.home.path) == home_before
    assert len(home_before) == (1 if world.shared else 0)
    assert [info.map_ids for info in hand.infos(stage.path)] == maps
    trier.is_fenced()
