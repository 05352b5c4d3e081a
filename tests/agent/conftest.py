"""A real agent, for one test or for those of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agent.running import Running, serving


@pytest.fixture
def agent(mount: Path) -> Iterator[Running]:
    """An agent that serves, for one test."""
    with serving(mount) as running:
        yield running


@pytest.fixture(scope="module")
def steady(cgroup2_mount: Path) -> Iterator[Running]:
    """An agent for tests that leave it as they found it."""
    with serving(cgroup2_mount) as running:
        yield running
