"""What systemd does to cgroups behind our back, as files in its folders tell it.

A daemon-reload or daemon-reexec makes the folders of generators anew, always, and then applies what
units say to their cgroups once more: on cgroup v1 it rewrites device rules, on v2 it attaches its
own programs. `systemctl set-property` writes a file below `system.control`, and applies it as well.
A D-Bus signal would tell the first, but small hosts have no bus, and it is no signal for the
second. So inotify(7) watches these folders.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from xce_nodeagent.host.inotify import Inotify

PLACES = (Path("/run/systemd"), Path("/etc/systemd"))
"""Folders of the running systemd, and of what an admin set for ever."""

_CONTROL = "system.control"
_GENERATORS = "generator"  # and generator.early, generator.late

_FOLDERS_LIMIT = 512
"""Units whose properties were set, at most, that are watched; the timer sees the rest."""


class ReloadWatch:
    """A descriptor that becomes readable when systemd may have touched cgroups.

    Raise OSError where none of the folders is there, or the kernel has no watch to spare.
    """

    def __init__(self, places: tuple[Path, ...] = PLACES) -> None:
        self._places = places
        self._watched = Inotify()
        try:
            # One that is not there, systemd does not use; but the first tells of a systemd.
            self._watched.add(places[0])
        except OSError:
            self._watched.close()
            raise
        self._follow()

    def fileno(self) -> int:
        """Give the descriptor to wait for."""
        return self._watched.fileno()

    def close(self) -> None:
        """Stop."""
        self._watched.close()

    def drain(self) -> bool:
        """Take all events that are there; say whether one of them may mean changed cgroups.

        A queue that overflowed may have had one.
        """
        touched = False
        for folder, name in self._watched.read():
            touched |= self._matters(folder, name)
        if touched:
            self._follow()
        return touched

    def _matters(self, folder: Path | None, name: str) -> bool:
        if folder in self._places:
            return name.startswith((_GENERATORS, _CONTROL))
        return True

    def _follow(self) -> None:
        """Watch the folders that came since; to watch one again changes nothing."""
        for folder in self._wanted():
            with contextlib.suppress(OSError):  # it is not there, or gone again
                self._watched.add(folder)

    def _wanted(self) -> Iterator[Path]:
        for place in self._places:
            yield place
            control = place / _CONTROL
            yield control
            with contextlib.suppress(OSError):
                names = sorted(os.listdir(control))
                yield from (control / name for name in names[:_FOLDERS_LIMIT])
