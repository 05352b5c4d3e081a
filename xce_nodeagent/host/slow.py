"""Files of sysfs that a driver answers by asking its card, which may take long, or for ever.

Each is read in a thread of its own, and waited for a little. What does not come back is left to
that thread, and is not asked again before the thread has ended: one card that hangs costs the look
at all others that time once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

SECONDS = 0.5


class Hung(Exception):
    """A file did not answer in time; the text says so."""


class Slow:
    """The reads that are under way."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._open: dict[str, threading.Thread] = {}

    def read(self, name: str, read: Callable[[], str | None]) -> str | None:
        """Give what `read` gives for a file, and raise what it raises; raise Hung if it hangs."""
        waiting = self._open.get(name)
        if waiting is not None and waiting.is_alive():
            raise Hung(f"{name} does not answer")
        found: list[str | BaseException | None] = []

        def ask() -> None:
            try:
                found.append(read())
            except BaseException as error:  # noqa: BLE001  # it is raised again, below
                found.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(self._seconds)
        if not found:
            self._open[name] = thread
            raise Hung(f"{name} did not answer in {self._seconds:g} s")
        self._open.pop(name, None)
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]
