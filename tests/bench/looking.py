"""What a look of the witness costs with many processes, beside listing their descriptors."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, p50

from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged.ops import Look
from xce_nodeagent.privileged.witness import Witness

DESCRIPTORS = 100
DEVICES = tuple(Device("c", 195, minor) for minor in range(16))


def figures(processes: int, times: int) -> list[Figure]:
    """Give the CPU seconds of a look over so many processes more than there are."""
    witness, looks, bare = Witness(), [], []
    with _crowd(processes):
        for _ in range(times):
            started = time.process_time()
            witness.handle(Look(DEVICES), ())
            looks.append(time.process_time() - started)
            bare.append(_bare())
    note = f"{processes} processes with {DESCRIPTORS} descriptors; floor: readdir of /proc/*/fd"
    return [Figure("witness_look", p50(looks), "s", p50(bare), None, times, note)]


@contextlib.contextmanager
def _crowd(processes: int) -> Iterator[None]:
    reading, writing = os.pipe()
    pids = []
    try:
        for _ in range(processes):
            pid = os.fork()
            if pid == 0:
                for _ in range(DESCRIPTORS):
                    os.open("/dev/null", os.O_RDONLY)
                os.write(writing, b"+")
                while True:
                    signal.pause()
            pids.append(pid)
        ready = 0
        while ready < processes:
            ready += len(os.read(reading, 4096))
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


def _bare() -> float:
    started = time.process_time()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                os.listdir(process / "fd")
    return time.process_time() - started
