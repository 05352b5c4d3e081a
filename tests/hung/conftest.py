"""A real agent whose parts hang, and what is needed to see it from outside."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent import running

TESTS = Path(__file__).parents[1]
PATIENCE = 10.0


@pytest.fixture
def agent(cgroup2_mount: Path) -> Iterator[Any]:
    """An agent that serves, for one test, with its jobs in cgroup v2."""
    with running.serving(cgroup2_mount) as agent:
        yield agent


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for NVIDIA's library, compiled."""
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = TESTS / "machines/nvml/nvml_stub.c"
    subprocess.run(["cc", "-std=gnu11", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


class Cards:
    """What the library says: `say` writes it, and `anew` has the agent ask anew."""

    def __init__(self, agent: Any, library: Path) -> None:
        self.agent = agent
        own = agent.folder / "lib"
        own.mkdir()
        (own / library.name).write_bytes(library.read_bytes())
        self._data = own / "data"
        self.say("driver 1\n")
        for path in (own, *own.iterdir()):
            path.chmod(0o755)
        agent.env |= {"LD_LIBRARY_PATH": str(own), "XCE_NVML_DATA": str(self._data)}

    def say(self, text: str) -> None:
        new = self._data.with_name("new")
        new.write_text(text, "ascii")
        new.chmod(0o644)
        new.rename(self._data)  # a prober may be reading

    def fifo(self, name: str) -> Path:
        """Make one beside the library, which anybody may read."""
        made = self._data.with_name(name)
        os.mkfifo(made)
        made.chmod(0o666)
        return made

    def anew(self) -> None:
        self.agent.process.send_signal(1)  # SIGHUP

    def seen(self) -> dict[str, Any]:
        """The instances of the library's provider, by their ids."""
        found = self.agent.call("GetInventory")["instances"]
        return {one["id"]: one for one in found if one["provider"] == "nvidia"}

    def problem(self) -> str:
        """What the inventory says is wrong with the library."""
        problems = self.agent.call("GetInventory")["problems"]
        return next((p["reason"] for p in problems if p["provider"] == "nvidia"), "")


@pytest.fixture(scope="session")
def cards(library: Path) -> Callable[[Any], Cards]:
    """Give an agent, which is to be started again, a library of its own."""
    return lambda agent: Cards(agent, library)


@pytest.fixture(scope="session")
def serving() -> Any:
    """The context of an agent, for those who need one for longer than a test."""
    return running.serving


@pytest.fixture(scope="session")
def until() -> Callable[..., Any]:
    """Wait for something that will be so; fail when it is not."""

    def wait(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        end = time.monotonic() + seconds
        while not (result := condition()):
            if time.monotonic() > end:
                pytest.fail(f"not within {seconds:g} s: {what}")
            time.sleep(0.02)
        return result

    return wait


class Family:
    """The processes of an agent: its supervisor, and the helpers that it has now."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    @staticmethod
    def _children(pid: int) -> list[int]:
        path = Path(f"/proc/{pid}/task/{pid}/children")
        try:
            return [int(child) for child in path.read_text("ascii").split()]
        except OSError:
            return []

    @property
    def supervisor(self) -> int:
        (pid,) = self._children(self.agent.process.pid)
        return pid

    def helpers(self, role: str) -> list[int]:
        """Give the pids of the helpers of a role, the live one and its spare, oldest first."""
        found = []
        for pid in self._children(self.supervisor):
            try:
                name = Path(f"/proc/{pid}/comm").read_text("ascii").strip()
            except OSError:
                continue
            if name == f"xce-{role}":
                found.append(pid)
        return found

    def live(self, role: str) -> int:
        """Give the helper that serves: the one that is older than its spare."""
        return min(self.helpers(role), key=_born)


def _born(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[19])


@pytest.fixture(scope="session")
def family() -> type[Family]:
    """The processes of an agent."""
    return Family


@pytest.fixture(scope="session")
def cpu() -> Callable[[int], float]:
    """Give the seconds of a processor that a process used so far."""

    def used(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    return used


class Memory:
    """A cgroup of a test's own, with a limit of memory; whose it is are helpers of its agent."""

    def __init__(self, parent: Path, *, unified: bool) -> None:
        self._unified = unified
        self._group = parent / f"xce-test-memory-{os.getpid()}-{time.monotonic_ns()}"
        self._group.mkdir()

    def limit(self, size: int) -> None:
        """Give what is in it no more than so many bytes."""
        name = "memory.max" if self._unified else "memory.limit_in_bytes"
        (self._group / name).write_text(str(size), "ascii")

    def take(self, pid: int) -> None:
        """Move a process in; what it has already counts where it was."""
        (self._group / "cgroup.procs").write_text(str(pid), "ascii")

    def kills(self) -> int:
        """Say how many processes the kernel has killed in it for want of memory."""
        name = "memory.events" if self._unified else "memory.oom_control"
        lines = (self._group / name).read_text("ascii").splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])

    def close(self) -> None:
        self._group.rmdir()


@pytest.fixture
def memory() -> Iterator[Memory]:
    """A cgroup whose memory is limited. Name it before the agent, whose helpers will be in it."""
    parent, unified = _memory_controller()
    made = Memory(parent, unified=unified)
    yield made
    made.close()


def _memory_controller() -> tuple[Path, bool]:
    """Give where a cgroup with a limit of memory can be made; v2 first, else v1."""
    for line in Path("/proc/self/mounts").read_text("utf-8").splitlines():
        _, where, kind, options, *_ = line.split()
        control = Path(where, "cgroup.subtree_control")
        if kind == "cgroup2" and "memory" in control.read_text("ascii").split():
            return Path(where), True
        if kind == "cgroup" and "memory" in options.split(","):
            return Path(where), False
    pytest.skip("no hierarchy here has the memory controller for cgroups below its root")
