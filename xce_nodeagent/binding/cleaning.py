"""Cleaning: what is left over, or could not be carried out, is tried again until it is done."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection

from xce_nodeagent.errors import AgentError
from xce_nodeagent.model.binding import Key

log = logging.getLogger(__name__)

SECONDS = 2.0
"""How often it is looked, while there is something to look at; never otherwise."""


class Cleaning:
    """Calls `clean` for each of the `unclean`, which says whether that one is clean now."""

    def __init__(
        self,
        unclean: Callable[[], Collection[Key]],
        clean: Callable[[Key], Awaitable[bool]],
    ) -> None:
        self._unclean = unclean
        self._clean = clean
        self._task: asyncio.Task[None] | None = None

    def later(self) -> None:
        """See to it that what is unclean is looked at until nothing is."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while unclean := self._unclean():
            await asyncio.sleep(SECONDS)
            for key in unclean:
                try:
                    if await self._clean(key):
                        log.info("job %s is clean now: its instances are free", key[0])
                except AgentError as error:
                    log.error("job %s cannot be cleaned yet: %s", key[0], error.message)

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
