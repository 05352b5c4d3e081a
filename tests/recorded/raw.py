"""Reads a raw tree by walking through its folders: no link is followed, and no class is asked.

What hangs on PCI is where its folder is: `sys/devices/pci0000:00/0000:00:01.0/.../net/eth0`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from recorded.machine import Cpu, Function, Interface, Machine, Node, RdmaPort, bits

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def read(root: Path) -> Machine:
    """Read the tree below a root; of it, what the bus and the classes have in their lists."""
    bus, nets = _names(root / "sys/bus/pci/devices"), _names(root / "sys/class/net")
    functions: list[Function] = []
    interfaces: list[Interface] = []
    rdma: list[RdmaPort] = []
    for folder in _folders(root / "sys/devices"):
        way = tuple(
            part
            for part in folder.relative_to(root / "sys/devices").parts
            if _ADDRESS.fullmatch(part) or _BRIDGE.fullmatch(part)
        )
        # A host bridge below a function (VMD) begins a tree of its own.
        first = max((n for n, part in enumerate(way) if _BRIDGE.fullmatch(part)), default=-1)
        way = way[first:]
        if first < 0 or len(way) < 2:
            continue
        if _ADDRESS.fullmatch(folder.name) and folder.name in bus:
            functions.append(_function(folder, way))
        elif folder.parent.name == "net" and folder.name in nets and "/usb" not in str(folder):
            mac = _text(folder / "address")
            interfaces.append(Interface(name=folder.name, function=way[-1], mac=mac))
        elif folder.parent.name == "infiniband":
            ports = sorted(int(port.name) for port in (folder / "ports").glob("*"))
            rdma += [RdmaPort(device=folder.name, function=way[-1], port=port) for port in ports]
    cpus = tuple(_cpus(root / "sys/devices/system/cpu"))
    online = frozenset(cpu.number for cpu in cpus)
    return Machine(
        functions=tuple(functions),
        interfaces=tuple(interfaces),
        rdma=tuple(rdma),
        cpus=cpus,
        nodes=tuple(_nodes(root / "sys/devices/system/node", online)),
    )


def _names(folder: Path) -> frozenset[str]:
    return frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()


def _folders(top: Path) -> Iterator[Path]:
    for folder, inside, _ in os.walk(top):
        inside.sort()
        if folder == str(top):
            inside[:] = [name for name in inside if name.startswith("pci")]
        yield Path(folder)


def _function(folder: Path, way: tuple[str, ...]) -> Function:
    code = _number(folder / "class")
    near = _text(folder / "local_cpulist")
    numa = _text(folder / "numa_node")
    return Function(
        address=folder.name,
        path=way[:-1],
        kind=None if code is None else code >> 8,
        interface=None if code is None else code & 0xFF,
        vendor=_number(folder / "vendor"),
        device=_number(folder / "device"),
        numa_node=int(numa) if numa else None,
        cpus=_list(near) if near else bits(_text(folder / "local_cpus") or "0"),
    )


def _cpus(folder: Path) -> Iterator[Cpu]:
    """Give the CPUs that are online, with those of their siblings that are."""
    online = _list(_text(folder / "online"))
    for one in sorted(folder.glob("cpu[0-9]*")):
        package = _text(one / "topology/physical_package_id")
        siblings = _text(one / "topology/thread_siblings_list")
        threads = _list(siblings) or bits(_text(one / "topology/thread_siblings") or "0")
        number = int(one.name.removeprefix("cpu"))
        if package and (number in online or not online):
            yield Cpu(
                number=number,
                package=int(package) if int(package) >= 0 else None,
                threads=threads & online if online else threads,
            )


def _nodes(folder: Path, online: frozenset[int]) -> Iterator[Node]:
    """Give the nodes; some recordings lack CPUs that are in the nodes' lists."""
    for one in sorted(folder.glob("node[0-9]*")):
        listed, mapped = _text(one / "cpulist"), _text(one / "cpumap")
        cpus = _list(listed) if listed else bits(mapped or "0")
        yield Node(
            number=int(one.name.removeprefix("node")),
            cpus=cpus & online if online else cpus,
            distances=tuple(map(int, _text(one / "distance").split())),
        )


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace").strip("\0\n ") if path.is_file() else ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text, 16) if text else None


def _list(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
