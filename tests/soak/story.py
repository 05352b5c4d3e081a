"""The story of a history: what was done, for whoever has to find out why a promise broke."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

LINES = 30
LOG_BYTES = 3000


class BrokenPromise(AssertionError):
    """What the node does is not what was promised."""


class Story:
    """Lines of what was done; `about` is the kind of node. `patience` is in seconds: what is wrong

    for longer stays wrong.
    """

    def __init__(self, about: str, log: Path, patience: float) -> None:
        self._about = about
        self._log = log
        self._patience = patience
        self._lines: list[str] = []

    def note(self, *lines: str) -> None:
        self._lines += lines

    def fail(self, why: str) -> NoReturn:
        """Report a broken promise."""
        tail = "\n  ".join(self._lines[-LINES:])
        log = self._log.read_text("utf-8", "replace")[-LOG_BYTES:]
        raise BrokenPromise(f"{why}\non a node with {self._about}\n  {tail}\nlog:\n{log}")

    def fail_with(self, found: list[str]) -> None:
        """Report these, if there are any."""
        if found:
            self.fail("\n".join(found))

    def in_time(self, until: float, what: str) -> None:
        """Report what is still so after a moment of time.monotonic()."""
        if time.monotonic() > until:
            self.fail(what)

    def until_right(self, wrong: Callable[[], list[str]], prefix: str = "") -> None:
        """Wait until nothing is wrong: what the kernel frees, it frees a moment later."""
        until = time.monotonic() + self._patience
        while found := wrong():
            if time.monotonic() > until:
                self.fail_with([prefix + one for one in found])
            time.sleep(0.005)
