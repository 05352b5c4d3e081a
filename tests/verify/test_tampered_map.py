"""Another process of root writes to the maps that all jobs share, or takes their anchor away."""

from __future__ import annotations

import asyncio
import os
import struct

import pytest

from xce_nodeagent.model.rule import Device, Rule
from xce_nodeagent.privileged import bpf, bpfcall

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


@pytest.fixture
def maps(stage2, hand):
    """The managed devices and the grants, opened as another process would."""
    (ours,) = hand.infos(stage2.path)
    opened = {}
    for number in ours.map_ids:
        fd = bpfcall.map_open(number)
        opened[bpfcall.map_info(fd).name] = fd
    yield opened[bpf.MANAGED_NAME], opened[bpf.GRANTS_NAME]
    for fd in opened.values():
        os.close(fd)


def entries(fd):
    return {bpf.decode_device(key) for key in bpfcall.map_keys(fd, bpf.KEY_SIZE)}


def test_devices_that_were_struck_off_are_managed_again(stage2, maps, caplog):
    trier = stage2.trying()
    managed, _ = maps
    for device in stage2.nodes:
        bpfcall.map_delete(managed, bpf.encode_device(device))
    assert trier.later()["stolen"]
    stage2.look()
    assert entries(managed) == set(stage2.nodes)
    trier.is_fenced()
    assert "the kernel's map of managed devices was changed" in caplog.text
    assert stage2.verification.home_fault == ""
    assert stage2.verification.count.repaired == 1


def test_device_that_was_added_is_no_longer_managed(stage2, maps):
    trier = stage2.trying()
    managed, _ = maps
    bpfcall.map_update(managed, bpf.encode_device(Device("c", 1, 3)), struct.pack("=I", 1))
    bpfcall.map_update(managed, struct.pack("=Q", 0xFFFF << 40), struct.pack("=I", 1))
    stage2.look()
    assert entries(managed) == set(stage2.nodes)
    told = trier.tell()
    assert not told["refused"] + told["stolen"]


def test_grants_that_were_widened_are_narrowed(stage2, maps):
    trier = stage2.trying()
    _, grants = maps
    wide = tuple(Rule(device, 7) for device in sorted(stage2.nodes))
    key = struct.pack("=Q", os.stat(stage2.path).st_ino)
    bpfcall.map_update(grants, key, bpf.encode_grants(wide))
    assert trier.later()["stolen"]
    found = stage2.look()
    assert found.result == "repaired"
    assert f"should be {stage2.given} rw" in found.text
    trier.is_fenced()


def test_grants_that_were_taken_are_given_back_without_an_open_moment(stage2, maps):
    trier = stage2.trying()
    _, grants = maps
    key = struct.pack("=Q", os.stat(stage2.path).st_ino)
    for value in (bpf.encode_grants(()), b"\xff" * bpf.grants_size(bpf.SLOTS)):
        bpfcall.map_update(grants, key, value)
        assert trier.later()["refused"]
        assert stage2.look().result == "repaired"
        trier.is_fenced()


def test_grants_of_one_job_say_nothing_of_another(stage2, maps):
    stage2.trying()
    _, grants = maps
    other = stage2.world.named("other")
    first = stage2.path
    stage2.bind(other, job="2")
    second = stage2.trying()
    key = struct.pack("=Q", os.stat(first).st_ino)
    bpfcall.map_update(grants, key, bpf.encode_grants(()))
    assert stage2.look_all() == {"1": "repaired", "2": "whole"}
    told = second.tell()
    assert not told["refused"] + told["stolen"]


def test_verification_of_many_gives_way_after_each_of_them(stage2):
    """Who prepares meanwhile waits for one binding, and not for all."""
    for number in range(40):
        stage2.bind(stage2.world.named(f"many-{number}"), job=f"many-{number}")

    async def meanwhile():
        turns = 0
        looking = asyncio.create_task(stage2.verification.run())
        while not looking.done():
            await asyncio.sleep(0)
            turns += 1
        return turns, len(await looking)

    turns, looked_at = asyncio.run(meanwhile())
    assert looked_at == 41
    assert turns >= looked_at


def test_anchor_that_was_detached_is_put_back_on_the_same_maps(stage2, hand, caplog):
    trier = stage2.trying()
    (before,) = hand.infos(stage2.world.home.path)
    hand.detach(stage2.world.home.path)
    stage2.look()
    (after,) = hand.infos(stage2.world.home.path)
    assert set(after.map_ids) == set(before.map_ids)
    assert "the anchor at the jobs' home is not attached" in caplog.text
    told = trier.tell()
    assert not told["refused"] + told["stolen"]


def test_anchor_that_refuses_everything_is_taken_away(stage2, hand):
    trier = stage2.trying()
    deny = bpf.assemble((bpf._set(bpf.R0, 0), bpf._EXIT))
    (ours,) = hand.ids(stage2.world.home.path)
    hand.attach(stage2.world.home.path, deny, bpf.ANCHOR_NAME, replaces=ours)
    assert trier.later()["refused"]
    stage2.look()
    trier.is_fenced()
    assert len(hand.ids(stage2.world.home.path)) == 1
    assert stage2.look().result == "whole"


def test_everything_of_ours_detached_at_once_is_put_back(stage2, hand):
    trier = stage2.trying()
    hand.detach(stage2.path)
    hand.detach(stage2.world.home.path)
    stage2.look()
    trier.is_fenced()
    assert len(hand.ids(stage2.world.home.path)) == 1


def test_home_that_was_removed_is_told(stage2, hand):
    stage2.bind(stage2.world.named("slurm"), job="2")
    os.rmdir(stage2.world.job().path)
    os.rmdir(stage2.world.home.path)
    stage2.look_all()
    assert "was removed" in stage2.verification.home_fault
    os.mkdir(stage2.world.home.path)
    stage2.look_all()
    assert stage2.verification.home_fault == ""
    assert len(hand.ids(stage2.world.home.path)) == 1
