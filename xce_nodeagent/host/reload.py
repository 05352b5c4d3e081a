"""What systemd does to cgroups behind our back, as files in its folders tell it.

A daemon-reload or daemon-reexec makes the folders of generators anew, always, and then applies what
units say to their cgroups once more: on cgroup v1 it rewrites device rules, on v2 it attaches its
own programs. `systemctl set-property` writes a file below `system.control`, and applies it as well.
A D-Bus signal would tell the first, but small hosts have no bus, and it is no signal for the
second. So inotify(7) watches these folders, through ctypes: nothing else here needs it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

PLACES = (Path("/run/systemd"), Path("/etc/systemd"))
"""Folders of the running systemd, and of what an admin set for ever."""

_CONTROL = "system.control"
_GENERATORS = "generator"  # and generator.early, generator.late

_CREATE, _DELETE, _MOVED, _CLOSE_WRITE, _SELF = 0x100, 0x200, 0xC0, 0x8, 0xC00
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_ONLYDIR = 0x01000000
_MASK = _CREATE | _DELETE | _MOVED | _CLOSE_WRITE | _SELF | _ONLYDIR
_EVENT = struct.Struct("=iIII")
_BUFFER = 65536
_FOLDERS_LIMIT = 512
"""Units whose properties were set, at most, that are watched; the timer sees the rest."""

_libc = ctypes.CDLL(None, use_errno=True)


class ReloadWatch:
    """A descriptor that becomes readable when systemd may have touched cgroups.

    Raise OSError where none of the folders is there, or the kernel has no watch to spare.
    """

    def __init__(self, places: tuple[Path, ...] = PLACES) -> None:
        self._places = places
        self._folders: dict[int, Path] = {}
        fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            raise _error("inotify_init1")
        self._fd: int = fd
        try:
            # One that is not there, systemd does not use; but the first tells of a systemd.
            self._add(places[0])
        except OSError:
            os.close(fd)
            raise
        self._follow()

    def fileno(self) -> int:
        """Give the descriptor to wait for."""
        return self._fd

    def close(self) -> None:
        """Stop."""
        os.close(self._fd)

    def drain(self) -> bool:
        """Take all events that are there; say whether one of them may mean changed cgroups.

        A queue that overflowed (IN_Q_OVERFLOW) may have had one.
        """
        touched = False
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._fd, _BUFFER):
                for event in _events(data):
                    touched |= self._matters(*event)
        if touched:
            self._follow()
        return touched

    def _matters(self, watch: int, mask: int, name: str) -> bool:
        if mask & _OVERFLOW:
            return True
        if mask & _IGNORED:  # the folder is gone, and its watch with it
            self._folders.pop(watch, None)
            return False
        folder = self._folders.get(watch)
        if folder in self._places:
            return name.startswith((_GENERATORS, _CONTROL))
        return folder is not None

    def _follow(self) -> None:
        """Watch the folders that came since; to watch one again changes nothing."""
        for folder in self._wanted():
            with contextlib.suppress(OSError):  # it is not there, or gone again
                self._add(folder)

    def _wanted(self) -> Iterator[Path]:
        for place in self._places:
            yield place
            control = place / _CONTROL
            yield control
            with contextlib.suppress(OSError):
                names = sorted(os.listdir(control))
                yield from (control / name for name in names[:_FOLDERS_LIMIT])

    def _add(self, folder: Path) -> None:
        watch = _libc.inotify_add_watch(self._fd, os.fsencode(folder), _MASK)
        if watch < 0:
            raise _error(str(folder))
        self._folders[watch] = folder


def _events(data: bytes) -> Iterator[tuple[int, int, str]]:
    at = 0
    while at < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield watch, mask, os.fsdecode(data[at : at + length].split(b"\0", 1)[0])
        at += length


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    if number == errno.ENOSPC:
        return OSError(number, "the user's limit of inotify watches is reached", what)
    return OSError(number, os.strerror(number), what)
