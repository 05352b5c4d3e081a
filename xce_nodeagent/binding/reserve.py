"""The reserve: space on the disk that is given up so that a release can still be recorded."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

BYTES = 1 << 20


class Reserve:
    """A file of zeros beside the ledger. While it is missing, nothing new is granted."""

    def __init__(self, path: Path, size: int = BYTES) -> None:
        self.path = path
        self._size = size
        self._held = False

    def held(self) -> bool:
        """Say whether the space is ours."""
        try:
            return self.path.stat().st_blocks * 512 >= self._size
        except OSError:
            return False

    def take(self) -> str:
        """Take the space, if it is not ours yet; say why it can't be had, or nothing.

        It is on a job's path, so it is looked at once: nobody but us takes it away.
        """
        if not self._held:
            why = self._take()
            self._held = not why
            return why
        return ""

    def _take(self) -> str:
        if self.held():
            return ""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Written, and not only asked for: what is promised by fallocate(2) is not kept by
                # every file system, and a compressing one makes nothing of zeros.
                os.ftruncate(descriptor, 0)
                for _ in range(self._size >> 16):
                    os.write(descriptor, os.urandom(1 << 16))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.give_up()
            return error.strerror or str(error)
        return "" if self.held() else "the file system does not keep it"

    def give_up(self) -> bool:
        """Let the space go; say whether there was any."""
        self._held = False
        had = self.held()
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        return had and not self.held()
