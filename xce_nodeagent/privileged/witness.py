"""The witness: looks who holds a device open, or has bound a port.

It reads /proc and writes nothing. What it meets there was arranged by the jobs themselves, so:

- A descriptor's file is looked at with AT_STATX_DONT_SYNC: a plain stat(2) asks the file's owner
  where that is a FUSE daemon, and a job's daemon may never answer.
- Where a file's owner refuses to be asked (FUSE is for its own user alone), the next descriptor is
  looked at, and the process counts as hidden as well.
- Threads may have descriptor tables of their own, and the first thread may have ended: every table
  is looked at, once (kcmp(2) tells tables apart).
- A device that is only mapped, with its descriptor closed, is found by `mapping.py`.
- A descriptor with O_PATH is told apart: to do anything with it, the device must be opened anew.

What nobody can see: of what the descriptors are that lie in a socket's queue, sent and not yet
received (the kernel tells their number alone), and files that are registered with an io_uring and
closed since. Who receives the one is seen from then on.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import structs

from xce_nodeagent.errors import exhausted
from xce_nodeagent.host.cgroup import hierarchies
from xce_nodeagent.model import name
from xce_nodeagent.privileged import ops, syscall
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.listening import Listeners, Socket
from xce_nodeagent.privileged.mapping import Maps, Number
from xce_nodeagent.privileged.roots import cgroups_of
from xce_nodeagent.privileged.syscall import call

SEEN_LIMIT = 1000
"""Holders in one answer, which must fit into a message."""

UNREAD_LIMIT = 256

HOLDERS_LIMIT = 32
"""Holders of one thing that are told, so that those of others have room."""

TABLES_LIMIT = 256
"""Descriptor tables of one process that are looked at: each thread may have one of its own."""

SECONDS = 20.0
"""For one look. A job can open millions of descriptors; what is not seen by then is hidden."""

_AT_STATX_DONT_SYNC = 0x4000
_STATX_TYPE_INO = 0x101  # STATX_TYPE | STATX_INO
_KCMP_FILES = 2
_O_PATH = 0o10000000  # asm-generic/fcntl.h

_CHARACTER, _BLOCK, _SOCKET = stat.S_IFCHR >> 12, stat.S_IFBLK >> 12, stat.S_IFSOCK >> 12

_LISTENER = b"xce-listener\n"

_GONE = (errno.ENOENT, errno.ESRCH)

_MODE_INO = struct.Struct("=28xH2xQ")  # struct statx: stx_mode, stx_ino
_NUMBER = struct.Struct("=II")  # stx_rdev_major, stx_rdev_minor
_NUMBER_AT = 128

What = tuple[int, str, str]
"""What a process holds: the inode of a socket, or 0; what it is; how it has it."""


class Witness:
    """Answers `Look`."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._file = File()
        # It has one of its own: it looks at the same time.
        self._maps = Maps(proc, File().number)

    def handle(self, request: ops.Look, fds: Sequence[int]) -> ops.WitnessAnswer:
        """Look through all processes but this one.

        A port that is bound by nobody who can be seen (the kernel itself, or a hidden process)
        is answered with pid 0.
        """
        if fds:
            raise Violation("Look came with a descriptor")
        until, spent = time.monotonic() + SECONDS, time.process_time()
        numbers: dict[Number, str] = {
            (device.type, device.major, device.minor): str(device) for device in request.devices
        }
        listeners = Listeners(self._proc, frozenset(request.ports))
        self._queued = 0
        self._queues = request.queues
        pids = list(self._pids())
        held: dict[int, set[What]] = {}
        hidden: set[int] = set()
        for place, pid in enumerate(pids):
            if time.monotonic() >= until:
                hidden.update(pids[place:])
                break
            listeners.meet(pid)
            try:
                found, whole = self._held(pid, numbers, listeners.by_inode)
            except OSError as error:
                if exhausted(error):
                    raise  # it would say of everybody that nobody can look
                if error.errno not in _GONE:
                    hidden.add(pid)
                continue
            if not whole:
                hidden.add(pid)
            if found:
                held[pid] = found
        if numbers:
            mapped, unread = self._maps.look(pids, numbers.keys(), until)
            hidden |= unread
            for pid, devices in mapped.items():
                mine = held.setdefault(pid, set())
                open_ones = {what for _, what, how in mine if how == "open"}
                mine |= {(0, numbers[d], "mapped") for d in devices if numbers[d] not in open_ones}
        looked = self._told(request, held, hidden, listeners)
        cut = time.monotonic() >= until
        return structs.replace(looked, cut=cut, cpu=time.process_time() - spent)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _told(
        self,
        request: ops.Look,
        held: dict[int, set[What]],
        hidden: set[int],
        listeners: Listeners,
    ) -> ops.Looked:
        seen: list[ops.Seen] = []
        told: Counter[str] = Counter()
        unseen = set(listeners.by_inode)
        inside = _Inside(self._proc, request)
        for pid, things in held.items():
            unseen -= {inode for inode, _, _ in things}
            about = f"{self._proc}/{pid}"
            try:
                own = inside.of(pid)
                uid, comm = os.stat(about).st_uid, Path(about, "comm").read_bytes()
                if comm == _LISTENER and _parent(about) == os.getppid():
                    continue  # a helper as we are ourselves, which has every card open
                started = _started(about)
            except OSError as error:
                if exhausted(error):
                    raise
                if error.errno not in _GONE:
                    hidden.add(pid)
                continue
            called = name.printable(comm.decode("utf-8", "replace").rstrip("\n"))
            for inode, what, how in sorted(things, key=lambda one: one[1:]):
                if what not in own and told[what] < HOLDERS_LIMIT:
                    told[what] += 1
                    where = listeners.by_inode[inode].namespace if inode else 0
                    # `how` is a word of ours, which the lists above have as plain text.
                    seen.append(ops.Seen(pid, uid, called, what, how, started, where))  # type: ignore[arg-type]
        orphans = {listeners.by_inode[inode][1:] for inode in unseen}
        seen += [
            ops.Seen(0, uid, "", what, namespace=where) for uid, what, where in sorted(orphans)
        ]
        unread = tuple(sorted(hidden)[:UNREAD_LIMIT])
        return ops.Looked(tuple(seen[:SEEN_LIMIT]), len(hidden), self._queued, unread=unread)

    def _pids(self) -> Iterator[int]:
        own = os.getpid()
        with os.scandir(self._proc) as entries:
            for entry in entries:
                if entry.name.isdigit() and (pid := int(entry.name)) != own:
                    yield pid

    def _held(
        self, pid: int, numbers: dict[Number, str], sockets: dict[int, Socket]
    ) -> tuple[set[What], bool]:
        """Give what a process holds, and whether all of it could be looked at."""
        held: set[What] = set()
        whole = True
        for before, table in enumerate(self._tables(pid)):
            if before == TABLES_LIMIT:
                return held, False
            try:
                folder = os.open(table, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as error:
                if error.errno in _GONE:  # this thread has ended; others may have not
                    continue
                raise
            try:
                whole = self._in(table, folder, numbers, sockets, held) and whole
            finally:
                os.close(folder)
        return held, whole

    def _in(
        self,
        table: str,
        folder: int,
        numbers: dict[Number, str],
        sockets: dict[int, Socket],
        held: set[What],
    ) -> bool:
        """Add what is held by one table of descriptors; say whether all could be looked at."""
        whole = True
        try:
            names = os.listdir(folder)
        except OSError as error:
            if error.errno in _GONE:
                return True
            raise
        for number in names:
            try:
                mode, inode = self._file.look(number, folder)
            except OSError as error:
                if exhausted(error):
                    raise
                whole = whole and error.errno in _GONE  # it was closed meanwhile
                continue
            kind = mode >> 12
            if kind in (_CHARACTER, _BLOCK):
                what = numbers.get(self._file.device(kind))
                if what is not None:
                    held.add((0, what, _how(table, number)))
            elif kind == _SOCKET:
                # A socket's file somewhere may have the same inode, in its own file system.
                if (found := sockets.get(inode)) is not None and (
                    _link(f"{table}/{number}") == f"socket:[{inode}]"
                ):
                    held.add((inode, found.what, "open"))
                if self._queues:
                    self._queued += _queued(table, number)
        return whole

    def _tables(self, pid: int) -> Iterator[str]:
        """Give one folder of descriptors for each descriptor table of a process."""
        threads = [int(name) for name in os.listdir(f"{self._proc}/{pid}/task")]
        # One thread for each table, in the order that kcmp has for tables.
        known: list[int] = []
        for thread in threads:
            try:
                place, new = self._place(thread, known)
            except OSError as error:
                if exhausted(error):
                    raise
                # A kernel without kcmp, or one of them has ended: look at it anyway.
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


class File:
    """Looks at one file after the other, by statx(2); a hundred thousand in a round."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(256)  # struct statx
        number = syscall.number("statx", syscall.machine())
        self._number = ctypes.c_long(number or 0)
        # A function object of its own, whose arguments are converted without being looked at.
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.argtypes = [
            ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_long, ctypes.c_long,
            ctypes.c_void_p,
        ]  # fmt: skip
        self._call.restype = ctypes.c_long

    def look(self, path: str, folder: int = -100) -> tuple[int, int]:
        """Give mode and inode of what is behind a path, from a folder on; raise OSError."""
        wanted, how = _STATX_TYPE_INO, _AT_STATX_DONT_SYNC
        if self._call(self._number, folder, path.encode(), how, wanted, self._buffer) < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"statx: {os.strerror(code)}", path)
        mode, inode = _MODE_INO.unpack_from(self._buffer)
        return mode, inode

    def device(self, kind: int) -> Number:
        """Give the device that was looked at last, by its kind."""
        major, minor = _NUMBER.unpack_from(self._buffer, _NUMBER_AT)
        return ("c" if kind == _CHARACTER else "b", major, minor)

    def number(self, path: str) -> Number | None:
        """Give the device behind a path; None for any other file. Raises OSError."""
        kind = self.look(path)[0] >> 12
        return self.device(kind) if kind in (_CHARACTER, _BLOCK) else None


class _Inside:
    """Tells who is in the cgroup of a device's owner."""

    def __init__(self, proc: str, request: ops.Look) -> None:
        self._proc = proc
        names = [str(device) for device in request.devices]
        self._owners = [
            (owner.cgroup, {names[place] for place in owner.devices if 0 <= place < len(names)})
            for owner in request.owners
        ]
        self._mounted = hierarchies() if self._owners else ()

    def of(self, pid: int) -> set[str]:
        """Give the devices that are a process's by right: those of the cgroups that it is in."""
        if not self._owners:
            return set()
        text = Path(self._proc, str(pid), "cgroup").read_text("utf-8", "replace")
        paths = [ref.path for ref in cgroups_of(text, self._mounted)]
        return {
            what
            for cgroup, devices in self._owners
            if any(path == cgroup or path.startswith(f"{cgroup}/") for path in paths)
            for what in devices
        }


def _parent(about: str) -> int:
    """Give the pid of a process's parent: field 4 (proc_pid_stat(5))."""
    text = Path(about, "stat").read_text("utf-8", "replace")
    return int(text.rpartition(")")[2].split()[4 - 3])


def _started(about: str) -> float:
    """Give when a process started, in seconds since the boot: field 22 (proc_pid_stat(5))."""
    text = Path(about, "stat").read_text("utf-8", "replace")
    return int(text.rpartition(")")[2].split()[22 - 3]) / os.sysconf("SC_CLK_TCK")


def _how(table: str, number: str) -> str:
    """Say how a device is open."""
    flags = _fdinfo(table, number, "flags:")
    return "path" if flags and int(flags, 8) & _O_PATH else "open"


def _queued(table: str, number: str) -> int:
    """Give how many descriptors wait in a socket's queue; the kernel tells it since 5.10."""
    count = _fdinfo(table, number, "scm_fds:")
    return int(count) if count else 0


def _fdinfo(table: str, number: str, field: str) -> str:
    try:
        text = Path(f"{table}info", number).read_text("utf-8", "replace")
    except OSError as error:
        if exhausted(error):
            raise  # of a device that is open it would be the last word
        return ""
    lines = (line for line in text.splitlines() if line.startswith(field))
    return next(lines, "").removeprefix(field).strip()


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError as error:
        if exhausted(error):
            raise
        return ""  # it was closed meanwhile
