"""Cleaning: what is left over, or could not be carried out, is tried again until it is done."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection

from xce_nodeagent.errors import AgentError
from xce_nodeagent.model.binding import Key

log = logging.getLogger(__name__)

SECONDS = 2.0
"""How soon it is looked again, while there is something to look at; never otherwise."""

LONGEST = 30.0
"""How seldom it is looked for what stays for hours."""

GROWTH = 1.5


class Cleaning:
    """Calls `clean` for each of the `unclean`, which says whether that one is clean now.

    What stays is looked at more and more seldom; `soon` makes all due again.
    """

    def __init__(
        self,
        unclean: Callable[[], Collection[Key]],
        clean: Callable[[Key], Awaitable[bool]],
    ) -> None:
        self._unclean = unclean
        self._clean = clean
        self._task: asyncio.Task[None] | None = None
        self._due: dict[Key, tuple[float, float]] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def later(self) -> None:
        """See to it that what is unclean is looked at until nothing is."""
        self._wake.set()
        if not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._run())

    def soon(self) -> None:
        """Look at all of it soon, also at what was looked at often."""
        self._due.clear()
        self.later()

    async def _run(self) -> None:
        # Before Python 3.12, wait_for loses a cancellation that comes together with the wake-up.
        while not self._closed and (unclean := self._unclean()):
            now = time.monotonic()
            self._due = {key: self._due.get(key, (now + SECONDS, SECONDS)) for key in unclean}
            self._wake.clear()
            first = min(moment for moment, _ in self._due.values())
            if first > now:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), first - now)
                continue
            for key, (moment, delay) in list(self._due.items()):
                if moment > now:
                    continue
                longer = min(delay * GROWTH, LONGEST)
                self._due[key] = (time.monotonic() + longer, longer)
                await self._one(key)

    async def _one(self, key: Key) -> None:
        try:
            if await self._clean(key):
                log.info("job %s is clean now: its instances are free", key[0])
        except AgentError as error:
            log.error("job %s cannot be cleaned yet: %s", key[0], error.message)

    async def close(self) -> None:
        """Stop looking."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
