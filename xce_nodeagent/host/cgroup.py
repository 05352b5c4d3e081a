"""What an unprivileged process can see of cgroups: which kind, who is in it, where a process is.

The binder checks all of it again by itself; here it serves for early, precise answers and display.
"""

from __future__ import annotations

import itertools
import os
import select
from pathlib import Path
from typing import NamedTuple

from xce_nodeagent.errors import BadCgroup, exhausted
from xce_nodeagent.model.plan import Backend, CgroupRef

FOLDERS_LIMIT = 256
"""Folders that are looked into to see whether anybody is in a cgroup of v1."""


class Mount(NamedTuple):
    """A mounted hierarchy. `root` is the cgroup that its mount point shows, usually `/`."""

    backend: Backend
    point: str
    root: str
    device: tuple[int, int]


def hierarchies(mountinfo: str | None = None) -> tuple[Mount, ...]:
    """Read the hierarchies that can fence devices: those of v2, and v1's with `devices`.

    The text is /proc/self/mountinfo, which is read when it is not given. Fields 3, 4 and 5 are
    the device, the root and the mount point; after `-` come the type, the source and the options
    (proc(5)). Space, tab, newline and backslash are written in octal.
    """
    if mountinfo is None:
        mountinfo = Path("/proc/self/mountinfo").read_text("utf-8")
    found: list[Mount] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(" "), right.split(" ", 2)
        backend: Backend
        if kind == "cgroup2":
            backend = "cgroup2"
        elif kind == "cgroup" and "devices" in options.split(","):
            backend = "cgroup1"
        else:
            continue
        major, _, minor = fields[2].partition(":")
        device = (int(major), int(minor))
        found.append(Mount(backend, _plain(fields[4]), _plain(fields[3]), device))
    return tuple(found)


def _plain(field: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


def mounts(mountinfo: str) -> dict[str, str]:
    """Give where the first hierarchy of each kind is mounted."""
    points: dict[str, str] = {}
    for mount in hierarchies(mountinfo):
        points.setdefault(mount.backend, mount.point)
    return points


def at(path: str) -> CgroupRef:
    """Say which kind of cgroup a path is; raise BadCgroup when it is none, or goes over links."""
    try:
        real = os.path.realpath(path, strict=True)
    except OSError as error:
        if exhausted(error):
            raise
        raise BadCgroup(
            f"cgroup {path}: {error.strerror}; make it before prepare, or leave --cgroup away",
            cgroup=path,
        ) from None
    if real != path:
        raise BadCgroup(
            f"cgroup {path}: it goes over a symbolic link to {real}; name it without links",
            cgroup=path,
        )
    # Every cgroup of v2 has cgroup.controllers (kernel: admin-guide/cgroup-v2.rst), every one
    # with v1's devices controller has devices.list, and neither file exists anywhere else.
    if os.path.exists(f"{path}/cgroup.controllers"):
        return CgroupRef("cgroup2", path)
    if os.path.exists(f"{path}/devices.list"):
        return CgroupRef("cgroup1", path)
    raise BadCgroup(
        f"{path} is no cgroup of v2 and has no v1 devices controller; name one of these",
        cgroup=path,
    )


def of_process(pid: int, mounted: dict[str, str]) -> CgroupRef:
    """Give the cgroup that a process is in: its v2 one unless that is the root, else v1 devices.

    Read from /proc/PID/cgroup (cgroups(7)). Raises BadCgroup when there is no such process, or
    it is in root cgroups only.

    A pidfd keeps no number from being given anew. But one that was opened first and tells, after
    the reading, that its process has not ended shows that what was read is of that process.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError) as error:
        if exhausted(error):
            raise
        raise BadCgroup(f"process {pid}: {error}", pid=pid) from None
    try:
        found = _of_process(pid, mounted)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)  # readable once the process has ended (pidfd_open(2))
        if poll.poll(0):
            raise BadCgroup(f"process {pid}: it has ended", pid=pid)
        return found
    finally:
        os.close(pidfd)


def _of_process(pid: int, mounted: dict[str, str]) -> CgroupRef:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text("utf-8").splitlines()
    except OSError as error:
        if exhausted(error):
            raise
        raise BadCgroup(f"process {pid}: {error.strerror}", pid=pid) from None
    paths: dict[str, str] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths["cgroup2"] = path
        elif "devices" in controllers.split(","):
            paths["cgroup1"] = path
    for backend in ("cgroup2", "cgroup1"):
        path = paths.get(backend, "/")
        if backend in mounted and path != "/":
            return at(mounted[backend] + path)
    raise BadCgroup(
        f"process {pid} is in a root cgroup: start it in a cgroup of its own, then prepare",
        pid=pid,
    )


def populated(cgroup: CgroupRef) -> bool | None:
    """Say whether a process is in the cgroup or below it.

    None when the cgroup is gone, and when it is not known: v1 does not say it, so every folder
    has to be looked into, and a job may make any number. FOLDERS_LIMIT of them are.
    """
    try:
        if cgroup.backend == "cgroup2":
            events = Path(f"{cgroup.path}/cgroup.events").read_text("utf-8")
            return "populated 1" in events
        return _populated1(cgroup.path)
    except OSError:
        return None


def _populated1(path: str) -> bool | None:
    folders = [path]
    for number, folder in enumerate(folders):  # it grows meanwhile
        if number >= FOLDERS_LIMIT:
            return None
        with open(f"{folder}/cgroup.procs", encoding="ascii") as procs:
            if procs.readline():
                return True
        with os.scandir(folder) as entries:
            inside = (entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
            folders += itertools.islice(inside, FOLDERS_LIMIT)
    return False
