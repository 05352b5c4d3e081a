"""A host that keeps what is read of it, so that another can look at the same machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from xce_nodeagent.host.machine import Answer, Host
from xce_nodeagent.model.record import Entry, File, Folder, Link, Record

_LINKS = 40  # followed on the way to one file, as in the kernel (path_resolution(7))


class Recorder(Host):
    """A host whose answers are kept in `record`: files, links, folders, and what is no file.

    What is only listed is kept without its content: a link with its target, a device node as a
    file with its kind and numbers (`c 195:0`), because a plain user can make no other.
    `seen` is called with each thing that is read.
    """

    def __init__(
        self, root: str | Path = "/", *, live: bool | None = None, seen: Callable[[], None]
    ) -> None:
        super().__init__(root, live=live)
        self.record: Record = {}
        self._seen = seen

    def _read(self, name: str, limit: int) -> str | None:
        text = super()._read(name, limit)
        if text is not None and (path := self._walk(name)):
            self.record[path] = File(text + "\n")
        return text

    def _names(self, name: str) -> tuple[str, ...]:
        found = super()._names(name)
        if path := self._walk(name):
            for one in found:
                self._keep(f"{path.rstrip('/')}/{one}")
        return found

    def _real(self, name: str) -> str | None:
        self._walk(name)
        return super()._real(name)

    def answer(self, name: str, ask: Callable[[], Answer], kind: Any) -> Answer | None:
        """Ask, and keep the answer."""
        found = super().answer(name, ask, kind)
        if found is not None:
            text = msgspec.json.format(msgspec.json.encode(found)).decode()
            self.record[f"/{name}.json"] = File(text + "\n")
        return found

    def _walk(self, name: str) -> str | None:
        """Go to a file, and keep each folder and link on the way; None where it is not there."""
        self._seen()
        todo = [part for part in reversed(name.split("/")) if part not in ("", ".")]
        at, links = "", 0
        while todo:
            part = todo.pop()
            if part == "..":
                at = at.rpartition("/")[0]
                continue
            below = f"{at}/{part}"
            entry = self._keep(below)
            if entry is None:
                return None
            if isinstance(entry, Link):
                links += 1
                if links > _LINKS:
                    return None
                todo += reversed(entry.target.split("/"))
                continue
            at = below
        return at or "/"

    def _keep(self, path: str) -> Entry | None:
        """Keep what a path is, and give it; the folder that it is in is known."""
        known = self.record.get(path)
        if known is not None:
            return known
        # Whose links all lie behind us: `path` has none on its way.
        place = os.path.join(self._tree.real, path.lstrip("/"))
        entry: Entry
        try:
            found = os.lstat(place)
            if stat.S_ISLNK(found.st_mode):
                entry = Link(self._within(path, os.readlink(place)))
            elif stat.S_ISDIR(found.st_mode):
                entry = Folder()
            elif stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode):
                kind = "c" if stat.S_ISCHR(found.st_mode) else "b"
                entry = File(f"{kind} {os.major(found.st_rdev)}:{os.minor(found.st_rdev)}\n")
            else:
                entry = File()
        except (OSError, ValueError):  # it vanished; a name with NUL
            return None
        return self.record.setdefault(path, entry)

    def _within(self, path: str, target: str) -> str:
        """Write a link's target relative to its folder, and so that it stays below the root."""
        folder = os.path.dirname(path)
        if target.startswith("/"):
            below = os.path.normpath(target)
            if self._tree.real != "/":
                # The root's own path may be part of it; else it leads out, as it is refused here.
                inside = below.startswith(f"{self._tree.real}/")
                below = below.removeprefix(self._tree.real) if inside else "/outside"
        else:
            # From the root `..` goes nowhere, as in a kernel.
            below = os.path.normpath(f"{folder}/{target}")
        return os.path.relpath("/" + below.lstrip("/"), folder)
