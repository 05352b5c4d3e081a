"""Files that a configuration names: read where they are regular ones, and never waited for.

A FIFO holds whoever opens it until somebody writes there, and a device has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class NotRegular(OSError):
    """There is something, and it is no file."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "not a regular file", path)


def read(path: Path, most: int) -> tuple[bytes, os.stat_result]:
    """Give at most so many bytes of a file, or of what a link leads to, and what it is.

    Raise OSError.
    """
    # Without waiting for a writer; for a regular file the flag means nothing.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(number)
        _check(os.fspath(path), found)
        with os.fdopen(number, "rb", closefd=False) as file:
            return file.read(most), found
    finally:
        os.close(number)


def look(path: str) -> None:
    """See that it can be opened without waiting, for a library that opens it by its name.

    Raise OSError.
    """
    _check(path, os.stat(path))


def _check(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotRegular(path)
