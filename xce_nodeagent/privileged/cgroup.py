"""One cgroup, opened: its marks, who is in it, its sub-cgroups, its removal.

Everything goes through the directory's descriptor, so that a path which is swapped under our
hands changes nothing. `roots.py` says which cgroups may be opened at all.

The marks are extended attributes in the `trusted` namespace, which only CAP_SYS_ADMIN in the
first user namespace may read or write (xattr(7)); a job can forge `user.*`, but not these.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from xce_nodeagent.errors import exhausted
from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.model.rule import Rule
from xce_nodeagent.privileged import bpf
from xce_nodeagent.privileged.label import Label

BINDING = "trusted.xce.binding"
"""Whose the cgroup is, whether that one was released, and its record; see label.py."""
GRANTS = "trusted.xce.grants"
"""What was granted, where the kernel does not show it (cgroup v1, a program per job)."""
OTHERS = "trusted.xce.others"
"""Who judged its devices beside us when it was bound (mask.py)."""
HOME = "trusted.xce.home"
"""The jobs' home was made by a binder, which may remove it."""

PIDS_LIMIT = 64
"""Pids that an answer names."""

WALK_LIMIT = 1024
"""Sub-cgroups that we look into at once. A job that was given its cgroup can make any number, and
nobody else is served meanwhile."""

REMOVE_LIMIT = 10_000
"""Sub-cgroups that are removed at once, with the cgroup that they are in."""

_PATH_LIMIT = 4096
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
        label = self.label()
        return None if label is None else label.mark

    def label(self) -> Label | None:
        """Give all that is known of the binding that has this cgroup; None when nobody has it."""
        value = self._attribute(BINDING)
        return None if value is None else Label.read(value)

    def set_label(self, label: Label) -> None:
        """Mark the cgroup as a binding's, with its record."""
        os.setxattr(self.fd, BINDING, label.value())

    def release_label(self) -> None:
        """Say on the cgroup that its grants are taken back, for good."""
        label = self.label()
        if label is not None and not label.released:
            self.set_label(label._replace(released=True))

    def drop_mark(self) -> None:
        """Take the binding's marks away."""
        for name in (GRANTS, OTHERS, BINDING):
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
        """Say whether a process is, or may be, in the cgroup or below it. Zombies do not count."""
        if self.ref.backend == "cgroup2":
            return "populated 1" in self.read("cgroup.events")
        return self.occupants()[0] is not False

    def pids(self) -> tuple[int, ...]:
        """Name the processes in the cgroup and below it, 64 at most; see `occupants`."""
        return self.occupants()[1]

    def occupants(self) -> tuple[bool | None, tuple[int, ...]]:
        """Say whether a process is in the cgroup or below it, and name those, 64 at most.

        cgroup v2 says the first by itself. In v1 it is found out by looking into the sub-cgroups;
        None is unknown: WALK_LIMIT were looked into, and there are more. Names are what could be
        found in as many. A process of another pid namespace shows as 0 and cannot be named.
        """
        v2 = self.ref.backend == "cgroup2"
        if v2 and not self.populated():
            return False, ()
        found: set[int] = set()
        whole = False
        try:
            found.update(self._procs())
            for number, below in enumerate(self.descendants(WALK_LIMIT + 1)):
                if len(found) >= PIDS_LIMIT or number == WALK_LIMIT:
                    break
                found.update(below._procs())  # noqa: SLF001  # the same class
            else:
                whole = True
        except OSError as error:
            if exhausted(error) or (not v2 and not found):
                raise
        populated = True if v2 or found else False if whole else None
        return populated, tuple(sorted(found - {0})[:PIDS_LIMIT])

    def _procs(self) -> list[int]:
        try:
            fd = os.open("cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd)
            with open(fd, encoding="ascii") as file:
                return [int(line) for line in itertools.islice(file, PIDS_LIMIT + 1)]
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
        for name in _folders(self.fd, sys.maxsize):
            try:
                fd = os.open(name, _DIRECTORY, dir_fd=self.fd)
            except FileNotFoundError:
                continue  # removed since it was listed
            ref = CgroupRef(self.ref.backend, f"{self.ref.path}/{name}")
            with Cgroup(ref, fd, self.fd, name) as child:
                yield child

    def descendants(
        self, limit: int = WALK_LIMIT, *, enter: Callable[[Cgroup], bool] = lambda _: True
    ) -> Iterator[Cgroup]:
        """Open what is below it, each before what is below that, and `limit` of them at most.

        Each is closed when the next one is asked for. What is below one is left out where `enter`
        says no. Who must know whether all were seen asks for one more than it takes.
        """
        for below in self._walk(limit, enter):
            if isinstance(below, Cgroup):
                yield below

    def _walk(
        self, limit: int, enter: Callable[[Cgroup], bool] = lambda _: True
    ) -> Iterator[Cgroup | tuple[int, str]]:
        """Give each cgroup below when it is come to, and its parent and name when it is left.

        A job can nest thousands, so this holds two descriptors at any depth: the way back is
        `..`, and that is the folder it came from, because the kernel moves no cgroup to another
        parent (kernel/cgroup/cgroup-v1.c, cgroup1_rename; v2 renames none).
        """
        fd = os.dup(self.fd)
        try:
            trail = [("", self.ref.path, _folders(fd, limit))]
            while True:
                name, path, names = trail[-1]
                if not names or limit <= 0:
                    trail.pop()
                    if not trail:
                        return
                    fd = _step(fd, "..")
                    yield fd, name
                    continue
                name = names.pop()
                try:
                    below = os.open(name, _DIRECTORY, dir_fd=fd)
                except FileNotFoundError:
                    continue  # removed since it was listed
                limit -= 1
                # What is deeper than any path can be has no use for one.
                path = f"{path}/{name}" if len(path) < _PATH_LIMIT else path
                with Cgroup(CgroupRef(self.ref.backend, path), below, fd, name) as child:
                    yield child
                    inside = _folders(below, limit) if enter(child) else []
                    trail.append((name, path, inside))
                    fd = _step(fd, name, below)
        finally:
            os.close(fd)

    def remove(self) -> bool:
        """Remove the cgroup with its sub-cgroups; False when a process is in it or below it.

        A cgroup that is gone already counts as removed. False as well when there are more
        sub-cgroups than REMOVE_LIMIT; then as many are removed.
        """
        if self.remove_alone():
            return True
        if self.occupants()[0]:
            return False
        self.clear()
        return self.remove_alone()

    def clear(self) -> None:
        """Remove the empty ones of its sub-cgroups, from below, REMOVE_LIMIT of them at most."""
        for left in self._walk(REMOVE_LIMIT):
            if not isinstance(left, Cgroup):
                _rmdir(left[1], left[0])

    def remove_alone(self) -> bool:
        """Remove the cgroup if nothing is in it; True when it is gone."""
        return _rmdir(self.name, self.parent)


def _folders(fd: int, limit: int) -> list[str]:
    """List sub-cgroups, `limit` at most; none when the cgroup was removed."""
    try:
        with os.scandir(fd) as entries:
            folders = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            return list(itertools.islice(folders, max(limit, 0)))
    except (FileNotFoundError, ProcessLookupError):
        return []


def _step(fd: int, name: str, opened: int = -1) -> int:
    """Go to another folder, `opened` already or not; give a descriptor in the place of this."""
    other = os.open(name, _DIRECTORY, dir_fd=fd) if opened < 0 else os.dup(opened)
    os.close(fd)
    return other


def _rmdir(name: str, parent: int) -> bool:
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
            return False
        raise
    return True
