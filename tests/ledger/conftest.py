"""A real agent whose ledger is harmed, and ledgers without an agent."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.running import serving
from binding.node import Node

TESTS = Path(__file__).parents[1]
BINDING = "trusted.xce.binding"


@pytest.fixture
def make_node() -> Any:
    """Make a node without a kernel, whose ledger is in a folder."""
    return Node


@pytest.fixture
def agent(mount: Path) -> Iterator[Any]:
    """An agent that serves, for one test."""
    with serving(mount) as running:
        yield running


@pytest.fixture
def agent2(cgroup2_mount: Path) -> Iterator[Any]:
    """The same, with its jobs in cgroup v2, where a test needs only one kind."""
    with serving(cgroup2_mount) as running:
        yield running


@pytest.fixture
def ledger_of() -> Any:
    """Give the ledger of an agent: its path, and what can be done to it while it does not run."""
    return Files


class Files:
    """The files of an agent's ledger."""

    def __init__(self, agent: Any) -> None:
        self.state = agent.folder / "state"
        self.path = self.state / "ledger.db"
        self.wal = self.state / "ledger.db-wal"

    def lose(self) -> None:
        for path in self.state.glob("ledger.db*"):
            path.unlink()

    def copy(self, to: Path) -> None:
        """Copy what an agent that runs has written, as a backup would."""
        for path in self.state.glob("ledger.db*"):
            shutil.copy2(path, to / path.name)

    def put_back(self, copy: Path) -> None:
        self.lose()
        owner = self.state.stat()
        for path in copy.glob("ledger.db*"):
            shutil.copy2(path, self.state / path.name)
            os.chown(self.state / path.name, owner.st_uid, owner.st_gid)

    def fold(self) -> None:
        """Fold the log into the database, so that harm to the database is harm."""
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        owner = self.state.stat()
        for path in self.state.glob("ledger.db*"):
            os.chown(path, owner.st_uid, owner.st_gid)

    def aside(self) -> list[Path]:
        found = self.state.glob("ledger.db.damaged-*")
        return sorted(path for path in found if not path.name.endswith(("-wal", "-shm")))

    @staticmethod
    def flip(path: Path, at: int, mask: int = 0x41) -> None:
        """Change bits of one byte of a file, where it is."""
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ mask]))


@pytest.fixture
def jobs() -> Any:
    """Give what is bound, as far as a loss must not change it."""

    def read(agent: Any) -> dict[tuple[str, str], dict[str, Any]]:
        keys = ("instances", "ports", "cgroup", "enforcement", "uid", "state")
        return {
            (view["job"], view["attempt"]): {key: view[key] for key in keys}
            for view in agent.call("ListBindings")["bindings"]
        }

    return read
