"""Bindings that have lost their cgroup: closed, but for what somebody still has."""

from __future__ import annotations

import asyncio

import pytest
from binding.calls import prepare, release, restart

from xce_nodeagent.errors import Busy
from xce_nodeagent.model.wire import PortAsk, Prepare
from xce_nodeagent.privileged.ops import Seen

ASK = {"instances": ("GPU-1",), "ports": (PortAsk(count=1),)}


def loses_its_cgroup(node) -> None:
    del node.books.bound["/cg/home/job-1"]


def settled(node) -> None:
    """The outcome of the prepare is noted, as half a second later."""
    node.life.outcomes.settle()
    node.ledger.flush()


def test_one_that_nobody_has_anything_of_is_closed_and_may_be_asked_for_again(node):
    prepare(node, attempt="a", **ASK)
    settled(node)
    loses_its_cgroup(node)
    assert restart(node) == {"cgroup-vanished": 1}
    assert node.held() == {}
    assert prepare(node, attempt="a", **ASK).instances == ("GPU-1", "ports")


def test_a_port_of_it_that_is_listened_on_is_nobodys_until_it_is_free(node):
    prepare(node, attempt="a", **ASK)
    settled(node)
    node.cards.listening = {20000}
    loses_its_cgroup(node)
    assert restart(node) == {"cgroup-vanished": 1}
    (binding,) = node.ledger.book
    assert (binding.state, binding.instances) == ("quarantined", ("ports",))
    assert [left.pid for left in binding.left] == [77]
    assert prepare(node, job="2", instances=("GPU-1",)).instances == ("GPU-1",)
    with pytest.raises(Busy):
        prepare(node, attempt="a", **ASK)
    node.cards.listening = set()
    assert release(node).clean
    assert "ports" not in node.held()


def test_a_card_of_it_that_is_open_is_found_and_kept_back(node):
    async def story() -> None:
        await node.life.prepare(Prepare(job="1", attempt="a", instances=("GPU-1",)))
        node.seen = (Seen(77, 5, "left", "c 120:1", "open", node.uptime()),)
        settled(node)
        loses_its_cgroup(node)
        await node.life.verification.run()
        assert node.held() == {}
        await node.life.releases.vigil.look(10)
        await node.life.close()

    asyncio.run(story())
    (binding,) = node.ledger.book
    assert (binding.state, binding.instances) == ("quarantined", ("GPU-1",))
