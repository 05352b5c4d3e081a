"""What is looked at while the binder works: nodes, and who uses ports without holding them."""

from __future__ import annotations

import asyncio

import pytest
from binding.node import Node

from xce_nodeagent.errors import Enforcement, NotReady, Unhealthy
from xce_nodeagent.model.wire import PortAsk, Prepare, Release
from xce_nodeagent.privileged.ops import Bind, Unbind


def prepare(node: Node, job: str, **ask: object):
    return asyncio.run(node.life.prepare(Prepare(job=job, attempt="1", **ask)))


def ports(answer) -> list[int]:
    return [one.port for one in answer.ports]


def binds(node: Node) -> int:
    return sum(isinstance(one, Bind) for one in node.books.asked)


def test_a_stranger_that_nobody_knew_costs_the_job_that_port_and_no_more(node):
    assert ports(prepare(node, "a", ports=(PortAsk(count=1),))) == [20000]
    node.cards.listening = {20001, 20002}
    assert ports(prepare(node, "b", ports=(PortAsk(count=2),))) == [20003, 20004]
    # Taken back, and planned again with what was seen.
    assert binds(node) == 3
    assert sum(isinstance(one, Unbind) for one in node.books.asked) == 1
    assert node.held()["ports"] == [("a", "1"), ("b", "1")]


def test_where_there_was_a_stranger_it_is_looked_before_it_is_planned(node):
    node.cards.listening = {20000}
    assert ports(prepare(node, "a", ports=(PortAsk(count=1),))) == [20001]
    assert ports(prepare(node, "b", ports=(PortAsk(count=1),))) == [20002]
    assert binds(node) == 2
    node.cards.listening = set()
    assert ports(prepare(node, "c", ports=(PortAsk(count=1),))) == [20000]
    assert binds(node) == 3


def test_a_job_that_listens_on_its_own_ports_is_no_stranger(node):
    prepare(node, "a", ports=(PortAsk(count=2),))
    node.cards.listening = {20000, 20001}
    for number, job in enumerate("bcd"):
        assert ports(prepare(node, job, ports=(PortAsk(count=1),))) == [20002 + number]
    assert binds(node) == 4


def test_a_growth_is_judged_by_its_new_ports_alone(node):
    prepare(node, "a", instances=("GPU-1",), ports=(PortAsk(count=1),))
    node.cards.listening = {20000, 20001}
    grown = prepare(node, "a", add=True, ports=(PortAsk(count=1, name="more"),))
    assert ports(grown) == [20000, 20002]
    assert node.held()["GPU-1"] == [("a", "1")]


def test_what_is_found_leaves_nothing_and_the_next_try_is_free(node):
    node.without_node = {"GPU-2"}
    with pytest.raises(Unhealthy, match="no node"):
        prepare(node, "a", instances=("GPU-2",))
    assert node.held() == {}
    assert node.books.bound == {}
    node.crash()
    node.open()
    assert node.held() == {}
    node.without_node = set()
    assert prepare(node, "a", instances=("GPU-2",)).instances == ("GPU-2",)


def test_what_was_only_counted_is_chosen_without_the_sick_one(node):
    node.without_node = {"GPU-0", "GPU-1"}
    assert prepare(node, "a", request="1").instances == ("GPU-2",)
    assert list(node.held()) == ["GPU-2"]


def test_ports_that_cannot_be_seen_are_not_given(node):
    prepare(node, "a", ports=(PortAsk(count=1),))

    def blind(_):
        raise NotReady("cannot be seen")

    node.in_use = blind
    with pytest.raises(NotReady):
        prepare(node, "b", ports=(PortAsk(count=1),))
    assert node.held()["ports"] == [("a", "1")]


def test_what_is_found_and_cannot_be_taken_back_stays_to_be_released(node):
    node.without_node = {"GPU-3"}
    node.books.fail = ["", "enforcement"]
    with pytest.raises(Unhealthy):
        prepare(node, "a", instances=("GPU-3",))
    (binding,) = node.ledger.book
    assert binding.state == "releasing"


def test_a_release_is_intended_also_where_the_binder_fails_over_it(node):
    prepare(node, "a", instances=("GPU-1",))
    node.books.fail = ["enforcement"]

    async def release() -> None:
        await node.life.releases.release(Release(job="a", attempt="1"))

    with pytest.raises(Enforcement):
        asyncio.run(release())
    node.crash()
    node.open()
    (binding,) = node.ledger.book
    assert binding.state == "releasing"
