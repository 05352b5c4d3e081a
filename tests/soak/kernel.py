"""What the kernel has, looked at from outside: by the system calls themselves, not by the binder.

Of the product only the wrappers of bpf(2) are used; none of its judgement.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from soak.promises import Cgroup

from xce_nodeagent.privileged import bpfcall

MARK = "trusted.xce.binding"
_ENTRY = struct.Struct("=Q")


def cgroups(folder: Path, *, v2: bool) -> dict[str, Cgroup]:
    """Look at every cgroup below a folder; nothing where that is not there."""
    found = {}
    for path, _, _ in os.walk(folder):
        if path != str(folder):
            with contextlib.suppress(FileNotFoundError):
                found[path] = _cgroup(path, v2=v2)
    return found


def _cgroup(path: str, *, v2: bool) -> Cgroup:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        mark = None
        with contextlib.suppress(OSError):
            # The job and the attempt, one on a line; what follows is the binder's own business.
            value = os.getxattr(descriptor, MARK).decode("utf-8", "replace")
            mark = "\n".join(value.split("\n")[:2])
        programs = tuple(_programs(descriptor)) if v2 else ()
        return Cgroup(mark, programs, os.fstat(descriptor).st_ino)
    finally:
        os.close(descriptor)


def _programs(cgroup: int) -> Iterator[tuple[str, frozenset[int]]]:
    for number in bpfcall.query(cgroup).ids:
        with contextlib.suppress(FileNotFoundError):
            descriptor = bpfcall.prog_open(number)
            try:
                info = bpfcall.prog_info(descriptor)
                yield info.name, frozenset(info.map_ids)
            finally:
                os.close(descriptor)


def anchors(home: Path) -> list[frozenset[int]]:
    """Give the maps of each anchor at the home."""
    try:
        descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return []
    try:
        return [maps for name, maps in _programs(descriptor) if name == "xce_anchor"]
    finally:
        os.close(descriptor)


def maps(numbers: frozenset[int]) -> tuple[frozenset[str], frozenset[int]]:
    """Read an anchor's maps: the managed devices, and the cgroups that have a store of grants."""
    managed: set[str] = set()
    stored: set[int] = set()
    for number in numbers:
        with contextlib.suppress(FileNotFoundError):
            descriptor = bpfcall.map_open(number)
            try:
                name = bpfcall.map_info(descriptor).name
                keys = [_ENTRY.unpack(key)[0] for key in bpfcall.map_keys(descriptor, 8)]
            finally:
                os.close(descriptor)
            if name == "xce_managed":
                managed |= {f"{key >> 20 & 0xFFF}:{key & 0xFFFFF}" for key in keys}
            elif name == "xce_grants":
                stored |= set(keys)
    return frozenset(managed), frozenset(stored)


def exists(numbers: frozenset[int]) -> frozenset[int]:
    """Give which of these maps the kernel still has."""
    left = set()
    for number in numbers:
        with contextlib.suppress(FileNotFoundError):
            os.close(bpfcall.map_open(number))
            left.add(number)
    return frozenset(left)


def nodes(folder: Path) -> dict[str, tuple[int, int]]:
    """Give every device node below a folder with its numbers."""
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                about = os.stat(f"{path}/{name}", follow_symlinks=False)
                if stat.S_ISCHR(about.st_mode):
                    found[f"{path}/{name}"] = os.major(about.st_rdev), os.minor(about.st_rdev)
    return found
