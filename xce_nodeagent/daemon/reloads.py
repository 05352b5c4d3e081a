"""After a daemon-reload: verify at once, and once more when systemd has done what it does then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from xce_nodeagent.host.reload import ReloadWatch

log = logging.getLogger(__name__)

SOON_SECONDS = 0.2
"""How long after the first sign the first look is: what comes together is one."""

AGAIN_SECONDS = 5.0
"""How long after the last sign the last look is. systemd first makes its folders anew, then goes
over all units."""

SHARE = 20.0
"""How many times its own CPU time lies between two looks: reloads in a loop cost a twentieth of
one CPU at most."""


class Reloads:
    """Calls `verify` when systemd may have touched cgroups.

    `cost` gives the seconds of CPU that the last verification took.
    """

    def __init__(
        self,
        watch: ReloadWatch,
        verify: Callable[[], None],
        cost: Callable[[], float],
        *,
        soon: float = SOON_SECONDS,
        again: float = AGAIN_SECONDS,
    ) -> None:
        self.seen = 0
        self._watch = watch
        self._verify = verify
        self._cost = cost
        self._wait = (soon, again)
        self._loop = asyncio.get_running_loop()
        self._last = -again
        self._soon: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._loop.add_reader(watch.fileno(), self._sign)

    def _sign(self) -> None:
        if not self._watch.drain():
            return
        self.seen += 1
        soon, again = self._wait
        if self._soon is None:
            log.info("systemd reloads or sets properties: the fences are verified")
            earliest = self._last + SHARE * self._cost()
            self._soon = self._loop.call_at(max(self._loop.time() + soon, earliest), self._first)
        if self._again is not None:
            self._again.cancel()
        self._again = self._loop.call_later(again, self._second)

    def _first(self) -> None:
        self._soon = None
        self._last = self._loop.time()
        self._verify()

    def _second(self) -> None:
        self._again = None
        self._verify()

    def close(self) -> None:
        """Stop, and close the watch."""
        self._loop.remove_reader(self._watch.fileno())
        for timer in (self._soon, self._again):
            if timer is not None:
                timer.cancel()
        self._watch.close()
