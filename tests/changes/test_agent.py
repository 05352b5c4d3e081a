"""A real agent in a network of its own hears of real changes, and says so in no time."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.running import serving

from xce_nodeagent.host.linkmonitor import LinkMonitor

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf", "netns")

PATIENCE = 20.0
STORM = 10_000


def _function() -> str:
    """Find a PCI function that is no network card, and whose events nobody minds."""
    for path in sorted(Path("/sys/bus/pci/devices").glob("*")):
        if not (path / "class").read_text("ascii").startswith("0x02"):
            return path.name
    return ""


class Watched:
    """An agent, and the stream of its inventories."""

    def __init__(self, running: Any) -> None:
        self.running = running
        self.pid = running.process.pid
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE)
        self._socket.connect(str(running.socket))
        call = {"method": "io.xce.NodeAgent.GetInventory", "parameters": {}, "more": True}
        self._socket.sendall(json.dumps(call).encode() + b"\0")
        self._data = b""
        self.generations: list[str] = []
        self.heard = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._socket.close()

    def next(self) -> dict[str, Any] | None:
        """Give nic0 as the next inventory has it."""
        while b"\0" not in self._data:
            chunk = self._socket.recv(1 << 16)
            assert chunk, self.running.log.read_text("utf-8")
            self._data += chunk
        message, _, self._data = self._data.partition(b"\0")
        inventory = json.loads(message)["parameters"]
        self.generations.append(inventory["generation"])
        return next((i for i in inventory["instances"] if i["provider"] == "nic"), None)

    def until(self, wanted: Any) -> None:
        """Wait for an inventory in which nic0 is as wanted."""
        began = time.monotonic()
        while not wanted(self.next()):
            assert time.monotonic() - began < PATIENCE

    def told(self, what: str) -> None:
        """Print how long after the kernel's last event that is: now."""
        now = time.monotonic()
        print(f"{what}: {(now - self.heard) * 1e3:.0f} ms after the kernel's own event")  # noqa: T201  # part of the result

    def _listen(self) -> None:
        """Hear what the agent hears, and note when: the kernel takes up to a second of its own."""
        with open(f"/proc/{self.pid}/ns/net", "rb") as namespace:
            if ctypes.CDLL(None).setns(namespace.fileno(), 0):
                return
        monitor = LinkMonitor()
        with contextlib.closing(monitor):
            while not self._closed.is_set():
                if select.select([monitor], [], [], 0.2)[0] and monitor.drain():
                    self.heard = time.monotonic()

    def ip(self, *lines: str) -> None:
        """Have these commands done in the agent's network."""
        subprocess.run(
            ["nsenter", f"--net=/proc/{self.pid}/ns/net", "ip", "-batch", "-"],
            input="\n".join(lines) + "\n",
            text=True,
            check=True,
            timeout=60,
        )


@pytest.fixture(scope="module")
def watched(cgroup2_mount: Path) -> Iterator[Watched]:
    """An agent with one NIC that is a bridge, up, with a carrier."""
    address = _function()
    if not address:
        pytest.skip("this machine has no PCI function to stand behind a NIC")
    with serving(cgroup2_mount) as running:
        running.stop()
        staged = str(Path(__file__).with_name("staged.py"))
        running.python = [sys.executable, staged, str(running.folder), address, sys.executable]
        running.start()
        made = Watched(running)
        with contextlib.closing(made):
            assert made.next() is None
            made.ip("link add va type veth peer name vb", "link add nic0 type bridge",
                    "link set va master nic0", "link set va up", "link set vb up",
                    "link set nic0 up", "addr add 192.0.2.1/24 dev nic0")  # fmt: skip
            made.until(lambda nic: nic and nic["attributes"].get("state") == "up")
            yield made


def test_a_carrier_that_is_lost_and_comes_back(watched) -> None:
    watched.ip("link set vb down")
    watched.until(lambda nic: nic["attributes"]["state"] == "down")
    watched.told("no carrier")
    watched.ip("link set vb up")
    watched.until(lambda nic: nic["attributes"]["state"] == "up")


def test_a_link_that_is_taken_down(watched) -> None:
    watched.ip("link set nic0 down")
    watched.until(lambda nic: nic["attributes"]["state"] == "down")
    watched.told("link down")
    watched.ip("link set nic0 up")
    watched.until(lambda nic: nic["attributes"]["state"] == "up")


def test_the_default_route_makes_a_nic_the_hosts_own(watched) -> None:
    watched.ip("route add default via 192.0.2.2")
    watched.until(lambda nic: nic["reserved"])
    watched.told("default route")
    watched.ip("route del default")
    watched.until(lambda nic: not nic["reserved"])


def test_a_rule_makes_a_nic_the_hosts_own(watched) -> None:
    watched.ip("route add default via 192.0.2.2 table 101")
    watched.ip("rule add table 101")
    watched.until(lambda nic: nic["reserved"])
    watched.told("rule")
    watched.ip("rule del table 101")
    watched.until(lambda nic: not nic["reserved"])
    watched.ip("route del default table 101")


def test_a_nic_that_goes_and_comes(watched) -> None:
    watched.ip("link del nic0")
    watched.until(lambda nic: nic is None)
    watched.told("gone")
    watched.ip("link add nic0 type bridge", "link set va master nic0", "link set nic0 up",
               "addr add 192.0.2.1/24 dev nic0")  # fmt: skip
    watched.until(lambda nic: nic and nic["attributes"].get("state") == "up")


def test_events_that_change_nothing_raise_no_generation(watched) -> None:
    before = watched.running.call("GetInventory")["generation"]
    watched.generations.clear()
    (Path("/sys/bus/pci/devices") / _function() / "uevent").write_text("change")
    watched.ip("link add other type bridge", "link set other up", "link del other",
               "link set nic0 mtu 1400", "link set nic0 mtu 1500")  # fmt: skip
    watched.ip("link set nic0 down")
    watched.until(lambda nic: nic["attributes"]["state"] == "down")
    (first,) = watched.generations
    assert int(first.split(":")[1]) == int(before.split(":")[1]) + 1
    watched.ip("link set nic0 up")
    watched.until(lambda nic: nic["attributes"]["state"] == "up")


def test_after_a_storm_the_last_state_is_told_and_no_memory_is_kept(watched) -> None:
    """Ten thousand events of the bus, and a thousand of a link that ends up down."""
    before, generation = _memory(watched.pid), _number(watched)
    descriptor = os.open(Path("/sys/bus/pci/devices") / _function() / "uevent", os.O_WRONLY)
    try:
        for _ in range(STORM):
            os.write(descriptor, b"change")
    finally:
        os.close(descriptor)
    watched.ip(*(["link set nic0 down", "link set nic0 up"] * 500), "link set nic0 down")
    began = time.monotonic()
    while _state(watched) != "down":
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.02)
    watched.told("the end of a storm")
    assert _memory(watched.pid) - before < 32 << 20
    assert _number(watched) > generation
    watched.ip("link set nic0 up")
    watched.until(lambda nic: nic["attributes"]["state"] == "up")


def test_jobs_are_served_while_a_storm_goes_on(watched) -> None:
    """Events come without an end until all jobs have come and gone; and no memory is kept."""
    before, enough, count = _memory(watched.pid), threading.Event(), 0

    def blow() -> None:
        nonlocal count
        path = Path("/sys/bus/pci/devices") / _function() / "uevent"
        descriptor = os.open(path, os.O_WRONLY)
        while not enough.is_set() or count < STORM:
            os.write(descriptor, b"change")
            count += 1
        os.close(descriptor)

    storm = threading.Thread(target=blow)
    storm.start()
    try:
        for number in range(20):
            watched.running.call("Prepare", job=f"storm-{number}")
            watched.running.call("Release", job=f"storm-{number}")
    finally:
        enough.set()
        storm.join()
    assert count >= STORM
    assert _memory(watched.pid) - before < 32 << 20
    watched.ip("link set nic0 down")
    watched.until(lambda nic: nic["attributes"]["state"] == "down")
    watched.ip("link set nic0 up")
    watched.until(lambda nic: nic["attributes"]["state"] == "up")


def _state(watched: Watched) -> str:
    found = watched.running.call("GetInventory")["instances"]
    return next(i for i in found if i["provider"] == "nic")["attributes"]["state"]


def _number(watched: Watched) -> int:
    return int(watched.running.call("GetInventory")["generation"].rpartition(":")[2])


def _memory(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")
