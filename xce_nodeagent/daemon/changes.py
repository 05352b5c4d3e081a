"""Changes: what events tell, collected, and looked at together: soon, and not too often.

The first event is looked at when those that come with it are there, too. While more come, looks
keep a distance that grows with what a look costs, so that a storm takes a small part of a CPU.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable

from xce_nodeagent.errors import AgentError
from xce_nodeagent.host.event import ALL, LOST, Event

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.03
"""How long events are collected: a card comes with its function, its driver and its nodes."""

APART_SECONDS = 0.1
"""How long after a look began the next one begins at the earliest."""

SHARE = 10.0
"""How many times the CPU time of a look lies between it and the next: a tenth of a CPU at most."""

APART_MOST = 1.0
"""Seconds that looks are kept apart at most, whatever else the agent did meanwhile."""

RETRY_SECONDS = 5.0
"""How soon it is looked again when a look failed."""

ALL_SECONDS = 300.0
"""How often all is looked at without a reason: nobody tells of a port of RDMA that has no interface
and is down, nor of what firmware changes."""

SAID_SECONDS = 60.0
"""How often the log says that events were lost, at most."""

LIMIT = 1024
"""Different events that are kept; of more, it is enough to know that there were more."""


class Changes:
    """Calls `look` with what was told since it was called last; never twice at once."""

    def __init__(self, look: Callable[[frozenset[Event]], Awaitable[None]]) -> None:
        self.looks = 0
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._told: set[Event] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Future[None] | None = None
        self._due = math.inf
        self._begun = (0.0, 0.0)
        self._all = self._loop.call_later(ALL_SECONDS, self._look_at_all)
        self._earliest = 0.0
        self._missed, self._quiet_until = 0, -math.inf
        self._closed = False

    def tell(self, events: Iterable[Event], *, after: float = SETTLE_SECONDS) -> None:
        """Take in what changed; it is looked at after so many seconds, if not before."""
        self._told.update(events)
        if len(self._told) > LIMIT:
            self._told = {LOST}
        self._due = min(self._due, self._loop.time() + after)
        self._wait()

    def missed(self) -> None:
        """Note that events were lost. A storm may lose some every second: it is logged as one."""
        self._missed += 1
        now = self._loop.time()
        if now >= self._quiet_until:
            log.warning(
                "events of the hardware were lost (%d times since this was said last): all of it is"
                " looked at again",
                self._missed,
            )
            self._missed, self._quiet_until = 0, now + SAID_SECONDS

    async def close(self) -> None:
        """Look at nothing any more, whatever is told: what is to look may be gone by then."""
        self._closed = True
        self._all.cancel()
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def _wait(self) -> None:
        """Set the timer; while it is looked, that has time until the look is done."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._looking is None and self._told and not self._closed:
            self._timer = self._loop.call_at(max(self._due, self._earliest), self._look_now)

    def _look_now(self) -> None:
        self._timer = None
        events, self._told, self._due = frozenset(self._told), set(), math.inf
        self._begun = self._loop.time(), time.process_time()
        self._looking = asyncio.ensure_future(self._look(events))
        self._looking.add_done_callback(self._looked)

    def _looked(self, done: asyncio.Future[None]) -> None:
        self._looking = None
        if done.cancelled():
            return
        now = self._loop.time()
        if error := done.exception():
            known = isinstance(error, AgentError | OSError)
            log.error(
                "the hardware cannot be looked at: %s", error, exc_info=None if known else error
            )
            self._earliest = now + RETRY_SECONDS
            self.tell((LOST,))
            return
        self.looks += 1
        begun, used = self._begun
        apart = min(SHARE * (time.process_time() - used), APART_MOST)
        self._earliest = begun + max(APART_SECONDS, apart)
        self._wait()

    def _look_at_all(self) -> None:
        self._all = self._loop.call_later(ALL_SECONDS, self._look_at_all)
        self.tell((ALL,))
