"""Asking a real agent for its metrics, and reading them as Prometheus does."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from agent.running import Running, serving
from prometheus_client.parser import text_string_to_metric_families

PATIENCE = 20.0


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self._path)


def showing(mount: Path, metrics: str) -> AbstractContextManager[Running]:
    """Run an agent with keys of `[metrics]`, in which `@` is its own folder."""

    def made(folder: Path, *more: Path) -> Running:
        running = Running(folder, *more)
        running.extra = f"[metrics]\n{metrics.replace('@', str(folder))}\n"
        return running

    return serving(mount, made)


def connection(where: str) -> http.client.HTTPConnection:
    if where.startswith("unix:"):
        return UnixConnection(where.removeprefix("unix:"))
    host, _, port = where.rpartition(":")
    return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=PATIENCE)


def scrape(where: str) -> str:
    """Give the exposition, as a scraper gets it."""
    asked = connection(where)
    asked.request("GET", "/metrics")
    answer = asked.getresponse()
    assert answer.status == 200
    assert answer.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    body = answer.read()
    asked.close()
    return body.decode()


def values(text: str) -> Mapping[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Read an exposition with Prometheus' own parser: each sample by its name and labels."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.type in ("gauge", "counter", "histogram")
        assert family.documentation
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def value(text: str, name: str, **labels: Any) -> float:
    """Give one sample."""
    return values(text)[name, tuple(sorted(labels.items()))]


def local() -> str:
    """Give a place to listen at that nobody has now."""
    return f"127.0.0.1:{free_port()}"


def free_port(family: socket.AddressFamily = socket.AF_INET) -> int:
    """Give a port that nobody has now."""
    with socket.socket(family) as sock:
        sock.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        return int(sock.getsockname()[1])
