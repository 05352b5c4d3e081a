"""The version of the ledger's format, and a file of a later one: it is left as it is."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from xce_nodeagent.errors import Enforcement

VERSION = 2
"""2 has two more events, `adopted` and `ended`, than 1: an agent of that time could not read them.
The column `up` came within 1."""


class TooNew(Enforcement):
    """A later version wrote it: it is not for us, and nothing is written to it or to its log."""


def look(path: Path) -> None:
    """Raise TooNew where that can be seen without a connection that may write.

    Such a one sets the file's mode, and folds its log in when it is closed.
    """
    row = None
    # What cannot be read so is told by the connection that comes next.
    with contextlib.suppress(sqlite3.Error):
        name = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(name, uri=True)) as db:
            row = db.execute("SELECT value FROM meta WHERE key='version'").fetchone()
    if row is not None and str(row[0]).isdecimal():
        check(path, int(row[0]))


def check(path: Path, version: int) -> None:
    """Raise TooNew where a file's version is a later one."""
    if version > VERSION:
        raise TooNew(
            f"ledger {path}: its format is version {version}, this agent knows {VERSION}; it stays"
            " as it is, and there are no new grants: install the agent that wrote it, or release"
            " all jobs and move it aside",
            path=str(path),
        )
