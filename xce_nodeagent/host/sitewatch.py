"""When declared instances may have changed: their files, and the nodes that these name.

Nodes of any kind may be named, so no subsystem's events would do; inotify tells what comes and goes
in their folders.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from xce_nodeagent.host import declared
from xce_nodeagent.host.event import DECLARED, Event
from xce_nodeagent.host.inotify import Inotify
from xce_nodeagent.model.declaration import allowed
from xce_nodeagent.model.site import Site

FOLDERS_LIMIT = 256
"""Folders that are watched; what changes in more is seen by the timer."""


class SiteWatch:
    """A descriptor that becomes readable when something may have changed.

    Raise OSError where the kernel has no watch to spare.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._watched = Inotify()
        self._nodes: dict[Path, set[str]] = {}
        self._follow()

    def fileno(self) -> int:
        """Give the descriptor to wait for."""
        return self._watched.fileno()

    def close(self) -> None:
        """Stop."""
        self._watched.close()

    def drain(self) -> tuple[Event, ...]:
        """Take what was told; give an event where it matters."""
        touched = False
        for folder, name in self._watched.read():
            touched |= self._matters(folder, name)
        if not touched:
            return ()
        self._follow()
        return (DECLARED,)

    def _matters(self, folder: Path | None, name: str) -> bool:
        if folder is None or not name:
            return True
        files = Path(self._site.folder)
        if folder == files:
            return name.endswith(".toml")
        if folder == files.parent and name == files.name:
            return True
        return any(allowed(name, (part,)) for part in self._nodes.get(folder, ()))

    def _follow(self) -> None:
        """Watch the folders that there are now; to watch one again changes nothing."""
        folder = Path(self._site.folder)
        for place in (folder.parent, folder):
            with contextlib.suppress(OSError):
                self._watched.add(place, modes=True)
        self._nodes = {}
        found = declared.read(self._site)
        paths = [path for one in found.instances for path in one.nodes]
        for path in (*paths, *self._site.patterns):
            self._expect(path)
        for place in self._nodes:
            with contextlib.suppress(OSError):  # it is not there yet; the one above tells
                self._watched.add(place)

    def _expect(self, path: str) -> None:
        """Note the names that are waited for in each folder on the way to a path or pattern."""
        folders = [Path("/")]
        for part in path.split("/")[1:]:
            for folder in folders:
                self._wait(folder, part)
            folders = [
                folder / name
                for folder in folders
                for name in declared.names(str(folder), part)
                if allowed(name, (part,))
            ]
        for one in folders:
            if os.path.islink(one):  # what it leads to comes and goes elsewhere
                real = Path(os.path.realpath(one))
                self._wait(real.parent, real.name)

    def _wait(self, folder: Path, name: str) -> None:
        if folder != Path("/") and len(self._nodes) < FOLDERS_LIMIT:
            self._nodes.setdefault(folder, set()).add(name)
