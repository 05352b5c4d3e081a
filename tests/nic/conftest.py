"""Machines with NICs, written as the kernel shows them; and a network namespace of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model.config import NicConfig
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.providers import all_providers

BELOW = "pci0000:00/0000:00:01.0"
MELLANOX = ("0x15b3", "0x1021")


class Machine:
    """A tree below a folder. Paths given and returned are those of the machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.interfaces = 1

    def file(self, path: str, text: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")

    def link(self, path: str, to: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        folder = os.path.realpath(place.parent)
        place.symlink_to(os.path.relpath(os.path.realpath(self.root / to.lstrip("/")), folder))

    def function(
        self,
        address: str,
        made: tuple[str, str] = MELLANOX,
        *,
        driver: str = "",
        of: str = "",
        **facts: str,
    ) -> str:
        """Make a PCI function; `of` is the physical one of a virtual one."""
        folder = f"/sys/devices/{BELOW}/{address}"
        told = {"class": "0x020000", "vendor": made[0], "device": made[1], "numa_node": "0"}
        for name, value in (told | facts).items():
            self.file(f"{folder}/{name}", value)
        self.link(f"/sys/bus/pci/devices/{address}", folder)
        self.link(f"{folder}/subsystem", "/sys/bus/pci")
        if driver:
            self.link(f"{folder}/driver", f"/sys/bus/pci/drivers/{driver}")
            (self.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
        if of:
            self.link(f"{folder}/physfn", f"/sys/devices/{BELOW}/{of}")
        return folder

    def netdev(self, name: str, device: str = "", **facts: str) -> str:
        """Make an interface; without a device it is virtual."""
        self.interfaces += 1
        folder = f"{device or '/sys/devices/virtual'}/net/{name}"
        index = str(self.interfaces)
        told = {"type": "1", "operstate": "up", "speed": "-1", "ifindex": index, "iflink": index}
        for key, value in (told | facts).items():
            self.file(f"{folder}/{key}", value)
        self.link(f"/sys/class/net/{name}", folder)
        if device:
            self.link(f"{folder}/device", device)
        return folder

    def on(self, upper: str, *lower: str) -> None:
        """Let an interface stand on others."""
        for one in lower:
            self.link(f"/sys/class/net/{upper}/lower_{one}", f"/sys/class/net/{one}")
            self.link(f"/sys/class/net/{one}/upper_{upper}", f"/sys/class/net/{upper}")

    def bond(self, name: str, *members: str) -> None:
        self.netdev(name)
        self.file(f"/sys/class/net/{name}/bonding/slaves", " ".join(members))
        self.on(name, *members)
        for one in members:
            self.link(f"/sys/class/net/{one}/master", f"/sys/class/net/{name}")

    def vlan(self, name: str, parent: str) -> None:
        self.netdev(name)
        self.file(f"/sys/class/net/{name}/uevent", f"DEVTYPE=vlan\nINTERFACE={name}")
        self.on(name, parent)

    def rdma(
        self, name: str, device: str, *, layer: str = "Ethernet", minor: int = 192, **facts: str
    ) -> str:
        """Make an RDMA device with one port; facts that begin with `port_` are that one's."""
        folder = f"{device}/infiniband/{name}"
        told = {"node_type": "1: CA", "port_state": "4: ACTIVE", "port_phys_state": "5: LinkUp"}
        told |= {"port_rate": "400 Gb/sec (4X NDR)", "port_link_layer": layer}
        for key, value in (told | facts).items():
            self.file(f"{folder}/{key.replace('port_', 'ports/1/')}", value)
        self.link(f"/sys/class/infiniband/{name}", folder)
        self.link(f"{folder}/device", device)
        self.node("infiniband_verbs", f"uverbs{minor - 192}", f"231:{minor}", ibdev=name)
        return folder

    def node(self, kind: str, name: str, numbers: str, device: str = "", **facts: str) -> None:
        """Make what a class shows of a character node."""
        folder = f"{device or '/sys/devices/virtual'}/{kind}/{name}"
        for key, value in ({"dev": numbers} | facts).items():
            self.file(f"{folder}/{key}", value)
        self.link(f"/sys/class/{kind}/{name}", folder)
        if device:
            self.link(f"{folder}/device", device)

    def default_route(self, name: str) -> None:
        self.file(
            "/proc/net/route",
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
            f"{name}\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
            f"{name}\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0",
        )

    def nics(self, **config: tuple[str, ...]) -> dict[str, Instance]:
        """Give what discovery finds, by id."""
        host = Host(self.root, live=False, nic=NicConfig(**config))
        found = scan(host, all_providers(("nic",)))
        assert not found.problems
        return {one.id: one for one in found.instances}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Machine]:
    return lambda: Machine(tmp_path_factory.mktemp("machine"))


class Namespace:
    """A network namespace."""

    def __init__(self, name: str) -> None:
        self.name = name

    def ip(self, words: str) -> None:
        subprocess.run(["ip", "-n", self.name, *words.split()], check=True)

    def make(self, name: str, kind: str) -> None:
        """Make an interface, or skip the test where this kernel has no such kind."""
        done = subprocess.run(
            ["ip", "-n", self.name, "link", "add", name, *kind.split()],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        if "Unknown device type" in done.stderr or "not supported" in done.stderr:
            pytest.skip(f"this kernel makes no interface {kind}")
        assert done.returncode == 0, done.stderr

    def pair(self, name: str) -> None:
        """Make a veth, up at both ends; the other end is called NAMEx."""
        self.ip(f"link add {name} type veth peer name {name}x")
        self.ip(f"link set {name} up")
        self.ip(f"link set {name}x up")

    def run(self, code: str) -> Any:
        """Run Python in the namespace, with its own sysfs; the answer is a line of JSON."""
        command = ["ip", "netns", "exec", self.name, sys.executable, "-W", "error", "-c", code]
        return json.loads(subprocess.check_output(command, timeout=60))


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    name = f"xce-nic-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        yield Namespace(name)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
