"""What a fork costs in a process of a given size, beside a round trip to a helper made before.

forking.py MEGABYTES TIMES       (prints {"rss_mb", "fork", "helper"}, milliseconds each)
"""

import contextlib
import json
import mmap
import os
import socket
import sys
import time
from pathlib import Path


def ballast(size: int) -> mmap.mmap:
    """Take memory and touch each page, in small pages like a heap of many objects."""
    held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        held.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(0, size, mmap.PAGESIZE):
        held[page] = 1
    return held


def resident() -> int:
    """Give the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * mmap.PAGESIZE


def main(megabytes: int, times: int) -> None:
    """Measure, taking turns."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        while message := theirs.recv(4096):
            theirs.send(message)
        os._exit(0)
    theirs.close()
    held = ballast(max(1, megabytes * 2**20 - resident()))
    fork, helper = [], []
    for _ in range(times):
        started = time.perf_counter_ns()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        fork.append((time.perf_counter_ns() - started) / 1e6)
        started = time.perf_counter_ns()
        ours.send(b"x" * 512)
        ours.recv(4096)
        helper.append((time.perf_counter_ns() - started) / 1e6)
    print(json.dumps({"rss_mb": resident() / 2**20, "fork": fork, "helper": helper}))
    held.close()
    ours.close()
    os.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
