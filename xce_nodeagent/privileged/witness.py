"""The witness: looks who holds a device open, or has bound a port.

It reads /proc and writes nothing. What it meets there was arranged by the jobs themselves, so:

- A descriptor's file is looked at with AT_STATX_DONT_SYNC: a plain stat(2) asks the file's owner
  where that is a FUSE daemon, and a job's daemon may never answer.
- Where a file's owner refuses to be asked (FUSE is for its own user alone), the next descriptor is
  looked at, and the process counts as hidden as well.
- Threads may have descriptor tables of their own, and the first thread may have ended: every table
  is looked at, once (kcmp(2) tells tables apart).

A device that is only mapped, with its descriptor closed, is not seen.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from xce_nodeagent.model import name
from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.syscall import call

SEEN_LIMIT = 1000
"""Holders in one answer, which must fit into a message."""

TABLES_LIMIT = 256
"""Descriptor tables of one process that are looked at: each thread may have one of its own."""

_AT_STATX_DONT_SYNC = 0x4000
_STATX_TYPE_INO = 0x101  # STATX_TYPE | STATX_INO
_KCMP_FILES = 2
_TABLES = (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07"))
"""Files of /proc/net and the state that means bound there: TCP_LISTEN, and TCP_CLOSE, which is
what a socket of UDP has that is not connected (include/net/tcp_states.h)."""

_GONE = (errno.ENOENT, errno.ESRCH)


class Socket(NamedTuple):
    """A bound socket, as /proc/net shows it."""

    inode: int
    uid: int
    what: str


class Witness:
    """Answers `Look`."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._buffer = ctypes.create_string_buffer(256)  # struct statx

    def handle(self, request: ops.Look, fds: Sequence[int]) -> ops.WitnessAnswer:
        """Look through all processes but this one.

        A port that is bound by nobody who can be seen (the kernel itself, or a hidden process)
        is answered with pid 0.
        """
        if fds:
            raise Violation("Look came with a descriptor")
        numbers: dict[tuple[str, int, int], str] = {
            (device.type, device.major, device.minor): str(device) for device in request.devices
        }
        sockets = {bound.inode: bound for bound in self.bound(frozenset(request.ports))}
        seen: list[ops.Seen] = []
        hidden = 0
        unseen = set(sockets)
        for pid in self._pids():
            try:
                held, whole = self._held(pid, numbers, sockets)
                hidden += not whole
                if not held:
                    continue
                unseen -= {inode for inode, _ in held}
                about = f"{self._proc}/{pid}"
                uid, comm = os.stat(about).st_uid, Path(about, "comm").read_bytes()
            except OSError as error:
                hidden += error.errno not in _GONE
                continue
            called = name.printable(comm.decode("utf-8", "replace").rstrip("\n"))
            seen += [ops.Seen(pid, uid, called, what) for what in sorted({w for _, w in held})]
        orphans = {(sockets[inode].uid, sockets[inode].what) for inode in unseen}
        seen += [ops.Seen(0, uid, "", what) for uid, what in sorted(orphans)]
        return ops.Looked(tuple(seen[:SEEN_LIMIT]), hidden)

    def close(self) -> None:
        """There is nothing to let go of."""

    def bound(self, ports: frozenset[int]) -> Iterator[Socket]:
        """Give the sockets of our network namespace that are bound to one of these ports."""
        if not ports:
            return
        for table, state in _TABLES:
            try:
                lines = Path(self._proc, "net", table).read_text("utf-8").splitlines()
            except FileNotFoundError:  # a kernel without IPv6
                continue
            for line in lines[1:]:
                fields = line.split()
                port = int(fields[1].rpartition(":")[2], 16)
                if port in ports and fields[3] == state:
                    what = f"{table.removesuffix('6')} {port}"
                    yield Socket(int(fields[9]), int(fields[7]), what)

    def _pids(self) -> Iterator[int]:
        own = os.getpid()
        with os.scandir(self._proc) as entries:
            for entry in entries:
                if entry.name.isdigit() and (pid := int(entry.name)) != own:
                    yield pid

    def _held(
        self, pid: int, numbers: dict[tuple[str, int, int], str], sockets: dict[int, Socket]
    ) -> tuple[set[tuple[int, str]], bool]:
        """Give what a process holds, with the inode of a socket, and 0 for a device.

        And whether all of it could be looked at.
        """
        held: set[tuple[int, str]] = set()
        whole = True
        for before, table in enumerate(self._tables(pid)):
            if before == TABLES_LIMIT:
                return held, False
            try:
                names = os.listdir(table)
            except OSError as error:
                if error.errno in _GONE:  # this thread has ended; others may have not
                    continue
                raise
            for number in names:
                path = f"{table}/{number}"
                try:
                    mode, inode, major, minor = self._statx(path)
                except OSError as error:
                    whole = whole and error.errno in _GONE  # it was closed meanwhile
                    continue
                if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                    kind = "c" if stat.S_ISCHR(mode) else "b"
                    if (what := numbers.get((kind, major, minor))) is not None:
                        held.add((0, what))
                # A socket's file somewhere may have the same inode, in its own file system.
                elif (
                    stat.S_ISSOCK(mode)
                    and (found := sockets.get(inode)) is not None
                    and _link(path) == f"socket:[{inode}]"
                ):
                    held.add((inode, found.what))
        return held, whole

    def _tables(self, pid: int) -> Iterator[str]:
        """Give one folder of descriptors for each descriptor table of a process."""
        threads = [int(name) for name in os.listdir(f"{self._proc}/{pid}/task")]
        # One thread for each table, in the order that kcmp has for tables.
        known: list[int] = []
        for thread in threads:
            try:
                place, new = self._place(thread, known)
            except OSError:  # a kernel without kcmp, or one of them has ended: look at it anyway
                yield f"{self._proc}/{pid}/task/{thread}/fd"
                known = [one for one in known if os.path.exists(f"{self._proc}/{pid}/task/{one}")]
                continue
            if new:
                known.insert(place, thread)
                yield f"{self._proc}/{pid}/task/{thread}/fd"

    @staticmethod
    def _place(thread: int, known: list[int]) -> tuple[int, bool]:
        """Find a thread's table among those that are known: where it belongs, and if it is new."""
        low, high = 0, len(known)
        while low < high:
            middle = (low + high) // 2
            # kcmp(2): 0 is the same, 1 less, 2 more, 3 neither: then there is no order to use.
            order = call("kcmp", thread, known[middle], _KCMP_FILES, 0, 0)
            if order == 0:
                return middle, False
            low, high = (low, middle) if order == 1 else (middle + 1, high)
        return low, True

    def _statx(self, path: str) -> tuple[int, int, int, int]:
        """Give mode, inode, and the numbers of the device that the file is, if it is one."""
        call("statx", -100, path.encode(), _AT_STATX_DONT_SYNC, _STATX_TYPE_INO, self._buffer)
        raw = self._buffer.raw
        (mode,) = struct.unpack_from("=H", raw, 28)
        (inode,) = struct.unpack_from("=Q", raw, 32)
        major, minor = struct.unpack_from("=II", raw, 128)
        return mode, inode, major, minor


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # it was closed meanwhile
