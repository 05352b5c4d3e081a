"""The agent's end and the helpers, with real processes: what is lost is found again."""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
from pathlib import Path

import pytest

from xce_nodeagent.binding.helper import SETTLED
from xce_nodeagent.errors import Conflict, Enforcement, Internal, NotReady
from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.privileged import ops

SOMEWHERE = CgroupRef("cgroup2", "/nowhere")
FOREVER = 60.0


def ask(mark):
    return ops.Verify(mark, SOMEWHERE, ())


def test_each_role_answers_and_all_end_with_the_agent(stage, helpers):
    one = stage()

    async def main():
        async with helpers(one) as (binder, prober, witness):
            taken, managed = binder.greeted
            assert taken.pid == binder.pid
            assert isinstance(managed, ops.Done)
            assert (await binder.call(ask("hello"))).fault == "hello"
            probed = await prober.call(ops.Probe("nvidia"))
            assert probed.state == "found"
            assert isinstance(await witness.call(ops.Look()), ops.Looked)
            pids = list(one.children())
            assert len(pids) == 6
            return pids

    pids = asyncio.run(main())
    assert one.process.wait(10) == 0
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_a_stopped_binder_is_dead_before_its_spare_acts_and_the_answer_arrives(stage, helpers):
    one = stage()
    flag = one.folder / "stopped"

    async def main():
        async with helpers(one, deadline=0.5) as (binder, *_):
            first = binder.pid
            # Asked at once, and answered in order, the second by the spare as well.
            answers = await asyncio.gather(
                binder.call(ask(f"stop-once {flag}")), binder.call(ask("after"))
            )
            assert [answer.fault for answer in answers] == [f"stop-once {flag}", "after"]
            assert binder.pid != first
            assert binder.restarts == 1
            assert "did not answer Verify" in binder.loss
            return first, binder.pid

    first, second = asyncio.run(main())
    acts = [act for act in one.acts() if act[0] != "close"]
    assert acts == [
        ("take", first), ("Manage", first), ("take", second), ("Manage", second),
        (f"stop-once {flag}", second), ("after", second),
    ]  # fmt: skip
    # Dead, though its parent may not have taken notice yet.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        state = Path(f"/proc/{first}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
        assert state in "ZX"


def test_the_lock_alone_ends_a_stopped_binder_of_another_supervisor(stage, helpers):
    """After a restart of everything nobody but the lock knows the one before."""
    one, two = stage(), None

    async def main():
        nonlocal two
        async with helpers(one) as (before, *_rest):
            stopped = before.pid
            os.kill(stopped, signal.SIGSTOP)
            two = stage(lock=one.lock)
            async with helpers(two) as (after, *_):
                assert not _alive(stopped)
                assert (await after.call(ask("mine"))).fault == "mine"
            # The first agent gets the lock back the same way.
            assert (await before.call(ask("mine again"))).fault == "mine again"

    asyncio.run(main())


def test_a_request_that_kills_every_binder_is_given_up_and_the_others_go_on(stage, helpers):
    one = stage()

    async def main():
        async with helpers(one) as (binder, *_):
            results = await asyncio.gather(
                binder.call(ask("die")), binder.call(ask("a")), binder.call(ask("b")),
                return_exceptions=True,
            )  # fmt: skip
            assert isinstance(results[0], Enforcement)
            assert "3 binders in a row were lost over it" in results[0].message
            assert [answer.fault for answer in results[1:]] == ["a", "b"]
            assert binder.restarts == 3

    asyncio.run(main())


def test_a_hundred_kills_in_a_row_lose_nothing_and_leave_nothing(stage, helpers):
    one = stage()

    async def main():
        async with helpers(one) as (binder, *_):
            await binder.call(ask("first"))
            descriptors = len(os.listdir("/proc/self/fd"))
            theirs = await asyncio.to_thread(one.until, one.descriptors, "all spares are ready")
            most = 0
            for number in range(100):
                os.kill(binder.pid, signal.SIGKILL)
                answer = await binder.call(ask(f"n{number}"))
                assert answer.fault == f"n{number}"
                most = max(most, len(one.children()))
            assert binder.restarts == 100
            assert most <= 7  # live and spare of each, and one that is just ending
            again = await asyncio.to_thread(one.until, one.descriptors, "all spares are ready")
            assert again == theirs
            assert len(one.children()) == 6
            assert "Z" not in one.children().values()
            assert len(os.listdir("/proc/self/fd")) == descriptors

    asyncio.run(main())
    answered = [word for word, _ in one.acts() if word.startswith("n")]
    assert answered == [f"n{number}" for number in range(100)]
    assert one.stop() == 0


def test_kill_in_the_middle_of_many_calls_answers_all_in_order(stage, helpers):
    one = stage()

    async def main():
        async with helpers(one, linger=0) as (binder, *_):
            calls = [asyncio.create_task(binder.call(ask(f"c{n}"))) for n in range(200)]
            await calls[20]
            os.kill(binder.pid, signal.SIGKILL)
            answers = await asyncio.gather(*calls)
            assert [answer.fault for answer in answers] == [f"c{n}" for n in range(200)]

    asyncio.run(main())
    # Each was carried out at least once, and one binder at a time acted.
    acts = [act for act in one.acts() if act[0].startswith("c")]
    assert {word for word, _ in acts} >= {f"c{n}" for n in range(200)}
    pids = [pid for _, pid in acts]
    changes = sum(a != b for a, b in itertools.pairwise(pids))
    assert changes == len(set(pids)) - 1


def test_errors_come_back_as_the_errors_they_are(stage, helpers):
    one = stage()

    async def main():
        async with helpers(one) as (binder, *_):
            with pytest.raises(Conflict, match="it is taken") as caught:
                await binder.call(ask("conflict"))
            assert caught.value.details == {"job": "7"}
            assert binder.restarts == 0
            with pytest.raises(Internal, match="a fault of ours"):
                await binder.call(ask("fault"))
            # It answered, and ended; the next one is fresh.
            assert (await binder.call(ask("after"))).fault == "after"
            with pytest.raises(Internal, match="a message has at most"):
                await binder.call(ask("long"))
            with pytest.raises(Enforcement):
                await binder.call(ask("violation"))
            with pytest.raises(ValueError, match="a message has at most"):
                await binder.call(ask("x" * ops.MESSAGE_LIMIT))
            assert (await binder.call(ask("after"))).fault == "after"

    asyncio.run(main())
    log = one.log.read_text()
    assert "violation, ending: out of the roots" in log
    assert "RuntimeError: a fault of ours" in log


def test_a_pidfd_travels_with_its_request_and_is_repeated_with_it(stage, helpers):
    one = stage()

    async def main():
        async with helpers(one) as (binder, *_):
            descriptors = len(os.listdir("/proc/self/fd"))
            os.kill(binder.pid, signal.SIGSTOP)
            pidfd = os.pidfd_open(os.getpid())
            call = asyncio.create_task(
                binder.call(ops.Join("m", SOMEWHERE, os.getpid()), [pidfd], deadline=0.5)
            )
            await asyncio.sleep(0)
            os.close(pidfd)
            answer = await call
            assert f"Pid:\t{os.getpid()}\n" in answer.fault
            assert len(os.listdir("/proc/self/fd")) == descriptors

    asyncio.run(main())


def test_the_largest_message_fits(stage, helpers):
    one = stage()

    async def main():
        async with helpers(one) as (binder, *_):
            mark = "x" * (ops.MESSAGE_LIMIT - 200)
            answers = await asyncio.gather(*(binder.call(ask(mark)) for _ in range(20)))
            assert all(answer.fault == mark for answer in answers)

    asyncio.run(main())


def test_an_idle_helper_that_dies_is_replaced_before_it_is_needed(stage, helpers):
    one = stage()

    async def main():
        async with helpers(one) as (binder, *_):
            binder._line.since -= SETTLED  # only one that has lived a while is replaced unasked
            os.kill(binder.pid, signal.SIGKILL)

            def takes():
                return len([act for act in one.acts() if act[0] == "take"]) == 2

            await asyncio.to_thread(one.until, takes, "the spare took over")
            assert binder.restarts == 1

    asyncio.run(main())


def test_without_a_supervisor_the_error_says_so_and_nobody_waits(stage, helpers):
    one = stage()

    async def main():
        async with helpers(one) as (binder, _, witness):
            one.process.kill()
            one.process.wait()
            # Its helpers do not outlive it.
            for pid in (binder.pid, witness.pid):
                if pid:
                    one.until(lambda pid=pid: not _alive(pid), f"{pid} ends")
            with pytest.raises(Enforcement, match="supervisor has ended"):
                await binder.call(ask("x"))
            with pytest.raises(NotReady, match="supervisor has ended"):
                await witness.call(ops.Look())

    asyncio.run(main())


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").split()[2] != "Z"
    except OSError:
        return False


def test_closing_while_it_waits_fails_what_waits_and_leaks_nothing(stage, helpers):
    one = stage("--grace", "0.5")

    async def main():
        descriptors = len(os.listdir("/proc/self/fd"))
        async with helpers(one, deadline=FOREVER) as (binder, *_):
            waiting = asyncio.create_task(binder.call(ask("stop")))
            stopped = {binder.pid: "T"}.items()
            await asyncio.to_thread(one.until, lambda: stopped <= one.children().items(), "stopped")
            binder.close()
            with pytest.raises(Enforcement, match="was closed"):
                await waiting
            with pytest.raises(Enforcement, match="is closed"):
                await binder.call(ask("x"))
        assert len(os.listdir("/proc/self/fd")) < descriptors  # the supervisor's end is closed too

    asyncio.run(main())
    # The stopped one is killed when the grace is over.
    assert one.process.wait(20) == 0


def test_whoever_stops_waiting_disturbs_nobody(stage, helpers):
    one = stage()

    async def main():
        async with helpers(one, linger=0) as (binder, *_):
            calls = [asyncio.create_task(binder.call(ask(f"w{n}"))) for n in range(10)]
            await asyncio.sleep(0)
            calls[3].cancel()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(results.pop(3), asyncio.CancelledError)
            assert [r.fault for r in results] == [f"w{n}" for n in range(10) if n != 3]

    asyncio.run(main())


@pytest.mark.needs("root")
def test_as_a_plain_user_the_same_processes_run_without_changing_who_they_are(stage, helpers):
    one = stage(plain=True)

    async def main():
        async with helpers(one, deadline=0.5) as (binder, prober, witness):
            probed = await prober.call(ops.Probe("nvidia"))
            assert probed.facts["uid"] == 65534
            looked = await witness.call(ops.Look())
            assert looked.hidden > 0  # root's processes
            os.kill(binder.pid, signal.SIGSTOP)
            assert (await binder.call(ask("on"))).fault == "on"
            await asyncio.to_thread(one.until, lambda: len(confined()) == 6, "six confined")

    def confined():
        texts = [text for pid in one.children() if (text := status(pid))]
        assert all("CapPrm:\t0000000000000000" in text for text in texts)
        return [text for text in texts if "Seccomp:\t2" in text]

    def status(pid):
        try:
            return Path(f"/proc/{pid}/status").read_text("ascii")
        except OSError:
            return ""  # it has ended since it was listed

    asyncio.run(main())
    assert one.process.wait(10) == 0


def test_an_agent_that_does_not_come_as_agreed_is_hung_up_on(stage):
    one = stage()
    end = one.end
    with end:
        end.settimeout(10)
        end.send(b"\xc1 no msgpack")
        assert end.recv(100) == b""
        assert one.process.wait(10) == 76
    assert "violation by the agent" in one.log.read_text()
    assert isinstance(end, socket.socket)
