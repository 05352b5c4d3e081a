"""The reporter: writes each new inventory upstream, one after the other, off every job's path."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from xce_nodeagent import upstream
from xce_nodeagent.model.inventory import Inventory

log = logging.getLogger(__name__)


class Reporter:
    """Writes to one file. `failed` says why the last time went wrong; "" when it did not."""

    def __init__(self, path: Path) -> None:
        self.failed = ""
        self._path = path
        self._one_at_a_time = asyncio.Lock()

    async def write(self, inventory: Inventory) -> None:
        """Write it; a failure is logged, and the next inventory is the next try."""
        # In order, or an older inventory could replace a newer one.
        async with self._one_at_a_time:
            try:
                await asyncio.to_thread(upstream.write, self._path, inventory)
                self.failed = ""
            except OSError as error:
                self.failed = f"{self._path}: {error.strerror}"
                log.error("the inventory cannot be written to %s", self.failed)
