"""An agent whose cards are told by the stand-in library, and an admin who sees what is open."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.running import serving

TESTS = Path(__file__).parents[1]
PATIENCE = 30.0


FIGURES = {"GPU-one": "temperature=40 slowdown=90", "GPU-two": "recovery=0"}
LAYOUT = {"MIG-1": "gi=1 ci=0", "MIG-2": "gi=2 ci=0"}


class Cards:
    """Two cards, the second cut in two, and what they do.

    `figures` are those of each card, in the words of the stand-in's file; `layout` are the second
    one's slices.
    """

    def __init__(self, agent: Any, library: Path) -> None:
        self.agent = agent
        self.figures, self.layout = dict(FIGURES), dict(LAYOUT)
        self.usual: dict[str, str] = {}
        folder = agent.folder / "lib"
        folder.mkdir()
        (folder / library.name).write_bytes(library.read_bytes())
        self._data = folder / "data"
        self._fifo = folder / "events"
        os.mkfifo(self._fifo)
        self.nodes = {uuid: folder / uuid for uuid in self.figures}
        for node in self.nodes.values():
            node.touch()
        self.say()
        for path in (folder, *folder.iterdir()):
            path.chmod(0o666 if path in (self._fifo, *self.nodes.values()) else 0o755)
        agent.env |= {"LD_LIBRARY_PATH": str(folder), "XCE_NVML_DATA": str(self._data)}
        # Open for as long as the test: nothing that is told is lost while nobody listens.
        self._events = os.open(self._fifo, os.O_RDWR)

    def say(self, more: str = "") -> None:
        """Write what the library tells from now on."""
        card = "gpu bus=00000000:{bus}:00.0 uuid={uuid} name=x minor={minor} memory=1 cc=9.0"
        lines = ["driver 1", f"events {self._fifo}", *filter(None, [more])]
        for minor, (uuid, figures) in enumerate(self.figures.items(), 1):
            sliced = uuid == "GPU-two" and bool(self.layout)
            told = card.format(bus=f"{minor}B", uuid=uuid, minor=minor)
            lines.append(f"{told} mig={int(sliced)} node={self.nodes[uuid]} {figures}")
        for uuid, place in self.layout.items():
            lines.append(f"mig uuid={uuid} name=X_MIG_1g.10gb {place} memory=1")
        new = self._data.with_name("new")
        new.write_text("".join(f"{line}\n" for line in lines), "ascii")
        new.chmod(0o644)
        new.rename(self._data)  # somebody may be reading

    def xid(self, uuid: str, number: int, gi: int = -1, ci: int = -1) -> None:
        self.tell(f"{uuid} {number} {gi} {ci}")

    def tell(self, line: str) -> None:
        os.write(self._events, f"{line}\n".encode())

    def anew(self) -> None:
        """Have the agent scan."""
        self.agent.process.send_signal(1)  # SIGHUP

    def seen(self) -> dict[str, Any]:
        found = self.agent.call("GetInventory")["instances"]
        return {one["id"]: one for one in found if one["provider"] == "nvidia"}

    def reasons(self) -> dict[str, str]:
        """Give the reasons without those of the start: the driver is missing here."""
        return {
            uuid: one["reason"].removesuffix(self.usual.get(uuid, "")).removesuffix("; ")
            for uuid, one in self.seen().items()
        }

    def number(self) -> int:
        return int(self.agent.call("GetInventory")["generation"].rpartition(":")[2])

    def openers(self, uuid: str) -> list[int]:
        """Give who has a card's node open, as fuser(1) would."""
        node = str(self.nodes[uuid])
        processes = (process for process in Path("/proc").iterdir() if process.name.isdigit())
        return [int(process.name) for process in processes if node in _open(process)]

    def taken_up(self, uuid: str) -> int:
        """Say how often anybody opened a card."""
        return self.nodes[uuid].stat().st_size

    def close(self) -> None:
        os.close(self._events)


def _open(process: Path) -> set[str]:
    found = set()
    try:
        for descriptor in (process / "fd").iterdir():
            found.add(os.readlink(descriptor))
    except OSError:
        return found  # it has ended
    return found


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for NVIDIA's library, compiled."""
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = TESTS / "machines/nvml/nvml_stub.c"
    subprocess.run(["cc", "-std=gnu11", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


@pytest.fixture(scope="module")
def served(cgroup2_mount: Path, library: Path) -> Iterator[Any]:
    """An agent with the cards, for all tests of a file."""
    with serving(cgroup2_mount) as running:
        running.stop()
        running.keys = "library_seconds = 2"
        running.cards = Cards(running, library)
        running.start()
        running.cards.usual = {u: one["reason"] for u, one in running.cards.seen().items()}
        yield running
        running.cards.close()


@pytest.fixture
def agent(served: Any, until: Callable[..., Any]) -> Any:
    """The agent, which listens to both cards and knows no ill of them."""
    cards = served.cards
    cards.figures, cards.layout = dict(FIGURES), dict(LAYOUT)
    cards.say()
    for uuid in cards.nodes:
        served.call("Undrain", id=uuid)
    cards.anew()
    until(lambda: all(map(cards.openers, cards.nodes)), "it is listened to")
    until(lambda: cards.reasons() == dict.fromkeys((*FIGURES, *LAYOUT), ""), "all is well")
    return served


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
