"""The line in which the calls of users who may not prepare wait for their turn."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

TURN_SECONDS: Final = 0.001
"""How long calls from the line are answered before everything else gets its turn."""


class Line:
    """One line for each user; who has waited longest is next, with one call.

    However much they ask, they get at most about half of the time: after a turn that did not
    empty the line, it rests for as long as the turn took. So whoever may prepare, whose calls
    never stand here, waits for one turn at most.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[int, deque[Callable[[], None]]] = {}
        self._called = False

    def wait(self, uid: int, act: Callable[[], None]) -> None:
        """Call `act` when it is this user's turn."""
        self._waiting.setdefault(uid, deque()).append(act)
        if not self._called:
            self._called = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        began = time.monotonic()
        spent = 0.0
        try:
            while self._waiting and spent < TURN_SECONDS:
                self._next()()
                spent = time.monotonic() - began
        finally:
            self._called = bool(self._waiting)
            if self._called:
                self._loop.call_later(spent, self._turn)

    def _next(self) -> Callable[[], None]:
        uid = next(iter(self._waiting))  # dicts keep the order of insertion
        acts = self._waiting.pop(uid)
        act = acts.popleft()
        if acts:
            self._waiting[uid] = acts
        return act
