"""The reporter: writes each new inventory upstream, one after the other, off every job's path."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.upstream import file

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""How soon it is tried again while the upstream is away: nothing tells when it is back."""


class Reporter:
    """Writes to one file. `failed` says why the last time went wrong; "" when it did not."""

    def __init__(self, path: Path) -> None:
        self.failed = ""
        self._path = path
        self._newest: Inventory | None = None
        self._one_at_a_time = asyncio.Lock()

    async def write(self, inventory: Inventory) -> None:
        """Write it, however long that takes; give up when there is a newer one."""
        self._newest = inventory
        # In order, or an older inventory could replace a newer one.
        async with self._one_at_a_time:
            while self._newest is inventory:
                if await self._try(inventory):
                    return
                await asyncio.sleep(RETRY_SECONDS)

    async def _try(self, inventory: Inventory) -> bool:
        try:
            await asyncio.to_thread(file.write, self._path, inventory)
        except OSError as error:
            failed = f"{self._path}: {error.strerror}"
            if failed != self.failed:  # once, and not every five seconds
                log.error("the inventory cannot be written to %s", failed)
            self.failed = failed
            return False
        self.failed = ""
        return True
