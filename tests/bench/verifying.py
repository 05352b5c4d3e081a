"""What a verification of many bindings costs, beside the bare system calls that it needs."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from pathlib import Path

from client import Client, message
from figures import Figure, p50
from started import Agent

LIBC = ctypes.CDLL(None, use_errno=True)
BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
SECONDS = 300
"""How often the agent verifies by itself."""
MOST = 1.0
"""What is promised of one verification, in seconds of CPU."""


def figures(crowded: Agent, home: Path, times: int) -> list[Figure]:
    """Give the CPU seconds of one verification of all its bindings, agent and binder together."""
    binders = [pid for pid, name in crowded.processes().items() if name == "xce-binder"]
    if not binders:
        raise RuntimeError("none of its processes is called xce-binder")
    pids = [crowded.process.pid, *binders]
    jobs = sorted(path for path in home.iterdir() if path.is_dir())
    looks: dict[bool, list[float]] = {False: [], True: []}
    bare: list[float] = []
    with Client(str(crowded.socket)) as client:
        for _ in range(times):
            for repair in (False, True):
                before = sum(map(_cpu, pids))
                client.call(message("Doctor", repair=repair))
                looks[repair].append(sum(map(_cpu, pids)) - before)
            bare.append(_bare(jobs))
    # With `repair` it does the same, and a verification before.
    each = [more - less for more, less in zip(looks[True], looks[False], strict=True)]
    value = p50(each)
    count = len(jobs)
    note = f"{count} bindings; floor: open, getxattr, 2 queries, a lookup and close for each"
    share = 100 * value / SECONDS
    return [
        Figure(f"verify_{count}_bindings_cpu", value, "s", p50(bare), None, times, note),
        Figure(
            f"verify_{count}_bindings_longest", max(each), "s", None, MOST, times, "as promised"
        ),
        Figure(f"verify_{count}_bindings_share", share, "%", None, 1, times, "on its timer"),
    ]


def _cpu(pid: int) -> float:
    """Give the seconds of CPU that all threads of a process have used."""
    used = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        used += int((task / "schedstat").read_text("ascii").split()[0]) / 1e9
    return used


def _bare(jobs: list[Path]) -> float:
    """Ask the kernel what a verification asks, and look at no answer; seconds of CPU."""
    ids = (ctypes.c_uint32 * 64)()
    grants = _grants(jobs[0], ids)
    value, key = ctypes.create_string_buffer(1032), ctypes.create_string_buffer(8)
    started = time.thread_time()
    for job in jobs:
        fd = os.open(job, os.O_RDONLY | os.O_DIRECTORY)
        os.getxattr(fd, "trusted.xce.binding")
        struct.pack_into("=Q", key, 0, os.fstat(fd).st_ino)
        for flags in (0, 1):  # BPF_F_QUERY_EFFECTIVE
            _bpf(16, struct.pack("=4IQI", fd, 6, flags, 0, ctypes.addressof(ids), 64))
        where = struct.pack("=QQ", ctypes.addressof(key), ctypes.addressof(value))
        _bpf(1, struct.pack("=Ixxxx", grants) + where)
        os.close(fd)
    took = time.thread_time() - started
    os.close(grants)
    return took


def _grants(job: Path, ids: ctypes.Array[ctypes.c_uint32]) -> int:
    """Open the map with the grants, through the program on a job's cgroup."""
    fd = os.open(job, os.O_RDONLY | os.O_DIRECTORY)
    _bpf(16, struct.pack("=4IQI", fd, 6, 0, 0, ctypes.addressof(ids), 64))
    os.close(fd)
    program = _bpf(13, struct.pack("=I", ids[0]))
    info, maps = ctypes.create_string_buffer(256), (ctypes.c_uint32 * 8)()
    struct.pack_into("=IQ", info, 52, 8, ctypes.addressof(maps))
    _bpf(15, struct.pack("=IIQ", program, 256, ctypes.addressof(info)))
    os.close(program)
    found = -1
    for number in maps[: struct.unpack_from("=I", info, 52)[0]]:
        fd = _bpf(14, struct.pack("=I", number))
        about = ctypes.create_string_buffer(128)
        _bpf(15, struct.pack("=IIQ", fd, 128, ctypes.addressof(about)))
        if struct.unpack_from("=I", about, 0)[0] == 19:  # BPF_MAP_TYPE_CGROUP_STORAGE
            found = fd
        else:
            os.close(fd)
    return found


def _bpf(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes, 144)
    result: int = LIBC.syscall(BPF, command, buffer, 144)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command}): {os.strerror(ctypes.get_errno())}")
    return result
