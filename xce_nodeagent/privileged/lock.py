"""The lock of the live binder: no stale hand on the fence.

A binder that stalls may wake up after its spare has taken over, and repeat an old grant. So a
successor ends its predecessor, waits for its exit, and acts only then.

It is a record lock (fcntl(2), F_SETLK), because the kernel itself says whose it is (F_GETLK). A pid
that the holder wrote into the file could be its predecessor's, for a moment after it took the lock;
and by then that pid may belong to anybody. A record lock is not inherited by a child, and is gone
when its process is: the kernel drops it after the process has made its last system call.

Two rules come with record locks: a process never opens the file twice (closing any descriptor of
the file drops its lock), and the file is never removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import stat
import struct
import time
from types import TracebackType
from typing import Self

from xce_nodeagent.errors import Enforcement

_FLOCK = "@hhqqi0q"  # struct flock of 64-bit Linux: type, whence, start, length, pid, padding


class Lock:
    """The lock, held. It is dropped by `close`, or by the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Drop the lock; more than once does no harm."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def take(path: str, patience: float) -> Lock:
    """Take the lock, after ending whoever holds it, within `patience` seconds.

    Raise Enforcement when the holder cannot be ended (it hangs in the kernel, which is a fault of
    the node), or when the file is not what it should be.
    """
    descriptor = _open(path)
    try:
        until = time.monotonic() + patience
        while not _try(descriptor):
            _end_holder(descriptor, path, until)
        # For people; nobody acts on it.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return Lock(descriptor)


def _open(path: str) -> int:
    # The folder may belong to the agent's user, who must not be able to let us write to another
    # file by a link. O_NONBLOCK: a FIFO in its place must not hold us up.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise Enforcement(
            f"{path}: the binder's lock cannot be opened: {error.strerror};"
            " expected a plain file that it may create",
            path=path,
        ) from None
    found = os.fstat(descriptor)
    if (
        not stat.S_ISREG(found.st_mode)
        or found.st_uid != os.geteuid()
        or found.st_nlink > 1
        or found.st_mode & 0o077
    ):
        os.close(descriptor)
        raise Enforcement(
            f"{path}: not the binder's lock: expected a plain file of uid {os.geteuid()} with"
            " mode 0600 and one name; look who made it, and remove it while no binder runs",
            path=path,
        )
    return descriptor


def _try(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # fcntl(2): EAGAIN or EACCES, both mean held
        return False
    return True


def holder(descriptor: int) -> int:
    """Give the pid of the process that holds the lock of an open file; 0 when nobody does.

    One in another pid namespace has no number here: -1.
    """
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    if kind == fcntl.F_UNLCK:
        return 0
    return pid if pid > 0 else -1


def _end_holder(descriptor: int, path: str, until: float) -> None:
    """Kill the holder and wait for its exit; return early when there is another, or none."""
    if time.monotonic() >= until:
        raise Enforcement(f"{path}: others keep taking the lock; does a second agent run here?")
    pid = holder(descriptor)
    if pid == 0:
        return
    if pid < 0:
        raise Enforcement(f"{path}: held by a process of another pid namespace; end it there")
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Asked again: a process that holds the lock now, and has this pid, is the one behind the
        # pidfd, or the one behind the pidfd is gone and cannot be hit.
        if holder(descriptor) != pid:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            raise Enforcement(
                f"{path}: the binder before, pid {pid}, does not end when it is killed;"
                " it hangs in the kernel: reboot this node",
                pid=pid,
            )
    except PermissionError:
        raise Enforcement(
            f"{path}: held by pid {pid}, which we may not kill; expected a binder of our own uid",
            pid=pid,
        ) from None
    finally:
        os.close(pidfd)
