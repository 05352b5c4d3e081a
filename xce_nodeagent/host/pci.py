"""PCI functions as sysfs shows them: where one hangs in the tree, and what it is near to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from xce_nodeagent.host import cpulist
from xce_nodeagent.host.machine import Host
from xce_nodeagent.model.environment import ranges

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_DEVICES = "/sys/bus/pci/devices"
_NODES = "/sys/devices/system/node"
_ID = "[0-9A-Fa-f]{1,8}"
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_DISPLAY, _OTHER_DISPLAY = 0x03, 0x0380  # PCI base class, and class with subclass


class Place(Struct, frozen=True):
    """Where a function hangs: its host bridge, and the bridges from there down to it."""

    address: str
    root: str
    bridges: tuple[str, ...] = ()

    @property
    def switch(self) -> str:
        """Give the upstream port of the nearest PCIe switch; empty where there is none.

        A switch is an upstream port with downstream ports below it, so what is behind one has at
        least three bridges above it: a root port, the upstream port, a downstream port. sysfs
        shows the kind of a port to root only, and the count is the same. A bridge more, below a
        downstream port, leads to conventional PCI.
        """
        upstream = self.bridges[1:-1:2]
        return upstream[-1] if upstream else ""


def place(host: Host, device: str) -> Place | None:
    """Place a device by its sysfs path: at the nearest PCI function above it (or itself).

    A virtio interface is `.../0000:00:03.0/virtio2`, an RDMA device `.../0000:82:00.0/infiniband/
    mlx4_0`. None where the device hangs on no PCI bus.
    """
    return host.derived(device, lambda: _place(host, device))


def _place(host: Host, device: str) -> Place | None:
    path = host.real(device)
    if path is None:
        return None
    parts = path.split("/")
    chain = [part for part in parts if _ADDRESS.fullmatch(part)]
    roots = [part for part in parts if _ROOT.fullmatch(part)]
    if not chain or not roots:
        return None
    # VMD and Hyper-V put a host bridge of their own below a function: the nearest one counts, and
    # only what is below it.
    below = parts[parts.index(roots[-1]) :]
    bridges = tuple(part for part in below if part in chain[:-1])
    return Place(chain[-1], roots[-1], bridges)


def is_address(name: str) -> bool:
    """Say whether a name is that of a PCI function, `domain:bus:device.function`."""
    return bool(_ADDRESS.fullmatch(name))


def functions(host: Host) -> dict[str, int]:
    """Give every PCI function of the host with its class code (24 bits)."""
    return host.state(_DEVICES, lambda: _functions(host))


def _functions(host: Host) -> dict[str, int]:
    return {
        address: host.number(f"{_DEVICES}/{address}/class") or 0 for address in host.names(_DEVICES)
    }


def is_second_head(host: Host, address: str, codes: Mapping[str, int]) -> bool:
    """Say whether a display is the second head of the card that function 0 of its slot is.

    Older cards have such a function ("display, other"), which no driver takes; on a virtual
    function, which may look the same, one does. `codes` is what `functions` gives.
    """
    first = f"{address[:-1]}0"
    return (
        address != first
        and codes.get(address, 0) >> 8 == _OTHER_DISPLAY
        and codes.get(first, 0) >> 16 == _DISPLAY
        and host.real(f"/sys/bus/pci/devices/{address}/driver") is None
        and host.real(f"/sys/bus/pci/devices/{address}/physfn") is None
    )


def numa_node(host: Host, address: str) -> int | None:
    """Give the NUMA node nearest to a function; None where firmware does not tell (-1).

    Where there is no such file (a kernel or a record without it), the CPUs near to the function
    tell: the one node that has all of them.
    """
    node = host.number(f"/sys/bus/pci/devices/{address}/numa_node")
    if node is None:
        near = frozenset(local_cpus(host, address))
        return _node_of(host, near) if near else None
    return node if node >= 0 else None


def _node_of(host: Host, cpus: frozenset[int]) -> int | None:
    names = (name for name in host.names(_NODES) if re.fullmatch("node[0-9]{1,7}", name))
    found = [
        name for name in names if cpus.issubset(cpulist.inside(host, f"{_NODES}/{name}", "cpu"))
    ]
    return int(found[0].removeprefix("node")) if len(found) == 1 else None


def local_cpus(host: Host, address: str) -> tuple[int, ...]:
    """Give the CPUs nearest to a function; none where the kernel does not tell."""
    return cpulist.inside(host, f"/sys/bus/pci/devices/{address}", "local_cpu")


def identifier(host: Host, address: str, name: str) -> int | None:
    """Give `vendor`, `device`, `subsystem_vendor` or `subsystem_device` as a number."""
    return host.number(f"/sys/bus/pci/devices/{address}/{name}")


def facts(host: Host, address: str) -> dict[str, str | int]:
    """Give what a picture or an export needs of a function: class, vendor, device, link.

    class, vendor, device, subsystem_vendor and subsystem_device are hexadecimal without 0x.
    `link_speed` (such as `16.0 GT/s PCIe`) and `link_width` are the most that its own port can do;
    the link above it has the lesser of both its ends. What it does now is not told: cards slow
    down when idle. Conventional PCI has no link, and virtual machines say "Unknown" or a width of
    0 or 255.
    """
    # Kept as long as one of the files that it is made of.
    return host.derived(f"{_DEVICES}/{address}/uevent", lambda: _facts(host, address))


def _facts(host: Host, address: str) -> dict[str, str | int]:
    folder = f"{_DEVICES}/{address}"
    found: dict[str, str | int] = {}
    code = host.number(f"{folder}/class")
    if code is not None:
        found["class"] = f"{code:06x}"
    event = host.read(f"{folder}/uevent") or ""  # what it tells needs no file of its own
    for key, prefix in (("PCI_ID", ""), ("PCI_SUBSYS_ID", "subsystem_")):
        told = re.search(rf"^{key}=({_ID}):({_ID})$", event, re.MULTILINE)
        for place, name in enumerate(("vendor", "device"), 1):
            number = int(told[place], 16) if told else identifier(host, address, prefix + name)
            if number is not None:
                found[prefix + name] = f"{number:04x}"
    speed = host.read(f"{folder}/max_link_speed") or ""
    if re.match(r"\d", speed):
        found["link_speed"] = speed
        width = host.number(f"{folder}/max_link_width")
        if width is not None and 0 < width < 255:
            found["link_width"] = width
    return found


def attributes(
    host: Host, address: str, where: Place | None = None
) -> Iterator[tuple[str, str | int]]:
    """Give what placement asks of a function: where it is, and what it is near to.

    `where` spares looking for its place where that is known. What sysfs does not tell is left out.
    """
    yield "pci_address", address
    where = where or place(host, f"/sys/bus/pci/devices/{address}")
    if where is not None:
        yield "pcie_root", where.root
        if where.switch:
            yield "pcie_switch", where.switch
    node = numa_node(host, address)
    if node is not None:
        yield "numa_node", node
    listed = f"/sys/bus/pci/devices/{address}/local_cpulist"
    if cpus := host.derived(listed, lambda: ranges(local_cpus(host, address))):
        yield "local_cpus", cpus
