"""A release meets the run of the job that was meant, and says what is not taken away yet."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from xce_nodeagent import errors
from xce_nodeagent.binding import answer
from xce_nodeagent.binding.reconcile import reconcile
from xce_nodeagent.model import wire
from xce_nodeagent.model.binding import Adopted
from xce_nodeagent.model.config import ReleaseConfig


def prepare(node, job="1", **asked):
    return asyncio.run(node.life.prepare(wire.Prepare(job=job, **asked)))


async def released(node, job="1", **asked):
    return await node.life.releases.release(wire.Release(job=job, **asked))


def test_a_shrink_that_the_binder_has_not_carried_out_is_not_clean(node):
    """The job's grant is open still: a worker that hears `clean` would tell a scheduler so."""
    prepare(node, instances=("GPU-1", "GPU-2"), attempt="a")

    async def shrink():
        node.books.fail = ["not_ready"]
        first = await released(node, instances=("GPU-1",))
        granted = [rule.device.minor for rule in node.books.bound["/cg/home/job-1"][1]]
        node.books.fail = ["not_ready"]
        second = await released(node, instances=("GPU-1",))
        third = await released(node, instances=("GPU-1",))
        await node.life.close()
        return first, granted, second, third

    first, granted, second, third = asyncio.run(shrink())
    assert granted == [1, 2]
    for told in (first, second):
        assert (told.released, told.clean, told.quarantined) == (True, False, ("GPU-1",))
    # To ask again carries it out, and says so.
    assert (third.clean, third.quarantined) == (True, ())
    assert [rule.device.minor for rule in node.books.bound["/cg/home/job-1"][1]] == [2]


def test_what_a_shrink_owes_is_nobodys_until_it_is_done(node):
    prepare(node, instances=("GPU-1", "GPU-2"), attempt="a")

    async def other():
        node.books.fail = ["not_ready"]
        await released(node, instances=("GPU-1",))
        with pytest.raises(errors.Busy):
            await node.life.prepare(wire.Prepare(job="2", instances=("GPU-1",)))
        await node.life.close()

    asyncio.run(other())


@pytest.mark.parametrize("attempt", ["", "a"])
def test_a_reconcile_lets_a_younger_run_of_the_same_name_be(node, attempt):
    """A release and a prepare of that name wait for the turn before the reconcile does."""
    node.life.site = node.life.site.__class__(
        policy="required", home=node.life.site.home, attempt_memory_seconds=0
    )
    prepare(node, instances=("GPU-1",), attempt=attempt)

    async def race():
        async with node.life.turns.of(("1", attempt)):
            first = asyncio.ensure_future(released(node, attempt=attempt))
            await asyncio.sleep(0)
            again = wire.Prepare(job="1", attempt=attempt, instances=("GPU-2",))
            second = asyncio.ensure_future(node.life.prepare(again))
            await asyncio.sleep(0)
            third = asyncio.ensure_future(
                reconcile(node.life, wire.Reconcile(jobs=()), node.clock())
            )
            await asyncio.sleep(0)
        return await asyncio.gather(first, second, third)

    first, second, third = asyncio.run(race())
    assert first.known
    assert second.instances == ("GPU-2",)
    assert node.held() == {"GPU-2": [("1", attempt)]}
    assert third.released == ()


def test_the_cleaning_of_a_run_lets_a_younger_one_be(node):
    prepare(node, instances=("GPU-1",))
    node.books.processes["/cg/home/job-1"] = (7,)

    async def race():
        await released(node)
        node.books.processes.clear()
        async with node.life.turns.of(("1", "")):
            first = asyncio.ensure_future(released(node))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(node.life.prepare(wire.Prepare(job="1")))
            await asyncio.sleep(0)
            third = asyncio.ensure_future(node.life.releases._clean(("1", "")))
            await asyncio.sleep(0)
        await asyncio.gather(first, second, third)
        await node.life.close()

    asyncio.run(race())
    assert list(node.life.book.live) == [("1", "")]


def test_a_kill_that_is_not_allowed_releases_kills_nobody_and_says_why(node):
    prepare(node, instances=("GPU-1",), attempt="a")
    told = asyncio.run(released(node, kill="term-then-kill"))
    assert (told.released, told.clean, told.killing) == (True, True, False)
    assert "[release] kill" in told.not_killed
    assert node.held() == {}


def test_a_kill_that_was_not_allowed_is_not_made_up_for_when_it_is(node):
    prepare(node, attempt="a")
    node.books.processes["/cg/home/job-1"] = (7,)

    async def ask():
        told = await released(node, kill="term-then-kill")
        await node.life.close()
        return told

    assert asyncio.run(ask()).not_killed
    assert node.life.book.live["1", "a"].kill == "none"
    node.release = ReleaseConfig(kill="on-request")
    node.crash()
    node.open()
    assert node.life.book.live["1", "a"].kill == "none"


def test_a_port_that_is_held_says_by_whom_and_whether_it_is_being_cleaned(node):
    prepare(node, job="1", attempt="a", ports=(wire.PortAsk(port=20000),))
    with pytest.raises(errors.Busy, match="port 20000 is held by job '1' attempt 'a'") as caught:
        prepare(node, job="2", ports=(wire.PortAsk(port=20000),))
    assert caught.value.details["holders"] == [{"job": "1", "attempt": "a"}]
    node.books.processes["/cg/home/job-1"] = (7,)

    async def release():
        told = await released(node)
        await node.life.close()
        return told

    told = asyncio.run(release())
    assert (told.quarantined, told.ports) == (("ports",), (20000,))
    with pytest.raises(errors.Busy, match="not clean yet: quarantined"):
        prepare(node, job="2", ports=(wire.PortAsk(port=20000),))


def test_messages_name_a_run_without_an_attempt_as_one(node):
    prepare(node, job="1", attempt="")
    with pytest.raises(errors.Conflict, match=r"^job '1' \(no attempt\) is still bound"):
        prepare(node, job="1", attempt="b")
    with pytest.raises(errors.Conflict, match=r"^job '9' \(no attempt\) holds nothing"):
        prepare(node, job="9", add=True)


def test_a_released_attempt_is_told_to_come_with_a_new_one(node):
    prepare(node, attempt="a")
    asyncio.run(released(node, attempt="a"))
    with pytest.raises(errors.Stale, match=r"asking again does not help.* new attempt"):
        prepare(node, attempt="a")


def test_a_binding_was_not_seen_before_it_was_made(node):
    prepare(node, attempt="a")
    binding = node.life.book.live["1", "a"]
    seen = node.life.last_seen["1", "a"]
    assert seen < binding.since
    shown = answer.view(binding, last_seen=seen, populated=None, env=False)
    assert shown.last_seen >= shown.since


def test_a_quarantine_that_came_back_does_not_wait_for_the_job_that_has_its_port_now(node):
    """The ledger lost that it was clean; the kernel knows who was given the port since."""
    prepare(node, attempt="a", ports=(wire.PortAsk(count=1),))
    first = node.ledger.book.live["1", "a"]
    node.cards.listening = {first.plan.ports[0].port}
    assert not asyncio.run(released(node, attempt="a")).clean
    later = structs.replace(first, job="3", state="bound")
    node.ledger.note(Adopted(job="3", attempt="a", binding=later))
    assert asyncio.run(released(node, attempt="a")).clean
    assert ("1", "a") not in node.ledger.book.live
    # The later job's own release is judged by its ports as ever.
    assert asyncio.run(released(node, "3", attempt="a")).quarantined == ("ports",)


def test_of_two_quarantines_of_one_port_the_earlier_ends(node):
    """As above, and the later job is in quarantine itself: whoever listens is its process."""
    prepare(node, attempt="a", ports=(wire.PortAsk(count=1),))
    first = node.ledger.book.live["1", "a"]
    node.cards.listening = {first.plan.ports[0].port}
    assert not asyncio.run(released(node, attempt="a")).clean
    later = structs.replace(first, job="3", state="bound", since=first.since + 1, up=first.up + 1)
    node.ledger.note(Adopted(job="3", attempt="a", binding=later))
    assert not asyncio.run(released(node, "3", attempt="a")).clean
    assert asyncio.run(released(node, attempt="a")).clean
    assert not asyncio.run(released(node, "3", attempt="a")).clean
    node.cards.listening = set()
    assert asyncio.run(released(node, "3", attempt="a")).clean
    assert not node.ledger.book.live
