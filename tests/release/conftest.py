"""A real agent with cards that can really be opened, and processes that do what jobs do."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent import running
from agent.running import Refused, Running

TESTS = Path(__file__).parents[1]
RIG = Path(__file__).with_name("rig")
PROGRAM = Path(__file__).with_name("job.py")


def _eventually(look: Callable[[], Any], seconds: float = 40.0) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError, Refused):
            if found := look():
                return found
        select.select([], [], [], 0.05)
    pytest.fail("it did not come to pass")


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    """Ask again until the answer is true; give it. An error of the agent is not yet an answer."""
    return _eventually


class Process:
    """A process that does what it is told: see `job.py`."""

    def __init__(self, cgroup: str | None = None, uid: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM), cgroup or "", str(uid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        assert self.does("hello") == "hello"

    def does(self, *words: str) -> str:
        """Tell it; give its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def ended(self, seconds: float = 30.0) -> int:
        """Wait for its end; give how."""
        return self.process.wait(seconds)

    def end(self) -> None:
        """Kill it, if it lives."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def process() -> Iterator[Callable[..., Process]]:
    """Start processes, in cgroups or outside; all of them are ended."""
    started: list[Process] = []

    def start(cgroup: str | None = None, uid: int = 0) -> Process:
        started.append(Process(cgroup, uid))
        return started[-1]

    yield start
    for one in started:
        one.end()


class Site:
    """An agent, its cards by their order, and what is asked of it often."""

    def __init__(self, running: Any) -> None:
        self.agent = running
        self.call = running.call
        cards = sorted(running.instances("gpu"), key=lambda one: one["attributes"]["minor"])
        self.cards = [one["id"] for one in cards]
        self.nodes = [one["devices"][0]["path"] for one in cards]

    def prepare(self, job: str, *cards: int, **more: Any) -> str:
        """Bind cards to a job; give its cgroup."""
        asked = {"attempt": "1", "instances": [self.cards[card] for card in cards], **more}
        answer = self.call("Prepare", job=job, **asked)
        return str(next(iter(answer["cgroup"].values())))

    def bindings(self) -> dict[str, dict[str, Any]]:
        """Give all bindings as `jobs` shows them, by job and attempt."""
        found = self.call("ListBindings")["bindings"]
        return {f"{one['job']}:{one['attempt']}": one for one in found}

    def settled(self) -> None:
        """Give the vigil the time for a look: it comes a second after what it is for."""
        select.select([], [], [], 3)

    def left(self, binding: str) -> list[int]:
        """Give who is told of a quarantined binding, when it is there."""
        one = self.bindings().get(binding, {"state": "", "holders": []})
        return [w["pid"] for w in one["holders"]] if one["state"] == "quarantined" else []


@pytest.fixture
def site(mount: Path) -> Iterator[Site]:
    """An agent with three real cards, for one test. `restart` takes another configuration."""
    with _serving(mount) as running:
        yield running


@contextlib.contextmanager
def _serving(mount: Path, extra: str = "") -> Iterator[Site]:
    class Real(Running):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.env["PYTHONPATH"] = str(RIG)
            self.extra = extra

        def start(self, profile: str = "real") -> None:
            super().start(profile)

    with running.serving(mount, Real) as agent:
        yield Site(agent)


@pytest.fixture
def serving(mount: Path) -> Iterator[Callable[[str], Site]]:
    """Start an agent with more configuration."""
    with contextlib.ExitStack() as stack:
        yield lambda extra: stack.enter_context(_serving(mount, extra))


@pytest.fixture
def outside(mount: Path) -> Iterator[Path]:
    """A cgroup in the same hierarchy that is no job's."""
    path = mount / f"xce-test-outside-{os.getpid()}"
    path.mkdir()
    yield path
    for pid in (path / "cgroup.procs").read_text("ascii").split():
        with contextlib.suppress(OSError):
            (mount / "cgroup.procs").write_text(pid, "ascii")
    _eventually(lambda: not (path / "cgroup.procs").read_text("ascii"))
    path.rmdir()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends that descriptors can be sent over."""
    one, other = socket.socketpair()
    with one, other:
        yield one, other
