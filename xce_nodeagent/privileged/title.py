"""What `ps` shows: a process that was forked, and not executed, has its parent's name otherwise."""

from __future__ import annotations

import contextlib
import ctypes
import os

from xce_nodeagent.privileged.syscall import prctl

_PR_SET_NAME = 15
_NAME_LIMIT = 15  # TASK_COMM_LEN, without its NUL


def set_title(name: str) -> None:
    """Name this process: its `comm`, and the arguments that it seems to have been started with.

    The arguments lie in this process's own memory, from `arg_start` to `arg_end`
    (proc_pid_stat(5), fields 48 and 49); the kernel shows what is there. Where they cannot be
    found, or the kernel hides the addresses, only `comm` changes.
    """
    comm = ctypes.create_string_buffer(name.encode()[:_NAME_LIMIT])
    prctl(_PR_SET_NAME, ctypes.addressof(comm))
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The second field may hold spaces and brackets, so the count starts after its last one.
        fields = _stat().rpartition(b")")[2].split()
        start, end = int(fields[48 - 3]), int(fields[49 - 3])
        if 0 < start < end:
            # The last byte stays NUL: else the kernel reads on into the environment.
            shown = name.encode()[: end - start - 1]
            ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _stat() -> bytes:
    # Without a file object: whatever a forked process touches is memory of its own from then on.
    descriptor = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
