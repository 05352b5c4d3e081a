"""A real agent with files of declared instances beside its configuration, and nodes of its own."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.running import serving

MAJOR = 126
"""For local use: no driver has it, so what a fence lets through fails with ENXIO."""


class Nodes:
    """Device nodes of a test's own, below a folder in /dev."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, name: str, minor: int, kind: int = stat.S_IFCHR) -> str:
        """Make a node; give its path."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        os.mknod(path, kind | 0o666, os.makedev(MAJOR, minor))
        path.chmod(0o666)
        return str(path)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """Make nodes; all of them are removed."""
    made = Nodes(Path(f"/dev/xce-declared-{os.getpid()}-{time.monotonic_ns()}"))
    made.folder.mkdir(0o755)
    yield made
    for path in sorted(made.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    made.folder.rmdir()


class Declaring:
    """An agent that serves, and its files."""

    def __init__(self, running: Any) -> None:
        self.running = running
        self.files = running.folder / "instances.d"

    def write(self, name: str, text: str) -> None:
        """Write a file of declared instances, at once."""
        self.files.mkdir(0o755, exist_ok=True)
        draft = self.files / f"{name}.draft"
        draft.write_text(text, "utf-8")
        draft.chmod(0o644)
        draft.rename(self.files / name)

    def body(self, script: str) -> None:
        """Say what the reporter does, from its next time on."""
        self.put("body", script.encode())

    def put(self, name: str, data: bytes) -> None:
        """Write a file beside the configuration, at once."""
        draft = self.running.folder / "draft"
        draft.write_bytes(data)
        draft.chmod(0o644)
        draft.rename(self.running.folder / name)

    def call(self, method: str, **parameters: Any) -> Any:
        return self.running.call(method, **parameters)

    def instance(self, name: str) -> dict[str, Any] | None:
        """Give an instance as the agent shows it."""
        found = self.call("GetInventory")["instances"]
        return next((one for one in found if one["id"] == name), None)

    def problems(self, provider: str = "declared") -> list[str]:
        """Give what the agent says is wrong."""
        found = self.call("GetInventory")["problems"]
        return [one["reason"] for one in found if one["provider"] == provider]

    def becomes(self, look: Callable[[], Any], seconds: float = 20.0) -> Any:
        """Ask until the answer is true; give it."""
        until = time.monotonic() + seconds
        while True:
            if found := look():
                return found
            if time.monotonic() > until:
                log = self.running.log.read_text("utf-8")
                pytest.fail(
                    f"it did not come to pass: {self.call('GetInventory')['problems']}\n{log}"
                )
            select.select([], [], [], 0.02)


@contextlib.contextmanager
def _declaring(mount: Path) -> Iterator[Declaring]:
    with serving(mount) as running:
        yield Declaring(running)


@pytest.fixture
def agent(mount: Path) -> Iterator[Declaring]:
    """An agent of either hierarchy."""
    with _declaring(mount) as found:
        yield found


REPORTER = """[reporter]
program = ["{folder}/probe"]
user = "daemon"
interval_seconds = 1
timeout_seconds = 2
nodes = ["/dev/xce-declared-{pid}-*/probe*"]
"""


@pytest.fixture(scope="module")
def _steady(cgroup2_mount: Path) -> Iterator[Declaring]:
    """An agent of cgroup v2 with a reporter that is what `body` says, for all tests of a file."""
    with _declaring(cgroup2_mount) as found:
        found.running.stop()
        folder = found.running.folder
        probe = folder / "probe"
        probe.write_text(f"#!/bin/sh\ncd {folder} && exec sh ./body\n", "utf-8")
        probe.chmod(0o755)
        found.body("echo '{}'")
        found.running.extra = REPORTER.format(folder=folder, pid=os.getpid())
        found.running.start()
        yield found


@pytest.fixture
def agent2(_steady: Declaring) -> Iterator[Declaring]:
    """That agent; what the test declared and prepared is taken back."""
    yield _steady
    _steady.call("Reconcile", jobs=[])
    _steady.becomes(lambda: not _steady.call("ListBindings")["bindings"])
    for file in _steady.files.glob("*"):
        file.unlink()
    _steady.body("echo '{}'")
    own = ("declared", "reported")
    _steady.becomes(
        lambda: not any(i["provider"] in own for i in _steady.call("GetInventory")["instances"])
    )
    _steady.becomes(lambda: not _steady.problems("declared") + _steady.problems("reported"))
