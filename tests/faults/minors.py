"""Minors for cards that are not there: their nodes are in the one /dev, so each run has its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

COUNT = 4
FIRST = range(200, 252, COUNT)
"""Where a range may begin: far beyond those of any real card, and below those that the driver's
own control nodes have (254, 255)."""

SHARED = Path("/dev/shm")  # noqa: S108  # as those nodes are, it is all runs' of this host


@contextlib.contextmanager
def claimed(folder: Path = SHARED) -> Iterator[int]:
    """Give the first of `COUNT` minors that nobody else who runs these tests has until the end."""
    with contextlib.ExitStack() as stack:
        for first in FIRST:
            path = folder / f"xce-tests-minors-{first}"
            lock = stack.enter_context(path.open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                    stack.callback(path.unlink)  # before the lock is given up
                    yield first
                    return
        raise RuntimeError("all minors for cards that are not there are in use by other runs")
