"""A record that had no room for its environment: after a loss nobody is answered without one."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from xce_nodeagent import errors
from xce_nodeagent.binding import rebuild, record
from xce_nodeagent.model import wire
from xce_nodeagent.model.binding import Adopted
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.privileged.ops import Marked

ASK = wire.Prepare(job="1", attempt="a", instances=("GPU-1",), ports=(wire.PortAsk(count=2),))


def lose(node, monkeypatch):
    """Bind, and have no more of it than a record that is too long tells."""
    before = asyncio.run(node.life.prepare(ASK))
    binding = node.ledger.book.live["1", "a"]
    room = len(record.encode(binding)) - 1
    with monkeypatch.context() as limited:
        limited.setattr(record, "RECORD_LIMIT", room)
        found = record.decode(record.encode(binding), binding.mark)
    assert not found.plan.environment
    node.ledger.note(Adopted(job="1", attempt="a", binding=found))
    return before


def test_the_environment_is_composed_anew_from_the_inventory(node, monkeypatch):
    before = lose(node, monkeypatch)
    again = asyncio.run(node.life.prepare(ASK))
    assert again == before
    assert again.env["XCE_GPU_UUIDS"] == "GPU-1,ports"


def without_the_card(instances):
    return tuple(one for one in instances if one.id != "GPU-1")


def with_another_node(instances):
    node = DeviceNode("/dev/card7", "c", 120, 7)
    return tuple(structs.replace(i, devices=(node,)) if i.id == "GPU-1" else i for i in instances)


@pytest.mark.parametrize("change", [without_the_card, with_another_node])
def test_where_it_cannot_be_composed_the_answer_is_unhealthy(node, monkeypatch, change):
    lose(node, monkeypatch)
    changed = structs.replace(
        node.inventory, instances=change(node.inventory.instances), generation="boot-1:77"
    )
    node.inventory = changed
    with pytest.raises(errors.Unhealthy, match="lost with the ledger"):
        asyncio.run(node.life.prepare(ASK))


def test_one_in_doubt_answers_nobody(node):
    cgroup = CgroupRef("cgroup2", "/cg/home/job-1")
    marked = Marked(cgroup, "1\na", b"", released=False, grants=(), populated=True)
    found = rebuild.doubtful(marked, CgroupRef("cgroup2", "/cg/home"), 5.0)
    node.ledger.note(Adopted(job="1", attempt="a", binding=found))
    node.books.bound[cgroup.path] = (found.mark, ())
    with pytest.raises(errors.AgentError) as told:
        asyncio.run(node.life.prepare(wire.Prepare(job="1", attempt="a")))
    assert told.value.code == "unhealthy"
