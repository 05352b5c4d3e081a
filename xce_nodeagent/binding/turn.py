"""Turns: one binding is worked on by one call at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from xce_nodeagent.model.binding import Key


class Turns:
    """A lock for each key that somebody works on or waits for, and for no other."""

    def __init__(self) -> None:
        self._locks: dict[Key, tuple[asyncio.Lock, int]] = {}

    @contextlib.asynccontextmanager
    async def of(self, key: Key) -> AsyncIterator[None]:
        """Wait for the turn, in the order of asking, and have it inside."""
        lock, users = self._locks.get(key) or (asyncio.Lock(), 0)
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = (lock, users - 1)
