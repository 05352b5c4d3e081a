"""When device nodes may have come or gone: inotify(7) of the folders that they are in.

A node is replaced by removing it and making it anew, so names that come and go tell all; that
somebody writes to a device is no news.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from xce_nodeagent.host.inotify import Inotify

FOLDERS_LIMIT = 64
"""Folders that are watched; what changes in more is seen by the next look at all."""


class NodeWatch:
    """A descriptor that becomes readable when something came or went beside a node.

    Raise OSError where the kernel has no watch to spare.
    """

    def __init__(self) -> None:
        self._watched = Inotify()
        self._names: dict[Path, set[str]] = {}

    def fileno(self) -> int:
        """Give the descriptor to wait for."""
        return self._watched.fileno()

    def close(self) -> None:
        """Stop."""
        self._watched.close()

    def follow(self, paths: Iterable[str]) -> None:
        """Wait for these paths from now on, and for the folders on the way to them."""
        names: dict[Path, set[str]] = {}
        for path in map(Path, paths):
            for inner in (path, *path.parents[:-2]):  # nothing comes and goes in / but by hand
                if len(names) < FOLDERS_LIMIT or inner.parent in names:
                    names.setdefault(inner.parent, set()).add(inner.name)
        self._names = names
        self._add()

    def _add(self) -> None:
        for folder in self._names:
            with contextlib.suppress(OSError):  # it is not there yet; the one above tells
                self._watched.add(folder, written=False)

    def drain(self) -> bool:
        """Take what was told; say whether it is of a path that is waited for."""
        touched = False
        for folder, name in self._watched.read():
            touched |= folder is None or not name or name in self._names.get(folder, ())
        if touched:
            self._add()
        return touched
