"""One cgroup, opened: its marks, who is in it, its sub-cgroups, its removal.

Everything goes through the directory's descriptor, so that a path which is swapped under our
hands changes nothing. `roots.py` says which cgroups may be opened at all.

The marks are extended attributes in the `trusted` namespace, which only CAP_SYS_ADMIN in the
first user namespace may read or write (xattr(7)); a job can forge `user.*`, but not these.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from xce_nodeagent.errors import Enforcement
from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.model.rule import Rule
from xce_nodeagent.privileged import bpf

BINDING = "trusted.xce.binding"
"""Whose the cgroup is: the mark that Bind carries."""
GRANTS = "trusted.xce.grants"
"""What was granted, where the kernel does not show it (cgroup v1, a program per job)."""
HOME = "trusted.xce.home"
"""The jobs' home was made by a binder, which may remove it."""

PIDS_LIMIT = 64
"""Pids that an answer names."""

DEPTH_LIMIT = 64
"""Levels of sub-cgroups that we walk; each costs a descriptor. A job that was given its cgroup
could nest thousands, to make a walk fail: then the walk says so instead of running out."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Cgroup:
    """An open cgroup directory; close it, or use it in a `with`.

    `parent` is the descriptor of a folder above it, which the caller keeps open, and `name` the
    path from there. `id` is the kernel's id of the cgroup: on every kernel with bpf storage, it is
    the inode's number.
    """

    __slots__ = ("fd", "id", "name", "parent", "ref")

    def __init__(self, ref: CgroupRef, fd: int, parent: int, name: str) -> None:
        self.ref = ref
        self.fd = fd
        self.parent = parent
        self.name = name
        self.id = os.fstat(fd).st_ino

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    # ---- marks ------------------------------------------------------------------------------

    def mark(self) -> str | None:
        """Give the mark of the binding that has this cgroup; None when nobody has it."""
        value = self._attribute(BINDING)
        return None if value is None else value.decode("utf-8", "replace")

    def set_mark(self, mark: str) -> None:
        """Mark the cgroup as a binding's."""
        os.setxattr(self.fd, BINDING, mark.encode())

    def drop_mark(self) -> None:
        """Take the binding's marks away."""
        for name in (GRANTS, BINDING):
            with contextlib.suppress(OSError):
                os.removexattr(self.fd, name)

    def grants(self) -> tuple[Rule, ...]:
        """Give what was recorded; nothing when the record is absent or not ours."""
        value = self._attribute(GRANTS)
        try:
            return () if value is None else bpf.decode_grants(value)
        except ValueError:
            return ()

    def record(self, grants: tuple[Rule, ...]) -> None:
        """Record what is granted.

        The record must never promise more than is open: a restarted binder believes it. So what
        is about to be taken away is struck from it first, and what is given is added last.
        """
        os.setxattr(self.fd, GRANTS, bpf.encode_grants(grants, len(grants)))

    def made_as_home(self) -> bool:
        """Say whether a binder made this cgroup as the jobs' home."""
        return self._attribute(HOME) is not None

    def _attribute(self, name: str) -> bytes | None:
        try:
            return os.getxattr(self.fd, name)
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
                return None
            raise

    # ---- who is in it -----------------------------------------------------------------------

    def read(self, name: str) -> str:
        """Read one of the cgroup's files."""
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
        with open(fd, encoding="utf-8", errors="replace") as file:
            return file.read()

    def populated(self) -> bool:
        """Say whether a process is in the cgroup or below it. Zombies do not count.

        v1 shows nothing of a process in a pid namespace that we do not see (kernel/cgroup:
        pidlist_array_load); there only a refused removal tells of it.
        """
        if self.ref.backend == "cgroup2":
            return "populated 1" in self.read("cgroup.events")
        if self._procs():
            return True
        return any(below._procs() for below in self.descendants())  # noqa: SLF001  # the same class

    def pids(self) -> tuple[int, ...]:
        """Name the processes in the cgroup and below it, 64 at most.

        A process of another pid namespace shows as 0 and cannot be named.
        """
        found = set(self._procs())
        for below in self.descendants():
            if len(found) >= PIDS_LIMIT:
                break
            found.update(below._procs())  # noqa: SLF001  # the same class
        return tuple(sorted(found - {0})[:PIDS_LIMIT])

    def _procs(self) -> list[int]:
        try:
            return [int(word) for word in self.read("cgroup.procs").split()]
        except OSError as error:
            # A threaded cgroup of v2 has no processes of its own (EOPNOTSUPP): those of its
            # threads are listed by the domain above it. ENODEV, ENOENT: it was just removed.
            if error.errno in (errno.EOPNOTSUPP, errno.ENODEV, errno.ENOENT):
                return []
            raise

    def add(self, pid: int) -> None:
        """Move a process, with all its threads, into this cgroup."""
        fd = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            os.write(fd, str(pid).encode())
        finally:
            os.close(fd)

    # ---- below it ---------------------------------------------------------------------------

    def children(self) -> Iterator[Cgroup]:
        """Open each sub-cgroup in turn; it is closed when the next one is asked for."""
        with os.scandir(self.fd) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for name in names:
            try:
                fd = os.open(name, _DIRECTORY, dir_fd=self.fd)
            except FileNotFoundError:
                continue  # removed since it was listed
            ref = CgroupRef(self.ref.backend, f"{self.ref.path}/{name}")
            with Cgroup(ref, fd, self.fd, name) as child:
                yield child

    def descendants(self, depth: int = 1) -> Iterator[Cgroup]:
        """Open all that is below it, each before what is below that.

        Raises Enforcement when it is nested too deep to be walked.
        """
        if depth > DEPTH_LIMIT:
            raise Enforcement(
                f"cgroup {self.ref.path[:200]}… has more than {DEPTH_LIMIT} levels of sub-cgroups:"
                " end its processes and remove them by hand",
                cgroup=self.ref.path[:200],
            )
        try:
            for child in self.children():
                yield child
                yield from child.descendants(depth + 1)
        except (FileNotFoundError, ProcessLookupError):
            return  # removed while it was walked

    def remove(self) -> bool:
        """Remove the cgroup with its sub-cgroups; False when a process is in it or below it.

        A cgroup that is gone already counts as removed.
        """
        if self._rmdir():
            return True
        if self.populated():
            return False
        # From below: a cgroup can be removed once nothing is under it.
        self._remove_children(1)
        return self._rmdir()

    def _remove_children(self, depth: int) -> None:
        for child in self.children():
            if not child._rmdir() and depth < DEPTH_LIMIT:  # noqa: SLF001  # the same class
                child._remove_children(depth + 1)  # noqa: SLF001  # the same class
                child._rmdir()  # noqa: SLF001  # the same class

    def _rmdir(self) -> bool:
        try:
            os.rmdir(self.name, dir_fd=self.parent)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                return False
            raise
        return True
