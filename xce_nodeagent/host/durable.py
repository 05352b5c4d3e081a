"""What a cut of the power leaves: contents and names are on the disk once they were synced."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def sync_folder(path: Path) -> None:
    """Make a change of names in a file's folder durable, as far as its file system can."""
    with contextlib.suppress(OSError):
        sync_file(path.parent)


def sync_file(path: Path | str) -> None:
    """Make a file's content durable, or a folder's names. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
