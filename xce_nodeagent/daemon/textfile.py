"""The textfile: metrics for the textfile collector of node_exporter, written when they moved."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from xce_nodeagent.host import whole

log = logging.getLogger(__name__)


class Textfile:
    """Looks each `seconds`, and writes where something is another than before.

    `fault` says why it could not be written the last time; "" when it could. What is written is
    not synced: after a crash of the host it is written anew.
    """

    def __init__(self, path: Path, seconds: float, metrics: Callable[[], bytes]) -> None:
        self.fault = ""
        self._path = path
        self._seconds = seconds
        self._metrics = metrics
        self._last = b""
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(self._seconds)

    async def _look(self) -> None:
        try:
            found = self._metrics()
            if found != self._last:
                await asyncio.to_thread(whole.replace, self._path, found, mode=0o644)
                self._last = found
        except Exception as error:  # whatever it is, the next look may go well
            known = isinstance(error, OSError)
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            if why != self.fault:
                log.warning(
                    "metrics cannot be written to %s: %s",
                    self._path,
                    why,
                    exc_info=None if known else error,
                )
            self.fault = why
        else:
            self.fault = ""

    async def close(self) -> None:
        """Write no more, and take away what else would be told for ever of an agent that left."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._last:
            with contextlib.suppress(OSError):
                self._path.unlink()
