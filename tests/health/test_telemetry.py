"""Which cards are listened to, and what becomes of what is heard."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys

import pytest

from xce_nodeagent.daemon.telemetry import Telemetry
from xce_nodeagent.errors import NotReady
from xce_nodeagent.model.health import Sample, Xid
from xce_nodeagent.privileged.ops import Heard, Listen

CARD, OTHER = "0000:1b:00.0", "0000:2b:00.0"


class Ear:
    """Answers with what is queued; each answer may be an error."""

    def __init__(self) -> None:
        self.pid = 0
        self.asked: list[Listen] = []
        self.pipes: list[int] = []
        self.dropped = 0
        self.answers: asyncio.Queue[Heard | Exception] = asyncio.Queue()
        self.news = asyncio.Event()

    async def call(self, request, fds=(), deadline=None):
        self.asked.append(request)
        self.news.set()
        self.pipes.append(os.dup(fds[0]))
        assert deadline > request.seconds
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def drop(self, why: str) -> None:
        self.dropped += 1

    def say(self, *answers: Heard | Exception) -> None:
        for answer in answers:
            self.answers.put_nowait(answer)

    async def is_asked(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.asked) < count:
                self.news.clear()
                await self.news.wait()


class Told:
    """A telemetry and what it tells."""

    def __init__(self, *, matters: bool = True) -> None:
        self.ear = Ear()
        self.heard: list[tuple[str, Xid]] = []
        self.measured: list[dict[str, Sample]] = []
        self.hung: list[str] = []
        self.cuts = 0
        self.matters = matters
        self.telemetry = Telemetry(
            self.ear, heard=self._hear, cut=self._is_cut, measured=self.measured.append,
            hung=self.hung.append, patience=5, seconds=30, settle=0,
        )  # fmt: skip

    def _is_cut(self) -> None:
        self.cuts += 1

    def _hear(self, card: str, xid: Xid) -> bool:
        self.heard.append((card, xid))
        return self.matters


def run(test) -> None:
    async def main() -> None:
        told = Told()
        try:
            await test(told)
        finally:
            told.telemetry.close()
            for pipe in told.ear.pipes:
                os.close(pipe)

    asyncio.run(main())


def closed(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def test_figures_come_first_then_what_is_heard_and_figures_again_where_it_matters() -> None:
    async def test(told: Told) -> None:
        told.telemetry.follow(frozenset({CARD, OTHER}))
        told.ear.say(
            Heard(samples={CARD: Sample(temperature=40)}),
            Heard(events=((CARD, Xid(48)),)),
            Heard(samples={CARD: Sample(temperature=41)}),
            Heard(),  # nothing for a while
            Heard(samples={}),
        )
        await told.ear.is_asked(6)
        assert [request.seconds for request in told.ear.asked] == [0, 30, 0, 30, 0, 30]
        assert all(request.cards == (CARD, OTHER) for request in told.ear.asked)
        assert told.heard == [(CARD, Xid(48))]
        assert [one[CARD].temperature for one in told.measured] == [40, 41]

    run(test)


def test_what_an_application_does_in_a_loop_costs_no_figures() -> None:
    async def test(told: Told) -> None:
        told.matters = False
        told.telemetry.follow(frozenset({CARD}))
        told.ear.say(Heard(), *[Heard(events=((CARD, Xid(13)),) * 256)] * 5)
        await told.ear.is_asked(7)
        assert [request.seconds for request in told.ear.asked] == [0, *[30] * 6]

    run(test)


def test_another_layout_is_told_and_is_no_reason_to_ask_for_figures() -> None:
    async def test(told: Told) -> None:
        told.telemetry.follow(frozenset({CARD}))
        told.ear.say(Heard(), Heard(cut=(CARD,)), Heard(cut=(CARD,), events=((CARD, Xid(0)),)))
        await told.ear.is_asked(4)
        assert [request.seconds for request in told.ear.asked] == [0, 30, 30, 0]
        assert told.cuts == 2

    run(test)


def test_other_cards_are_another_process_and_the_former_one_is_told_to_end() -> None:
    async def test(told: Told) -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "input()", stdin=subprocess.PIPE
        )
        try:
            told.ear.pid = child.pid
            told.telemetry.follow(frozenset({CARD, OTHER}))
            await told.ear.is_asked(1)
            assert await told.telemetry.gone()  # nobody has to go
            told.telemetry.follow(frozenset({CARD}))
            assert closed(told.ear.pipes[0])
            assert told.ear.dropped == 1
            gone = asyncio.ensure_future(told.telemetry.gone())
            done, _ = await asyncio.wait({gone}, timeout=0.05)
            assert not done
            child.stdin.write(b"\n")
            assert await gone
            await told.ear.is_asked(2)
            assert told.ear.asked[1].cards == (CARD,)
            assert not closed(told.ear.pipes[1])
            told.telemetry.follow(frozenset())
            assert closed(told.ear.pipes[1])
        finally:
            await child.communicate()

    run(test)


def test_a_listener_that_is_lost_and_a_fault_are_told_and_tried_again() -> None:
    async def test(told: Told) -> None:
        told.telemetry.follow(frozenset({CARD}))
        told.ear.say(NotReady("no listener"))
        await told.ear.is_asked(2)
        assert told.telemetry.fault == "no listener"
        told.ear.say(Heard(deaf={CARD: "it has no events"}))
        await told.ear.is_asked(3)
        assert (told.telemetry.fault, told.telemetry.deaf) == ("", {CARD: "it has no events"})
        told.ear.say(Heard(fault="GPU is lost"))
        await told.ear.is_asked(4)
        assert told.telemetry.fault == "GPU is lost"
        assert [request.seconds for request in told.ear.asked] == [0, 0, 30, 0]

    run(test)


def test_a_card_that_hung_is_told_once_and_the_session_is_over() -> None:
    async def test(told: Told) -> None:
        told.hung = _Hung(told)
        told.telemetry._hung = told.hung.append
        told.telemetry.follow(frozenset({CARD, OTHER}))
        told.ear.say(Heard(hung=OTHER))
        await told.ear.is_asked(2)
        assert list(told.hung) == [OTHER]
        assert [request.cards for request in told.ear.asked] == [(CARD, OTHER), (CARD,)]

    run(test)


class _Hung(list):
    """Leaves alone what hung, as the agent does."""

    def __init__(self, told: Told) -> None:
        super().__init__()
        self._told = told

    def append(self, what: str) -> None:
        super().append(what)
        self._told.telemetry.follow(frozenset({CARD}))


@pytest.mark.parametrize("count", [1, 3])
def test_many_changes_in_a_row_are_one_process(count: int) -> None:
    async def test(told: Told) -> None:
        told.telemetry.follow(frozenset({CARD, OTHER}))
        await told.ear.is_asked(1)
        for _ in range(count):
            told.telemetry.follow(frozenset())
            told.telemetry.follow(frozenset({OTHER}))
        await told.ear.is_asked(2)
        assert told.ear.asked[1].cards == (OTHER,)
        assert told.ear.dropped == 1

    run(test)
