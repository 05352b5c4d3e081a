"""What a scrape of the metrics costs, beside a prepare that it may keep waiting."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

from client import Client
from figures import Figure, p50
from started import Agent

FRESH = 1.05
"""Seconds after which an exposition is made anew."""

ASK = b"GET /metrics HTTP/1.1\r\nHost: bench\r\n\r\n"


def place_for(folder: Path) -> Path:
    """Make a place where an agent may put a socket; give the socket's path."""
    where = folder / "metered" / "metrics.sock"
    where.parent.mkdir()
    where.parent.chmod(0o777)
    return where


def figures(
    one: Agent, where: Path, prepares: Iterator[tuple[bytes, bytes]], live: int, times: int
) -> list[Figure]:
    """Scrape an agent with many bindings at a socket; the floor is a prepare of its own, hot."""
    floor, scrapes = [], []
    with Client(str(one.socket)) as client:
        for prepare, release in prepares:
            floor.append(client.call(prepare)[0])
            client.call(release)
    for _ in range(times):
        time.sleep(FRESH)
        before = _cpu(one.process.pid)
        size = _scrape(where)
        scrapes.append((_cpu(one.process.pid) - before) * 1000)
    note = f"CPU of the event loop, {size} bytes; floor: a prepare"
    return [Figure(f"metrics_scrape_{live}b", p50(scrapes), "ms", p50(floor), None, times, note)]


def _scrape(where: Path) -> int:
    """Give the bytes of an exposition."""
    data = b""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(str(where))
        sock.sendall(ASK)
        while part := sock.recv(1 << 16):
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 ") or b"xce_nodeagent_bindings{" not in body:
        raise RuntimeError(f"this is no exposition: {head[:80]!r}")
    return len(body)


def _cpu(pid: int) -> float:
    """Give the seconds of CPU that a process's first thread has used: the event loop's."""
    return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[0]) / 1e9
