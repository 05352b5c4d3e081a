"""What is looked at while the binder works: nodes, and who uses ports without holding them."""

from __future__ import annotations

import asyncio

import pytest
from binding.calls import release, restart
from binding.node import Node

from xce_nodeagent.errors import Enforcement, NotReady, Unhealthy
from xce_nodeagent.model.config import ReleaseConfig
from xce_nodeagent.model.wire import PortAsk, Prepare, Release
from xce_nodeagent.privileged.ops import Bind, Seen, Unbind


def prepare(node: Node, job: str, attempt: str = "1", **ask: object):
    return asyncio.run(node.life.prepare(Prepare(job=job, attempt=attempt, **ask)))


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


def dies_while_the_binder_works(node: Node, **ask: object) -> None:
    """An agent that has committed, and not looked, when it dies."""
    answered = node.books.call

    async def call(request, fds=(), *, meanwhile=None):
        raise asyncio.CancelledError

    node.books.call = call
    with pytest.raises(asyncio.CancelledError):
        prepare(node, "a", **ask)
    node.books.call = answered


def test_what_a_crash_left_unlooked_at_is_looked_at_when_it_is_asked_for_again(node):
    node.cards.listening = {20000}
    prepare(node, "z", ports=(PortAsk(count=1),))
    release(node, "z")
    node.cards.listening = set()
    prepare(node, "z", attempt="2", ports=(PortAsk(count=1),))
    release(node, "z")
    ask = {"request": "1", "ports": (PortAsk(count=1),)}
    dies_while_the_binder_works(node, **ask)
    node.cards.listening, node.without_node = {20000}, {"GPU-0"}
    assert restart(node) == {"finished": 1}
    answer = prepare(node, "a", **ask)
    assert (answer.instances, ports(answer)) == (("GPU-1", "ports"), [20001])


def test_a_job_that_runs_keeps_what_it_listens_on_over_a_crash_before_its_outcome(node):
    ask = {"instances": ("GPU-1",), "ports": (PortAsk(count=1),)}
    answer = prepare(node, "a", **ask)
    node.books.processes["/cg/home/job-a"] = (7,)
    node.cards.listening = {20000}
    assert restart(node) == {"finished": 1}
    assert prepare(node, "a", **ask) == answer


def test_a_growth_that_is_taken_back_is_looked_for_like_a_shrink(node):
    async def grow() -> None:
        await node.life.prepare(Prepare(job="a", attempt="1", instances=("GPU-1",)))
        node.without_node = {"GPU-2"}
        began = node.uptime()
        add = Prepare(job="a", attempt="1", instances=("GPU-2",), add=True)
        with pytest.raises(Unhealthy):
            await node.life.prepare(add)
        node.seen = (Seen(pid=77, uid=5, comm="train", what="c 120:2", how="open", started=began),)
        await node.life.releases.vigil.look(5.0)
        await node.life.close()

    asyncio.run(grow())
    assert [job for job, _ in node.held()["GPU-2"]] == ["a"]


def test_recovery_takes_nothing_back_because_a_binder_fails(node):
    prepare(node, "a", instances=("GPU-1",))
    prepare(node, "a", instances=("GPU-2",), add=True)
    node.books.fail = ["enforcement"]
    assert restart(node) == {"failed": 1}
    assert node.held() == {"GPU-1": [("a", "1")], "GPU-2": [("a", "1")]}
    assert prepare(node, "a", instances=("GPU-2",), add=True).instances == ("GPU-1", "GPU-2")


def test_best_effort_keeps_a_binding_whose_cgroup_could_not_be_made(node):
    node.policy = "best-effort"
    node.crash()
    node.open()
    node.books.fail = ["enforcement"]
    answer = prepare(node, "a", instances=("GPU-1",))
    restart(node)
    assert node.held() == {"GPU-1": [("a", "1")]}
    assert prepare(node, "a", instances=("GPU-1",)) == answer


def test_who_is_to_be_ended_is_on_the_disk_before_anything_is_undone(node):
    node.release = ReleaseConfig(kill="on-request")
    node.crash()
    node.open()
    prepare(node, "a", instances=("GPU-1",))

    async def call(request, fds=(), *, meanwhile=None):
        raise asyncio.CancelledError

    node.books.call = call
    with pytest.raises(asyncio.CancelledError):
        release(node, "a", kill="term-then-kill")
    (binding,) = node.ledger.book
    assert (binding.state, binding.kill) == ("releasing", "term-then-kill")
