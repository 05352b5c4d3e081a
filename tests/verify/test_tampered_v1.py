"""Another process of root writes a v1 job's device rules, as systemd does at a daemon-reload."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.needs("root", "cgroup1")


def write(path, name, *lines):
    for line in lines:
        with open(f"{path}/{name}", "w") as file:
            file.write(line)


def test_what_cannot_be_seen_is_written_again(stage1, caplog):
    trier = stage1.trying()
    for _ in range(20):
        assert stage1.look().result == "re-asserted"
    told = trier.tell()
    assert told["given"] > 20
    assert not told["refused"] + told["stolen"]
    assert stage1.verification.count.reasserted == 20
    assert not [record for record in caplog.records if record.levelname != "INFO"]


def test_everything_allowed_by_one_line_is_closed_again(stage1):
    trier = stage1.trying()
    write(stage1.path, "devices.allow", "a *:* rwm")
    assert trier.later()["stolen"]
    assert stage1.look().result == "re-asserted"
    trier.is_fenced()


def test_everything_denied_and_some_allowed_is_put_right(stage1):
    """What systemd writes for a unit with a device list: then the kernel shows what there is."""
    trier = stage1.trying()
    other = stage1.others[0]
    write(stage1.path, "devices.deny", "a")
    write(stage1.path, "devices.allow", "c 1:3 rwm", f"{other} rw")
    assert trier.later()["refused"]
    found = stage1.look()
    assert (found.result, found.text) == (
        "repaired",
        f"{other} rw is open to it without a grant",
    )
    trier.is_fenced()
    assert stage1.look().result == "whole"


def test_single_lines_are_put_right(stage1):
    trier = stage1.trying()
    write(stage1.path, "devices.allow", *(f"{device} rwm" for device in stage1.others))
    write(stage1.path, "devices.deny", f"{stage1.given} w")
    told = trier.later()
    assert told["stolen"]
    assert told["refused"]
    stage1.look()
    trier.is_fenced()


def test_lost_record_is_written_again_without_an_open_or_a_closed_moment(stage1):
    trier = stage1.trying()
    for _ in range(20):
        os.removexattr(stage1.path, "trusted.xce.grants")
        found = stage1.look()
        assert found.result == "repaired"
        assert "its grants are recorded as none" in found.text
        assert stage1.look().result == "re-asserted"
    told = trier.tell()
    assert not told["refused"] + told["stolen"]


def test_lost_and_changed_marks_are_put_back(stage1):
    trier = stage1.trying()
    os.removexattr(stage1.path, "trusted.xce.binding")
    assert stage1.look().text == "its mark is gone"
    os.setxattr(stage1.path, "trusted.xce.binding", b"x\ny")
    assert stage1.look().text == "its mark was changed"
    told = trier.tell()
    assert not told["refused"] + told["stolen"]


def test_cgroup_above_that_refuses_what_was_given_makes_it_unhealthy_with_the_reason(stage1):
    place = stage1.world.named("slice/job")
    binding = stage1.bind(place, job="2")
    trier = stage1.trying(place.path)
    above = f"{stage1.world.roots}/slice"
    write(above, "devices.deny", f"{stage1.given} rwm")
    assert trier.later()["refused"]
    stage1.look_all()
    assert "the cgroup above does not allow it" in stage1.verification.fault(binding)
    assert not trier.tell()["stolen"]
    write(above, "devices.allow", f"{stage1.given} rwm")
    stage1.look_all()
    assert stage1.verification.fault(binding) == ""
    trier.is_fenced()


def test_sub_cgroup_that_lacks_what_the_job_has_gets_it_by_a_deep_repair(stage1):
    step = f"{stage1.path}/step"
    os.mkdir(step)
    trier = stage1.trying(step)
    write(stage1.path, "devices.deny", f"{stage1.given} rwm")  # it reaches the step as well
    assert trier.later()["refused"]
    stage1.look()
    assert not trier.later()["given"]  # it may be the step's own narrowing: nobody can see
    stage1.look(deep=True)
    trier.is_fenced()


def test_sub_cgroup_gets_it_again_where_the_loss_can_be_seen(stage1):
    write(stage1.path, "devices.deny", "a")  # before there are any: the kernel refuses it then
    write(stage1.path, "devices.allow", f"{stage1.given} rw")
    stage1.look()
    step = f"{stage1.path}/step"
    os.mkdir(step)
    trier = stage1.trying(step)
    assert trier.later()["given"]
    write(stage1.path, "devices.deny", f"{stage1.given} rw")
    assert trier.later()["refused"]
    assert f"{stage1.given} rw is not allowed" in stage1.look().text
    trier.is_fenced()


def test_cgroup_made_again_under_its_name_is_fenced_with_the_processes_in_it(stage1):
    os.rmdir(stage1.path)
    os.mkdir(stage1.path)
    trier = stage1.trying()
    assert trier.later()["stolen"]
    found = stage1.look()
    assert found.result == "repaired"
    assert found.text.startswith("its mark is gone")
    trier.is_fenced()
