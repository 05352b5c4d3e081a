"""inotify(7), through ctypes: folders whose names come and go."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

_CREATE, _DELETE, _MOVED, _CLOSE_WRITE, _SELF, _ATTRIB = 0x100, 0x200, 0xC0, 0x8, 0xC00, 0x4
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_ONLYDIR = 0x01000000
_MASK = _CREATE | _DELETE | _MOVED | _CLOSE_WRITE | _SELF | _ONLYDIR
_ALL = 0xFFFF_FFFF
_EVENT = struct.Struct("=iIII")
_BUFFER = 65536

_libc = ctypes.CDLL(None, use_errno=True)


class Inotify:
    """Folders that are watched. Raise OSError where the kernel has none to spare."""

    def __init__(self) -> None:
        fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            raise _error("inotify_init1")
        self._fd: int = fd
        self._folders: dict[int, Path] = {}

    def fileno(self) -> int:
        """Give the descriptor to wait for."""
        return self._fd

    def close(self) -> None:
        """Stop."""
        os.close(self._fd)

    def add(self, folder: Path, *, modes: bool = False, written: bool = True) -> None:
        """Watch a folder; again changes nothing.

        `modes`: also whose its files are. Not `written`: only what comes and goes.

        Raise OSError where it is not there, or is no folder.
        """
        mask = _MASK & (_ALL if written else ~_CLOSE_WRITE) | (_ATTRIB if modes else 0)
        watch = _libc.inotify_add_watch(self._fd, os.fsencode(folder), mask)
        if watch < 0:
            raise _error(str(folder))
        self._folders[watch] = folder

    def read(self) -> Iterator[tuple[Path | None, str]]:
        """Take all events that are there: the folder, and the name in it; "" is the folder itself.

        A queue that overflowed (IN_Q_OVERFLOW) gives None: anything may have changed.
        """
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._fd, _BUFFER):
                for watch, mask, name in _events(data):
                    if mask & _OVERFLOW:
                        yield None, ""
                    elif mask & _IGNORED:  # the folder is gone, and its watch with it
                        self._folders.pop(watch, None)
                    elif (folder := self._folders.get(watch)) is not None:
                        yield folder, name


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
