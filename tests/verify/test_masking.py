"""Programs of others that judge a job's devices beside ours: named, judged by when they came."""

from __future__ import annotations

import os

import pytest

from xce_nodeagent.privileged import bpf
from xce_nodeagent.privileged.ops import Manage

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")

DENY_ALL = bpf.assemble((bpf._set(bpf.R0, 0), bpf._EXIT))


def refusing(number):
    """A program that lets everything by but one major, as a unit's device list may."""
    return bpf.assemble(
        (
            bpf._load32(bpf.R2, bpf.R1, 4),
            bpf._set(bpf.R0, 0),
            bpf.Insn(0x15, bpf.R2, off="exit", imm=number),
            bpf._set(bpf.R0, 1),
            "exit",
            bpf._EXIT,
        )
    )


def test_program_that_comes_beside_ours_makes_the_binding_unhealthy_until_it_goes(
    stage, hand, caplog
):
    trier = stage.trying()
    theirs = hand.attach(stage.path, refusing(stage.given.major), "sd_devices")
    assert trier.later()["refused"]
    assert stage.look().result == "masked"
    assert f"program sd_devices (id {theirs}) on {stage.path}" in stage.fault
    stage.look()
    assert caplog.text.count("masked by") == 1
    hand.detach(stage.path, theirs)
    assert stage.look().result == "whole"
    assert stage.fault == ""
    trier.is_fenced()


def test_program_that_comes_above_is_named_with_its_cgroup(stage, hand):
    trier = stage.trying()
    above = str(stage.world.base)
    theirs = hand.attach(above, refusing(stage.given.major), "slice")
    assert trier.later()["refused"]
    stage.look()
    assert f"program slice (id {theirs}) on {above}" in stage.fault
    hand.detach(above, theirs)
    assert stage.look().result == "whole"


def test_program_that_was_there_before_is_a_note(stage, hand):
    place = stage.world.named("container/job")
    above = str(stage.world.roots / "container")
    hand.attach(above, refusing(9), "runtime")
    binding = stage.bind(place, job="2")
    stage.look_all()
    assert stage.verification.fault(binding) == ""
    assert f"masked by program runtime (id {hand.ids(above)[0]})" in stage.verification.note(
        binding
    )


def test_same_rules_attached_anew_are_the_same(stage, hand):
    """Systemd loads its program again at every reload; another list of devices is news."""
    place = stage.world.named("container/job")
    above = str(stage.world.roots / "container")
    first = hand.attach(above, refusing(9), "sd_devices")
    binding = stage.bind(place, job="2")
    second = hand.attach(above, refusing(9), "sd_devices", replaces=first)
    assert first != second
    stage.look_all()
    assert stage.verification.fault(binding) == ""
    assert f"id {second}" in stage.verification.note(binding)
    hand.attach(above, refusing(stage.given.major), "sd_devices", replaces=second)
    stage.look_all()
    assert "came after the job was bound" in stage.verification.fault(binding)


def test_what_was_there_before_is_known_after_a_restart(stage, hand):
    place = stage.world.named("container/job")
    above = str(stage.world.roots / "container")
    hand.attach(above, refusing(9), "runtime")
    binding = stage.bind(place, job="2")
    stage.world.restart(place, stage.world.job())
    stage.world.ask(Manage(tuple(sorted(stage.nodes))))
    stage.look_all()
    assert stage.verification.fault(binding) == ""
    assert stage.verification.note(binding)


def test_program_that_allows_everything_masks_nothing(stage, hand):
    hand.attach(stage.path, bpf.anchor(), "harmless")
    assert stage.look().result == "whole"


def test_job_without_devices_cannot_be_masked(stage, hand):
    hand.attach(str(stage.world.base), refusing(stage.given.major), "slice")
    assert stage.look().result == "masked"
    stage.world.bind(stage.world.job("empty"), mark="empty")
    verified = stage.world.verify(stage.world.job("empty"), mark="empty")
    assert verified.state == "ok"
    assert not verified.masks[0].new  # it was there when this one was bound


def test_lonely_program_above_that_came_later_has_no_effect_on_ours(stage, hand):
    """The kernel runs it only for cgroups that have no program (BPF_PROG_ATTACH without flags)."""
    place = stage.world.named("slice/job")
    binding = stage.bind(place, job="2")
    trier = stage.trying(place.path)
    above = str(stage.world.roots / "slice")
    hand.attach(above, DENY_ALL, "lonely", alone=True)
    stage.look_all()
    assert stage.verification.fault(binding) == ""
    trier.is_fenced()


def test_lonely_program_above_keeps_ours_from_being_put_back(stage, hand):
    place = stage.world.named("slice/job")
    binding = stage.bind(place, job="2")
    trier = stage.trying(place.path)
    above = str(stage.world.roots / "slice")
    lonely = hand.attach(above, DENY_ALL, "lonely", alone=True)
    hand.detach(place.path)
    stage.look_all()
    assert f"{above} has a device program (lonely, id {lonely})" in stage.verification.fault(
        binding
    )
    assert not trier.later()["stolen"]  # theirs refuses everything now
    hand.detach(above, lonely)
    stage.look_all()
    assert stage.verification.fault(binding) == ""
    trier.is_fenced()


def test_program_of_our_name_above_is_no_fence_of_ours(stage, hand):
    above = str(stage.world.base)
    theirs = hand.attach(above, refusing(stage.given.major), bpf.FENCE_NAME)
    assert stage.look().result == "masked"
    hand.detach(above, theirs)


def test_record_of_others_goes_with_the_binding(stage, hand):
    place = stage.world.named("container/job")
    hand.attach(str(stage.world.roots / "container"), refusing(9), "runtime")
    stage.world.bind(place, mark="two")
    assert "trusted.xce.others" in os.listxattr(place.path)
    stage.world.unbind(place, remove=False, mark="two")
    assert not [name for name in os.listxattr(place.path) if name.startswith("trusted.xce")]
