"""What is above a cgroup: the way to it, whose its folders are, and which of them is bound."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Collection, Sequence

from xce_nodeagent.errors import BadCgroup
from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.privileged.cgroup import Cgroup

_OPENAT2 = 437  # __NR_openat2, the same on every architecture (kernel 5.6)
_RESOLVE = 0x1 | 0x2 | 0x4 | 0x8  # NO_XDEV | NO_MAGICLINKS | NO_SYMLINKS | BENEATH
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_TRIES = 16  # openat2 answers EAGAIN when something was renamed meanwhile
_DOORS = (".", "cgroup.procs", "cgroup.threads", "tasks")  # ways for a process to change its cgroup

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def openat2(root: int, path: str) -> int:
    """Open a folder below a folder, over no link of any kind, on the same file system."""
    how = (ctypes.c_char * 24).from_buffer_copy(struct.pack("=QQQ", _DIRECTORY, 0, _RESOLVE))
    name = path.encode()
    for _ in range(_TRIES):
        fd: int = _syscall(_OPENAT2, root, name, how, len(how))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number), path)


def bearer(root: int, path: str, parts: Sequence[str]) -> tuple[str, str] | None:
    """Give the path and mark of the first folder on a way that is bound; None if none is.

    `root` is the descriptor of the folder in which the way starts, and `path` its path.
    """
    for depth in range(1, len(parts) + 1):
        inside = "/".join(parts[:depth])
        ref = CgroupRef("cgroup2", f"{path}/{inside}")  # of either kind: its mark is read only
        with Cgroup(ref, openat2(root, inside), root, inside) as cgroup:
            if (mark := cgroup.mark()) is not None:
                return ref.path, mark
    return None


def check_owners(cgroup: Cgroup, owners: Collection[int]) -> None:
    """Raise BadCgroup when a user could take processes out of the cgroup, or rename it.

    Who may write to a folder above it could make a sibling there, and with its cgroup.procs move
    a process over, out of the fence; on v1 they could rename it. So each folder above, up to and
    with the allowed root, must belong to one of `owners` (root, and who may prepare), and nobody
    else may write to it. A worker that runs as its own user in a delegated subtree is listed in
    `[access] prepare_uids`. What this cannot see is a cgroup of v1 that is delegated elsewhere in
    its hierarchy: v1 has no rule that keeps a process inside.
    """
    root = cgroup.ref.path.removesuffix(cgroup.name)
    parts = cgroup.name.split("/")[:-1]
    for depth in range(len(parts) + 1):
        inside = "/".join(parts[:depth])
        fd = openat2(cgroup.parent, inside or ".")
        try:
            fault = loose(fd, owners)
        finally:
            os.close(fd)
        if fault:
            path = (root + inside).rstrip("/")
            raise BadCgroup(
                f"cgroup {cgroup.ref.path}: in {path}, above it, {fault}, so a process could get"
                " out of it: name a cgroup above which all belongs to root, or to a uid in"
                " `[access] prepare_uids`, and nobody else may write",
                cgroup=cgroup.ref.path,
                parent=path,
            )


def loose(fd: int, owners: Collection[int]) -> str:
    """Say what of a folder somebody else may write to; "" when nothing."""
    for name in _DOORS:
        try:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:  # a root cgroup lacks some, and each kind the other's
            continue
        what = "the folder itself" if name == "." else name
        if found.st_uid not in owners:
            return f"{what} is owned by uid {found.st_uid}"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{what} can be written to by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""
