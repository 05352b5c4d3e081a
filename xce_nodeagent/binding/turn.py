"""Turns: one binding is worked on by one call at a time."""

from __future__ import annotations

import asyncio
from types import TracebackType

from xce_nodeagent.model.binding import Key


class Turns:
    """A lock for each key that somebody works on or waits for, and for no other."""

    def __init__(self) -> None:
        self.locks: dict[Key, tuple[asyncio.Lock, int]] = {}

    def of(self, key: Key) -> Turn:
        """Give the turn, to be waited for with `async with`, in the order of asking."""
        return Turn(self, key)


class Turn:
    """One call's turn. A class of its own, because a generator costs more than the lock."""

    __slots__ = ("_key", "_turns")

    def __init__(self, turns: Turns, key: Key) -> None:
        self._turns = turns
        self._key = key

    async def __aenter__(self) -> None:
        locks = self._turns.locks
        lock, users = locks.get(self._key) or (asyncio.Lock(), 0)
        locks[self._key] = (lock, users + 1)
        try:
            await lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._turns.locks[self._key][0].release()
        self._leave()

    def _leave(self) -> None:
        lock, users = self._turns.locks.pop(self._key)
        if users > 1:
            self._turns.locks[self._key] = (lock, users - 1)
