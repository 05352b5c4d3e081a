"""Probers that hang, hold everything up, or cannot live, and the agent that needs one."""

import asyncio
import os
import re
import time

import pytest

from xce_nodeagent.binding.helper import Helper
from xce_nodeagent.binding.supply import Supply, inherited
from xce_nodeagent.errors import Conflict, NotReady
from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.privileged import ops

NOTHING = ops.Verify("meanwhile", CgroupRef("cgroup2", "/nowhere"), ())


def opened(gate):
    """Open a FIFO for writing; None while nobody reads it."""
    try:
        return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # ENXIO
        return None


def test_a_prober_that_hangs_ends_itself_and_the_next_one_works(stage, helpers):
    one = stage()
    gate = one.folder / "gate"

    async def main():
        async with helpers(one) as (binder, prober, _):
            first = prober.pid
            start = time.monotonic()
            hanging = asyncio.create_task(prober.call(ops.Probe("nvidia", ("hang",))))
            # A prepare does not wait for it.
            assert (await binder.call(NOTHING)).fault == "meanwhile"
            hung = await hanging
            assert (hung.state, hung.facts) == ("error", {"hung": "0000:02:00.0"})
            assert "did not answer at 0000:02:00.0" in hung.reason
            assert 0.4 < time.monotonic() - start < 4  # its own patience, 0.5 s, not our deadline
            # One that is slow is no such one.
            os.mkfifo(gate)
            slow = asyncio.create_task(prober.call(ops.Probe("nvidia", (str(gate),))))
            fd = await asyncio.to_thread(one.until, lambda: opened(gate), "it waits at the gate")
            assert not slow.done()
            os.close(fd)
            assert (await slow).state == "found"
            assert prober.pid != first
            with pytest.raises(Conflict, match="in use"):
                await prober.call(ops.Probe("nvidia", ("raise",)))
            assert prober.restarts == 1

    asyncio.run(main())


def test_a_prober_whose_library_lets_nothing_else_run_is_killed_by_its_timer(stage, helpers):
    one = stage()

    async def main():
        async with helpers(one) as (_, prober, *_rest):
            with pytest.raises(NotReady, match="1 probers in a row"):
                await prober.call(ops.Probe("nvidia", ("hold",)), deadline=20)
            assert (await prober.call(ops.Probe("nvidia"))).state == "found"

    asyncio.run(main())
    assert one.process.wait(10) == 0
    assert re.search(r"(live|replaced) prober \d+: killed by signal 9", one.log.read_text())


def test_a_role_that_cannot_live_is_told_and_holds_up_no_other(stage):
    one = stage("--broken", "prober")

    async def main():
        supply = Supply(inherited(one.end))
        one.end = None
        prober = Helper("prober", supply, ops.ProberAnswer)
        witness = Helper("witness", supply, ops.WitnessAnswer)
        try:
            waiting = asyncio.create_task(prober.call(ops.Probe("nvidia")))
            assert isinstance(await witness.call(ops.Look()), ops.Looked)
            with pytest.raises(NotReady, match="no prober: the last 4 ended at once") as caught:
                await waiting
            assert "exit status 70" in caught.value.message
        finally:
            prober.close()
            witness.close()
            supply.close()

    asyncio.run(main())
    assert "this role is broken" in one.log.read_text()
