"""Network interfaces and RDMA devices as sysfs shows them.

Sources: kernel Documentation/ABI/testing/sysfs-class-net and ABI/stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, structs

from xce_nodeagent.host import pci
from xce_nodeagent.host.machine import Host
from xce_nodeagent.model.instance import DeviceNode

_NET, _RDMA = "/sys/class/net", "/sys/class/infiniband"
_LINK_LAYERS = {1: "ethernet", 32: "infiniband"}  # ARPHRD_*, linux/if_arp.h
_REPRESENTOR = re.compile(r"(?:c\d+)?pf\d+(?:vf|sf)\d+")
"""phys_port_name of a switch port that stands for a virtual function (networking/switchdev.rst)."""


class Interface(Struct, frozen=True, kw_only=True):
    """An interface that hardware stands behind. What the kernel does not tell is empty."""

    name: str
    place: pci.Place | None
    port: int = 0
    """Which port of its function, from 0: functions of the mlx4 driver have two."""
    mac: str = ""
    state: str = ""
    link_layer: str = ""
    speed_mbps: int = 0
    physical_function: str = ""


class RdmaPort(Struct, frozen=True, kw_only=True):
    """A port of an RDMA device, counted from 1."""

    device: str
    port: int
    place: pci.Place | None
    netdev: str = ""
    state: str = ""
    link_layer: str = ""
    speed_mbps: int = 0


def interfaces(host: Host) -> tuple[Interface, ...]:
    """Give the interfaces with a device behind them: no loopback, bridge, bond, VLAN or veth.

    Also left out: children of an InfiniBand interface, and representors, which are ends of an
    internal switch and belong to the host.
    """
    found = (_interface(host, name) for name in host.names(_NET))
    return tuple(_told_apart(interface for interface in found if interface is not None))


def _told_apart(found: Iterable[Interface]) -> Iterator[Interface]:
    """Number the ports of a function anew where its driver does not tell them apart."""
    used: set[tuple[str, int]] = set()
    for one in found:
        number = one.port
        if one.place is not None:
            while (one.place.address, number) in used:
                number += 1
            used.add((one.place.address, number))
        yield one if number == one.port else structs.replace(one, port=number)


def _interface(host: Host, name: str) -> Interface | None:
    folder = f"{_NET}/{name}"
    device = _behind(host, folder)
    if device is None:
        return None
    index, below = host.number(f"{folder}/ifindex"), host.number(f"{folder}/iflink")
    if index is not None and below is not None and index != below:
        return None
    if _REPRESENTOR.fullmatch(host.read(f"{folder}/phys_port_name") or ""):
        return None
    # An interface on USB hangs below a PCI function as well: below the USB controller, which is
    # not what a job would be given.
    bus = (host.real(f"{device}/subsystem") or "").rpartition("/")[2]
    speed = host.number(f"{folder}/speed") or 0
    function = host.real(f"{device}/physfn")
    return Interface(
        name=name,
        place=None if bus == "usb" else pci.place(host, device),
        # dev_port came with Linux 3.15; before that, mlx4 told its ports apart by dev_id.
        port=host.number(f"{folder}/dev_port") or host.number(f"{folder}/dev_id") or 0,
        mac=host.read(f"{folder}/address") or "",
        state=host.read(f"{folder}/operstate") or "",
        link_layer=_LINK_LAYERS.get(host.number(f"{folder}/type") or 0, ""),
        speed_mbps=max(speed, 0),
        physical_function=function.rpartition("/")[2] if function else "",
    )


def _behind(host: Host, folder: str) -> str | None:
    """Give the device that an entry of a class is of; None for what the kernel made by itself.

    Where the link to it is missing (recorded machines often lack it), the place of the entry
    tells: `.../0000:02:00.0/net/eth0`, and `/sys/devices/virtual/net/lo`.
    """
    if device := host.real(f"{folder}/device"):
        return device
    above = (host.real(folder) or "").rpartition("/")[0].rpartition("/")[0]
    return above if above.startswith("/sys/devices/") and pci.place(host, above) else None


def rdma_ports(host: Host) -> tuple[RdmaPort, ...]:
    """Give the ports of all RDMA devices."""
    found: list[RdmaPort] = []
    for device in host.names(_RDMA):
        folder = f"{_RDMA}/{device}"
        behind = _behind(host, folder)
        place = pci.place(host, behind) if behind else None
        found += [
            _rdma_port(host, device, int(port), place)
            for port in host.names(f"{folder}/ports")
            if port.isdecimal()
        ]
    return tuple(found)


def _rdma_port(host: Host, device: str, port: int, place: pci.Place | None) -> RdmaPort:
    folder = f"{_RDMA}/{device}/ports/{port}"
    gids = f"{folder}/gid_attrs/ndevs"
    names = (host.read(f"{gids}/{gid}") for gid in host.names(gids)[:1])
    # "4: ACTIVE"; "100 Gb/sec (4X EDR)"
    state = (host.read(f"{folder}/state") or "").partition(": ")[2]
    rate = re.match(r"([0-9.]+) Gb/sec", host.read(f"{folder}/rate") or "")
    return RdmaPort(
        device=device,
        port=port,
        place=place,
        netdev=next((name for name in names if name), ""),
        state={"ACTIVE": "up", "": ""}.get(state, "down"),
        link_layer=(host.read(f"{folder}/link_layer") or "").lower(),
        speed_mbps=round(float(rate[1]) * 1000) if rate else 0,
    )


def match(interface: Interface, ports: tuple[RdmaPort, ...]) -> RdmaPort | None:
    """Find the RDMA port of an interface: the one that names it, else the same port by number."""
    for port in ports:
        if port.netdev == interface.name:
            return port
    if interface.place is None:
        return None
    same = [port for port in ports if port.place and port.place.address == interface.place.address]
    by_number = [port for port in same if port.port == interface.port + 1]
    return by_number[0] if by_number else same[0] if len(same) == 1 else None


def verbs_nodes(host: Host) -> Mapping[str, DeviceNode]:
    """Give the uverbs node of each RDMA device, by the device's name."""
    folder = "/sys/class/infiniband_verbs"
    nodes: dict[str, DeviceNode] = {}
    for name in host.names(folder):
        device = host.read(f"{folder}/{name}/ibdev")
        node = _node(host, f"{folder}/{name}", name)
        if device and node:
            nodes[device] = node
    return nodes


def management_nodes(host: Host) -> tuple[DeviceNode, ...]:
    """Give the nodes for management datagrams (umad, issm): whoever has one can rule a fabric."""
    folder = "/sys/class/infiniband_mad"
    found = (_node(host, f"{folder}/{name}", name) for name in host.names(folder))
    return tuple(node for node in found if node)


def connection_manager(host: Host) -> DeviceNode | None:
    """Give the node that every program needs to connect through RDMA."""
    return _node(host, "/sys/class/misc/rdma_cm", "rdma_cm")


def _node(host: Host, folder: str, name: str) -> DeviceNode | None:
    numbers = re.fullmatch(r"(\d+):(\d+)", host.read(f"{folder}/dev") or "")
    if not numbers:
        return None
    return DeviceNode(f"/dev/infiniband/{name}", "c", int(numbers[1]), int(numbers[2]))


def carriers(host: Host, names: frozenset[str]) -> frozenset[str]:
    """Follow bonds, bridges and VLANs down: give the interfaces that carry these."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        todo += [
            entry.removeprefix("lower_")
            for entry in host.names(f"{_NET}/{name}")
            if entry.startswith("lower_")
        ]
    return frozenset(found)
