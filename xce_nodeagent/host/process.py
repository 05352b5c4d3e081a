"""What can be told of a process; the door to psutil."""

from __future__ import annotations

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
