"""A folder as the root of a machine: what is opened below it stays below it.

openat2(2) with RESOLVE_BENEATH (Linux 5.6) lets the kernel see to that, in one call instead of one
for each part of a path. Where it refuses (an absolute link, an older kernel, a container's filter)
every link is followed by hand, and the end is compared with the root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

_OPENAT2 = 437  # on every architecture of Linux but Alpha
_HOW = struct.Struct("=QQQ")  # struct open_how, linux/openat2.h: flags, mode, resolve
_RESOLVE_NO_MAGICLINKS, _RESOLVE_BENEATH = 0x02, 0x08
_UNKNOWN = frozenset({errno.ENOSYS, errno.EPERM})
_REFUSED = frozenset({errno.EXDEV, errno.EAGAIN, errno.ELOOP})

# Nothing that is read here is to be waited for, nor a terminal of ours.
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

_libc = ctypes.CDLL(None, use_errno=True)
_GONE = " (deleted)"  # what proc(5) says behind the name of a file that has none any more


class Tree:
    """The files below a folder. This machine (`/`) has no outside: links are followed freely."""

    def __init__(self, root: str) -> None:
        self.real = os.path.realpath(root)
        self._prefix = "" if self.real == "/" else self.real
        self._root: _Descriptor | None = None
        self._by_hand = False

    def open(self, name: str, flags: int) -> int:
        """Open a file by its path on the machine; raise OSError where there is none inside."""
        inside = name.lstrip("/")
        if not self._prefix:
            return os.open("/" + inside, flags | (os.O_CLOEXEC if flags & os.O_PATH else _FLAGS))
        place = self._place(name, inside or ".")
        if flags & os.O_PATH:
            return place
        try:
            kind = os.fstat(place).st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise OSError(errno.ENXIO, "it is neither a file nor a folder", name)
            return os.open(f"/proc/self/fd/{place}", flags | _FLAGS)
        finally:
            os.close(place)

    def _place(self, name: str, inside: str) -> int:
        """Find a file without opening it: a device may do something where it is opened."""
        if not self._by_hand:
            try:
                return self._beneath(inside)
            except OSError as error:
                self._by_hand = error.errno in _UNKNOWN
                if not self._by_hand and error.errno not in _REFUSED:
                    raise
        path = os.path.realpath(f"{self.real}/{inside}", strict=True)
        if path != self.real and not path.startswith(f"{self.real}/"):
            raise OSError(errno.EXDEV, "it leads out of the recorded machine", name)
        return os.open(path, os.O_PATH | os.O_CLOEXEC)

    def where(self, name: str) -> str:
        """Give the path on the machine with every link followed; raise OSError where it is broken.

        The kernel has followed them when the file is open, and proc(5) tells where that led.
        """
        fd = self.open(name, os.O_PATH)
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        if path.endswith(_GONE) or not path.startswith(f"{self._prefix}/"):
            raise OSError(errno.ENOENT, "it is gone", name)
        return path.removeprefix(self._prefix)

    def _beneath(self, inside: str) -> int:
        if self._root is None:
            self._root = _Descriptor(os.open(self.real, os.O_PATH | os.O_CLOEXEC))
        how = _HOW.pack(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
        fd: int = _libc.syscall(
            _OPENAT2, self._root.fd, inside.encode("utf-8", "surrogateescape"), how, _HOW.size
        )
        if fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), inside)
        return fd


class _Descriptor:
    """Closed with the last who has it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)
