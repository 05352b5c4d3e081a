"""What an agent does that finds, while it runs, cgroups that its ledger does not know."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from xce_nodeagent.binding import rebuild, record
from xce_nodeagent.errors import Busy
from xce_nodeagent.model import wire
from xce_nodeagent.model.plan import CgroupRef, SetEnv
from xce_nodeagent.model.rule import Device, Rule
from xce_nodeagent.privileged.ops import RECORD_LIMIT, Marked

CARD_2 = (Rule(Device("c", 120, 2), 6),)


class Kernel:
    """What a binder would list."""

    enforces = True

    def __init__(self, *marked: Marked) -> None:
        self.found = list(marked)

    async def marked(self, *, deep: bool) -> tuple[list[Marked], bool]:
        return self.found, True


def prepare(node, job, *instances):
    return asyncio.run(
        node.life.prepare(wire.Prepare(job=job, attempt="1", instances=tuple(instances)))
    )


def marked(job, value=b"", *, released=False, grants=CARD_2, populated=True):
    cgroup = CgroupRef("cgroup2", f"/cg/home/job-{job}")
    return Marked(cgroup, f"{job}\n1", value, released, grants, populated)


def sweep(node, kernel):
    async def run():
        await rebuild.sweep(node.life, kernel, 5.0)
        await node.life.close()

    asyncio.run(run())


def test_a_marked_cgroup_that_nobody_knows_is_adopted(node, make_node, tmp_path):
    (tmp_path / "other").mkdir()
    other = make_node(tmp_path / "other")
    prepare(other, "lost", "GPU-1")
    binding = other.ledger.book.live["lost", "1"]
    other.crash()
    prepare(node, "known", "GPU-0")
    sweep(node, Kernel(marked("lost", record.encode(binding)), marked("known")))
    assert node.held() == {"GPU-0": [("known", "1")], "GPU-1": [("lost", "1")]}
    with pytest.raises(Busy):
        prepare(node, "thief", "GPU-1")
    node.crash()
    node.open()
    assert node.held()["GPU-1"] == [("lost", "1")]


def test_in_doubt_what_is_granted_is_withheld_until_nobody_is_there(node):
    sweep(node, Kernel(marked("doubt", b"no record")))
    assert node.held() == {"GPU-2": [("doubt", "1")]}
    sweep(node, Kernel(marked("doubt", b"no record")))
    assert node.held() == {"GPU-2": [("doubt", "1")]}
    sweep(node, Kernel(marked("doubt", b"no record", populated=False)))
    assert node.held() == {}


def test_one_that_was_released_is_never_adopted_as_bound(node, make_node, tmp_path):
    (tmp_path / "other").mkdir()
    other = make_node(tmp_path / "other")
    prepare(other, "left", "GPU-1")
    value = record.encode(other.ledger.book.live["left", "1"])
    other.crash()
    sweep(node, Kernel(marked("left", value, released=True, grants=())))
    assert node.ledger.book.live["left", "1"].state == "releasing"


def test_a_record_that_is_too_long_goes_without_the_environment(node):
    prepare(node, "1", "GPU-0")
    binding = node.ledger.book.live["1", "1"]
    assert record.decode(record.encode(binding), "1\n1").plan == binding.plan
    long = SetEnv("V", "v" * RECORD_LIMIT)
    plan = structs.replace(binding.plan, steps=(*binding.plan.steps, long))
    short = record.encode(structs.replace(binding, plan=plan))
    assert len(short) <= RECORD_LIMIT
    found = record.decode(short, "1\n1")
    assert found.plan.grants == binding.plan.grants
    assert found.plan.environment == {}


@pytest.mark.parametrize("value", [b"", b"{}", b"\xff", b'{"job":"2"}', b"[" * 100_000])
def test_what_is_no_record_is_told_from_one(value):
    with pytest.raises(ValueError):  # noqa: PT011  # why is the library's word
        record.decode(value, "1\n1")


def test_a_record_of_another_binding_is_none(node):
    prepare(node, "1", "GPU-0")
    value = record.encode(node.ledger.book.live["1", "1"])
    with pytest.raises(ValueError, match="another binding"):
        record.decode(value, "2\n1")
