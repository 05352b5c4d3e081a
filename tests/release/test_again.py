"""What is still to be done about one run of a job meets no other run, and is not forgotten."""

import asyncio
import subprocess

import pytest
from msgspec import structs

from xce_nodeagent import errors
from xce_nodeagent.binding.recovery import recover
from xce_nodeagent.model import wire
from xce_nodeagent.privileged.ops import Seen

needs = pytest.mark.needs("root", "cgroup1", "cgroup2", "bpf")

SLOW = '[release]\nkill = "on-request"\nkill_grace_seconds = 12'
KILL = "term-then-kill"


@needs
def test_a_requeue_in_the_same_cgroup_is_not_ended_by_the_release_before(
    serving, process, eventually
):
    site = serving(SLOW)
    cgroup = site.prepare("1", 0, attempt=None)
    first = process(cgroup)
    first.does("ignore")
    assert site.call("Release", job="1", kill=KILL)["killing"] is True
    site.settled()
    first.end()
    # Between the two signals: the job comes again, with no attempt to tell it apart.
    assert eventually(lambda: site.prepare("1", 0, attempt=None)) == cgroup
    again = process(cgroup)
    with pytest.raises(subprocess.TimeoutExpired):
        again.ended(14)


def test_what_is_held_back_stays_so_while_its_card_is_not_in_the_inventory(node):
    """A process that hangs in the driver, and then the driver answers nobody: it is not clean."""

    async def story():
        prepare = node.life.prepare
        await prepare(wire.Prepare(job="1", attempt="a", instances=("GPU-1",)))
        node.seen = (Seen(77, 5, "left", "c 120:1", "open", node.uptime()),)
        await node.life.releases.release(wire.Release(job="1"))
        await node.life.releases.vigil.look(10)
        assert [b.state for b in node.ledger.book] == ["quarantined"]
        whole = node.inventory
        without = tuple(one for one in whole.instances if one.id != "GPU-1")
        node.crash()
        node.open()
        node.inventory = structs.replace(whole, instances=without)
        await recover(node.ledger, node.executor, node.life)
        again = await node.life.releases.release(wire.Release(job="1"))
        assert (again.clean, again.quarantined) == (False, ("GPU-1",))
        node.inventory = whole
        with pytest.raises(errors.Busy):
            await node.life.prepare(wire.Prepare(job="2", attempt="a", instances=("GPU-1",)))
        node.seen = ()
        assert (await node.life.releases.release(wire.Release(job="1"))).clean
        await node.life.prepare(wire.Prepare(job="2", attempt="a", instances=("GPU-1",)))
        await node.life.close()

    asyncio.run(story())


def test_a_release_that_is_only_in_memory_says_so_however_often_it_is_asked_for(node, monkeypatch):
    async def story():
        await node.life.prepare(wire.Prepare(job="1", attempt="a", instances=("GPU-1",)))
        node.books.processes["/cg/home/job-1"] = (9,)

        def full(*_, **__):
            raise errors.Enforcement("told to fail")

        with monkeypatch.context() as disk:
            disk.setattr(node.ledger._store, "append", full)
            release = node.life.releases.release
            told = [(await release(wire.Release(job="1"))).recorded for _ in range(3)]
            assert told == [False] * 3
        assert (await release(wire.Release(job="1"))).recorded
        await node.life.close()

    asyncio.run(story())


@pytest.mark.parametrize("step", [-86_400, 86_400])
@pytest.mark.parametrize("left", [True, False])
def test_a_clock_that_is_stepped_by_a_day_makes_nobody_a_left_over_and_hides_none(node, step, left):
    async def story():
        node.uptime.now = 500.0
        await node.life.prepare(wire.Prepare(job="1", attempt="a", instances=("GPU-1",)))
        started = node.uptime() if left else 100.0
        node.clock.now += step
        node.seen = (Seen(77, 5, "python", "c 120:1", "open", started),)
        await node.life.releases.release(wire.Release(job="1"))
        await node.life.releases.vigil.look(10)
        assert [b.state for b in node.ledger.book] == ["quarantined"] * left
        await node.life.close()

    asyncio.run(story())
