"""How much time went by for certain, over all boots: by this attempts are aged, not by the day.

The clock of the day is set by people and by NTP, back and forth; the time since the boot is not
(clock_gettime(2), CLOCK_BOOTTIME). Of an earlier boot it is known how long it lasted at least:
until its last event. How long the host was off is not known, so it counts as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Elapsed:
    """Turns the times of events into moments, in seconds, that may be subtracted from each other.

    `boots` are the boots that have events, in their order, each with the time of its last one in
    seconds since that boot; None where no event of it says. `uptime` tells it of `boot`, which is
    now.
    """

    def __init__(
        self, boots: Iterable[tuple[str, float | None]], boot: str, uptime: Callable[[], float]
    ) -> None:
        self._boot = boot
        self._uptime = uptime
        self._spans: dict[str, tuple[float, float]] = {}
        at = 0.0
        for name, last in boots:
            if name != boot:
                self._spans[name] = (at, at + (last or 0.0))
                at += last or 0.0
        self._start = at

    def now(self) -> float:
        """Give the moment that it is."""
        return self._start + self._uptime()

    def moment(self, boot: str, up: float | None) -> float:
        """Give the moment of an event, so many seconds after that boot; the latest if unknown."""
        if boot == self._boot:
            return self.now() if up is None else self._start + up
        start, end = self._spans.get(boot, (self._start, self._start))
        return end if up is None else start + up
