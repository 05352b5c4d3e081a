"""A ledger that cannot be read is moved aside, for people to look at."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from xce_nodeagent.host.durable import sync_folder

KEPT = 3
"""Damaged ledgers that are kept; older ones are deleted."""

_SUFFIXES = ("", "-wal", "-shm")


def move(path: Path, now: float) -> Path:
    """Move a ledger aside with its log, durably; give its new name. Raises OSError."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    name = f"{path.name}.damaged-{stamp}"
    where, number = path.with_name(name), 1
    while any(os.path.lexists(f"{where}{suffix}") for suffix in _SUFFIXES):
        number += 1
        where = path.with_name(f"{name}-{number}")
    for suffix in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{suffix}", f"{where}{suffix}")
        # One by one: a database whose log alone is gone would be taken for a whole one.
        sync_folder(path)
    _tidy(path, where)
    return where


def _tidy(path: Path, newest: Path) -> None:
    """Delete the oldest, by the time that they were last written; folders are left to people."""
    found = [
        file
        for file in path.parent.glob(f"{path.name}.damaged-*")
        if not file.name.endswith(_SUFFIXES[1:]) and file != newest and file.is_file()
    ]
    found.sort(key=lambda file: (file.stat().st_mtime, file.name))
    for old in found[: max(0, len(found) - KEPT + 1)]:
        for suffix in _SUFFIXES:
            with contextlib.suppress(OSError):
                os.unlink(f"{old}{suffix}")
