"""Agents that show their metrics; nothing of them is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent.running import Running
from metrics.served import local, showing


@pytest.fixture(scope="module")
def metered(cgroup2_mount: Path) -> Iterator[Running]:
    """An agent that listens on a port, which is its `port`, writes a file, and reports."""
    port = local()
    extra = f'listen = "{port}"\ntextfile = "@/state/xce.prom"\ntextfile_seconds = 1'
    extra += '\n[upstream.file]\npath = "@/state/out.json"'
    with showing(cgroup2_mount, extra) as running:
        running.port = port
        yield running
