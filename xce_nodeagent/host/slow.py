"""Files of sysfs that a driver answers by asking its card, which may take long, or for ever.

Each is read in a thread of its own, all at once, and they are waited for a little. What does not
come back is left to its thread, and is not asked again before that has ended: however many cards
hang, they cost the look at all others that time once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

SECONDS = 0.5


class Hung(Exception):
    """A file did not answer in time; the text says so."""


class Slow:
    """The reads that are under way. `clock` is monotonic."""

    def __init__(
        self, seconds: float = SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._open: dict[str, _Reading] = {}

    def read(self, reads: Mapping[str, Callable[[], str | None]]) -> dict[str, str | Hung | None]:
        """Give, by the files' names, what these reads give, and Hung for one that hangs.

        Raise what one of them raises.
        """
        answers: dict[str, str | Hung | None] = {}
        begun: dict[str, _Reading] = {}
        for name, read in reads.items():
            waiting = self._open.pop(name, None)
            if waiting is not None and waiting.is_alive():
                self._open[name] = waiting
                answers[name] = Hung(f"{name} does not answer")
            else:
                begun[name] = _Reading(read)
        for reading in begun.values():
            reading.start()
        until = self._clock() + self._seconds
        for name, reading in begun.items():
            reading.join(max(0.0, until - self._clock()))
            if not reading.found:
                self._open[name] = reading
                answers[name] = Hung(f"{name} did not answer in {self._seconds:g} s")
        for name in begun.keys() - answers.keys():
            answer = begun[name].found[0]
            if isinstance(answer, BaseException):
                raise answer
            answers[name] = answer
        return answers


class _Reading(threading.Thread):
    """One read; `found` has what it gave or raised, once it has ended."""

    def __init__(self, read: Callable[[], str | None]) -> None:
        super().__init__(daemon=True)
        self.found: list[str | BaseException | None] = []
        self._read = read

    def run(self) -> None:
        """Read it."""
        try:
            self.found.append(self._read())
        except BaseException as error:  # noqa: BLE001  # it is raised again, by who waits
            self.found.append(error)
