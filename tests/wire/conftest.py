"""A client, and a folder that other users may pass."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from wire.client import Client


@pytest.fixture
def client(agent: str) -> Iterator[Client]:
    with Client(agent) as connected:
        yield connected


@pytest.fixture
def passable() -> Iterator[Path]:
    """A folder that lets other users pass, which pytest's own do not."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)  # noqa: S103  # the other user must get to the socket
        yield Path(directory)
