"""What can be told of a process; the door to psutil."""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

import psutil

from xce_nodeagent.model import name


def name_and_owner(pid: int) -> tuple[str, int]:
    """Give a process's name and its effective user; ("", -1) when it has gone.

    Anybody may give their processes any name: what is not printable is replaced.
    """
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return name.printable(process.name()), process.uids().effective
    except psutil.Error:
        return "", -1


class Own(NamedTuple):
    """What the kernel says of this process: bytes, seconds, and None for what it does not say."""

    cpu_seconds: float
    start_time: float
    resident_bytes: int | None
    virtual_bytes: int | None
    open_fds: int | None
    max_fds: int


def own() -> Own:
    """Look at this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    process = psutil.Process()
    try:
        memory = process.memory_info()
        resident, virtual = memory.rss, memory.vms
    except psutil.Error:
        resident, virtual = None, None
    return Own(
        used.ru_utime + used.ru_stime,
        process.create_time(),
        resident,
        virtual,
        _open_fds(),
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def _open_fds() -> int | None:
    """Count this process's descriptors.

    Of a process that changed its user the list is root's alone. Since Linux 6.2 its size tells how
    many there are (proc(5)); before, that was 0.
    """
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # but the one by which it is read
    except OSError:
        pass
    try:
        return os.stat("/proc/self/fd").st_size or None
    except OSError:
        return None
