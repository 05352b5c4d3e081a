"""Listening to cards: the agent's end of the listener, and which cards that has open.

It waits in the kernel for a minute at a time, and is asked for figures in between: an idle agent
is woken once a minute for all cards, and at once by an event. Another set of cards is another
process, because a card is let go by ending the one that has it open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from xce_nodeagent.errors import AgentError
from xce_nodeagent.model.health import Sample, Xid
from xce_nodeagent.privileged.ops import Heard, Listen

log = logging.getLogger(__name__)

SECONDS = 60.0
"""For how long is listened before the figures are asked for."""

SETTLE = 1.0
"""Seconds until it is listened to another set of cards: several are often drained in a row."""

PAUSE, PAUSE_MOST = 1.0, 600.0
"""Seconds until it is tried again when nothing was heard; twice as long each time."""

STORM_SECONDS = 0.1
"""How far apart answers are taken when one follows the other: events do, and so do the answers of
a listener that does not wait."""

GONE_SECONDS = 5.0
"""Within which a listener has ended when it is to let a card go."""


class Ear(Protocol):
    """The agent's end of the listener; `binding/helper.py` is one."""

    @property
    def pid(self) -> int:
        """The process; 0 when there is none."""
        ...

    async def call(
        self, request: Any, fds: tuple[int, ...] = (), deadline: float | None = None
    ) -> Any:
        """Ask, and give the answer; raise the pinned error of a failure."""
        ...

    def drop(self, why: str) -> None:
        """Let the process go; the next call gets another."""
        ...


class Telemetry:
    """Listens to the cards that `follow` names, by their PCI addresses.

    `heard` is called with each event and says whether the figures are to be asked for; `cut` when
    the MIG layout of cards has changed; `measured` with the figures; `hung` with what did not
    answer: a card, or a call of the library. `deaf` says of which cards nothing is heard, and
    `fault` why nothing is heard at all; "" where all is well.
    """

    def __init__(
        self,
        ear: Ear,
        *,
        heard: Callable[[str, Xid], bool],
        cut: Callable[[], None],
        measured: Callable[[Mapping[str, Sample]], None],
        hung: Callable[[str], None],
        patience: float,
        seconds: float = SECONDS,
        settle: float = SETTLE,
    ) -> None:
        self.deaf: Mapping[str, str] = {}
        self.fault = ""
        self.cards: tuple[str, ...] = ()
        self._ear = ear
        self._heard = heard
        self._cut = cut
        self._measured = measured
        self._hung = hung
        self._patience = patience
        self._seconds = seconds
        self._settle = settle
        self._wanted: frozenset[str] = frozenset()
        self._pipe = -1
        self._listening: asyncio.Task[None] | None = None
        self._starting: asyncio.TimerHandle | None = None
        self._leaving: asyncio.Future[None] | None = None

    def follow(self, cards: frozenset[str]) -> None:
        """Listen to these from now on; what is not among them is let go."""
        if cards == self._wanted:
            return
        self._wanted = cards
        self._stop()
        if self._starting is None and cards:
            # The first time nobody waits for anything to settle.
            wait = self._settle if self._leaving is not None else 0.0
            self._starting = asyncio.get_running_loop().call_later(wait, self._start)

    async def gone(self) -> bool:
        """Wait until the process that had other cards open has ended; say whether it has."""
        if self._leaving is None:
            return True
        done, _ = await asyncio.wait({self._leaving}, timeout=GONE_SECONDS)
        return bool(done)

    def close(self) -> None:
        """Listen no more."""
        self._wanted = frozenset()
        if self._starting is not None:
            self._starting.cancel()
        self._stop()

    def _start(self) -> None:
        self._starting = None
        if self._wanted:
            self.cards = tuple(sorted(self._wanted))
            # When the write end is closed, whoever has the read end ends.
            read, self._pipe = os.pipe2(os.O_CLOEXEC)
            self._listening = asyncio.ensure_future(self._listen(self.cards, read))

    def _stop(self) -> None:
        if self._listening is None:
            return
        self._listening.cancel()
        self._listening = None
        self._leaving = asyncio.ensure_future(_ended(self._ear.pid))
        os.close(self._pipe)
        self._ear.drop("it is listened to other cards")
        self.cards, self.deaf, self.fault = (), {}, ""

    async def _listen(self, cards: tuple[str, ...], read: int) -> None:
        pause, figures, last = PAUSE, True, 0.0
        clock = asyncio.get_running_loop().time
        try:
            while True:
                seconds = 0.0 if figures else self._seconds
                answer = await self._ask(Listen(cards, seconds), read)
                figures = self._take(answer) if answer else True
                if self._listening is not asyncio.current_task():
                    return  # what was told has changed to which cards is listened
                if answer is None or answer.fault:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, PAUSE_MOST)
                    continue
                pause = PAUSE
                if not seconds:
                    figures = False
                else:
                    if clock() - last < 10 * STORM_SECONDS:
                        await asyncio.sleep(STORM_SECONDS)
                    last = clock()
        finally:
            os.close(read)

    async def _ask(self, request: Listen, read: int) -> Heard | None:
        try:
            answer: Heard = await self._ear.call(
                request, (read,), deadline=request.seconds + self._patience
            )
        except AgentError as error:
            if error.message != self.fault:
                log.warning("cards are not listened to: %s", error.message)
            self.fault = error.message
            return None
        return answer

    def _take(self, answer: Heard) -> bool:
        """Tell what was heard; say whether the figures are to be asked for."""
        if answer.fault and answer.fault != self.fault:
            log.warning("cards are not listened to: %s", answer.fault)
        self.fault, self.deaf = answer.fault, answer.deaf
        wanted = [self._heard(card, xid) for card, xid in answer.events]
        if answer.cut:
            self._cut()
        if answer.samples:
            self._measured(answer.samples)
        if answer.hung:
            self._hung(answer.hung)
        # A minute without an event is one for the figures; of a fault they may tell the cause.
        return any(wanted) or not (answer.events or answer.cut)


async def _ended(pid: int) -> None:
    """Wait until a process has ended, and all that it had open is closed."""
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid) if pid else -1
        if pidfd < 0:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)
