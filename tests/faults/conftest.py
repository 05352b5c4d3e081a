"""A real agent to do harm to, and a host that seems to have NVIDIA's driver."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.reboot import cover, shut_down
from agent.running import Refused, serving
from faults import minors

TESTS = Path(__file__).parents[1]


@pytest.fixture
def agent(cgroup2_mount: Path) -> Iterator[Any]:
    """An agent that serves, for one test, with its jobs in cgroup v2."""
    with serving(cgroup2_mount) as running:
        yield running


@pytest.fixture
def agent1(cgroup1_mount: Path) -> Iterator[Any]:
    """The same, with its jobs in cgroup v1."""
    with serving(cgroup1_mount) as running:
        yield running


@pytest.fixture(scope="module")
def steady(cgroup2_mount: Path) -> Iterator[Any]:
    """An agent for tests that leave it as they found it."""
    with serving(cgroup2_mount) as running:
        yield running


def _eventually(look: Callable[[], Any], seconds: float = 20.0) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError, Refused):
            if found := look():
                return found
        select.select([], [], [], 0.02)
    pytest.fail("it did not come to pass")


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    """Ask again until the answer is true; give it. An error of the agent is not yet an answer."""
    return _eventually


# ---- another boot ------------------------------------------------------------------------------


@pytest.fixture
def reboot() -> Callable[[Any], None]:
    """End an agent and all that is in its cgroups, as a reboot does; start it in another boot."""

    def boot(running: Any) -> None:
        shut_down(running)
        running.start()

    return boot


# ---- a host with NVIDIA's driver, as far as the agent can see -----------------------------------

H100 = "name=NVIDIA_H100_80GB_HBM3 memory=85520809984 cc=9.0"


@pytest.fixture(scope="session")
def first_minor() -> Iterator[int]:
    """Where the minors of the stand-in's cards begin: nobody else's, as long as these tests run."""
    with minors.claimed() as first:
        yield first


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for NVIDIA's library, compiled."""
    folder = tmp_path_factory.mktemp("nvml")
    built = folder / "libnvidia-ml.so.1"
    source = TESTS / "machines" / "nvml" / "nvml_stub.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, source], check=True)
    return built


class Driver:
    """What the driver shows, to be changed while the agent runs: `say` the cards anew."""

    def __init__(self, running: Any, library: Path, first_minor: int) -> None:
        self._cards = range(first_minor, first_minor + minors.COUNT)
        self.running = running
        self.folder = running.folder / "driver"
        self.folder.mkdir()
        (self.folder / library.name).write_bytes(library.read_bytes())
        self.data = self.folder / "data"
        self.nodes = Path(f"{running.devices}-nvidia")  # in /dev: elsewhere nodes may be dead
        proc = self.folder / "proc"
        (proc / "nvidia").mkdir(parents=True)
        (proc / "nvidia" / "version").write_text("NVRM version: 550.54.15\n", "ascii")
        (proc / "nvidia-caps").mkdir()
        self._made: list[Path] = []
        self._nodes()
        self._minors(proc / "nvidia-caps" / "mig-minors")
        text = Path("/proc/devices").read_text("ascii")
        kept = [line for line in text.splitlines() if "nvidia" not in line]
        mine = ["195 nvidia", "195 nvidiactl", "234 nvidia-caps", "236 nvidia-uvm"]
        at = kept.index("Character devices:") + 1
        devices = self.folder / "devices"
        devices.write_text("\n".join([*kept[:at], *mine, *kept[at:]]) + "\n", "ascii")
        self.running.env |= {
            "LD_LIBRARY_PATH": str(self.folder),
            "XCE_NVML_DATA": str(self.data),
        }
        cover(running, {"/proc/devices": devices, "/proc/driver": proc})

    def _nodes(self) -> None:
        """Make the nodes of the cards and of their slices, as the driver's programs do."""
        caps = Path("/dev/nvidia-caps")
        caps.mkdir(exist_ok=True)
        first, last = 3 + 135 * self._cards.start, 3 + 135 * self._cards.stop
        wanted = {Path(f"/dev/nvidia{minor}"): (195, minor) for minor in self._cards}
        wanted |= {caps / f"nvidia-cap{minor}": (234, minor) for minor in range(first, last)}
        for path, (major, minor) in wanted.items():
            path.unlink(missing_ok=True)  # of a run that was killed: the minors are ours alone
            self._made.append(path)
            os.mknod(path, 0o020600, os.makedev(major, minor))

    def close(self) -> None:
        """Take the nodes away again."""
        for path in self._made:
            path.unlink(missing_ok=True)
        for node in self.nodes.iterdir() if self.nodes.exists() else ():
            node.unlink()
        if self.nodes.exists():
            self.nodes.rmdir()
        with contextlib.suppress(OSError):  # others have theirs in it
            os.rmdir("/dev/nvidia-caps")

    def _minors(self, path: Path) -> None:
        lines = ["config 1", "monitor 2"]
        for gpu in self._cards:
            for gi in range(15):
                access = 3 + 135 * gpu + 9 * gi
                lines.append(f"gpu{gpu}/gi{gi}/access {access}")
                lines.append(f"gpu{gpu}/gi{gi}/ci0/access {access + 1}")
        path.write_text("\n".join(lines) + "\n", "ascii")

    def write(self, *lines: str) -> None:
        """Set what the library answers from now on, whole at once."""
        new = self.folder / "data.new"
        new.write_text("driver 550.54.15\n" + "\n".join(lines) + "\n", "ascii")
        new.chmod(0o644)
        os.replace(new, self.data)

    def say(self, *lines: str) -> None:
        """Change it and tell the agent to look, as an event of the hardware would."""
        self.write(*lines)
        self.running.process.send_signal(signal.SIGHUP)

    def start(self, *lines: str, profile: str = "cpu-only") -> None:
        """Start the agent on a host with these cards."""
        self.running.stop()
        self.write(*lines)
        for path in (self.folder, *self.folder.rglob("*")):
            path.chmod(0o755)
        self.running.start(profile)

    def cards(self) -> dict[str, dict[str, Any]]:
        """Give the instances that come from the library, by id."""
        found = self.running.call("GetInventory")["instances"]
        return {one["id"]: one for one in found if one["provider"] == "nvidia"}

    def node(self, instance: str) -> str:
        """Make the card's device node, in a folder of the test's own, and give its path."""
        device = self.cards()[instance]["devices"][0]
        self.nodes.mkdir(exist_ok=True)
        path = self.nodes / f"nvidia-{device['minor']}"
        if not path.exists():
            os.mknod(path, 0o020666, os.makedev(device["major"], device["minor"]))
            path.chmod(0o666)
        return str(path)


@pytest.fixture
def driver(agent: Any, library: Path, first_minor: int) -> Iterator[Driver]:
    """A driver that the agent meets when it is started anew: `driver.start(...)`."""
    driver = Driver(agent, library, first_minor)
    try:
        yield driver
    finally:
        driver.close()


@pytest.fixture(scope="session")
def gpu(first_minor: int) -> Callable[..., str]:
    """Write the line of one card for `Driver`; `place` counts its minor from the first."""

    def card(bus: str, uuid: str, place: int, more: str = "mig=0") -> str:
        minor = first_minor + place
        return f"gpu bus=00000000:{bus}:00.0 uuid={uuid} minor={minor} {H100} {more}"

    return card


# ---- helpers ------------------------------------------------------------------------------------


def _binder(running: Any) -> int | None:
    """Give the pid of the binder that acts: the one that has the lock."""
    lock = str(running.folder / "run-helpers" / "binder.lock")
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if any(os.readlink(fd) == lock for fd in (process / "fd").iterdir()):
                    return int(process.name)
    return None


@pytest.fixture(scope="session")
def binder_of() -> Callable[[Any], int]:
    """Find the binder that acts for an agent."""

    def find(running: Any) -> int:
        pid: int = _eventually(lambda: _binder(running))
        return pid

    return find
