"""Reads hwloc's XML: the formats 1 (no version is told), 2 and 3.

In hwloc's tree a device hangs where its locality is: the CPUs and NUMA nodes of the object above
its host bridge are those near to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal
from xml.etree import ElementTree as ET

from recorded.machine import Cpu, Function, Interface, Link, Machine, Node, RdmaPort, bits

_TYPE = re.compile(
    r"(?P<code>[0-9a-f]{4}) "
    r"\[(?P<vendor>[0-9a-f]{4}):(?P<device>[0-9a-f]{4})\] "
    r"\[(?P<subvendor>[0-9a-f]{4}):(?P<subdevice>[0-9a-f]{4})\] (?P<revision>[0-9a-f]{2})"
    r"(?: (?P<more>[0-9a-f]{2}))?"
)
_BUSES = re.compile(r"([0-9a-f]+):\[([0-9a-f]{2})-([0-9a-f]{2})\]")
_NVLINK_MBPS = {"P100": 20_000, "V100": 25_000}
"""Of one NVLink, in one direction: of the cards whose matrix of bandwidths hwloc recorded."""


@dataclass
class _Read:
    functions: list[Function] = field(default_factory=list)
    interfaces: list[Interface] = field(default_factory=list)
    rdma: list[RdmaPort] = field(default_factory=list)
    cpus: list[Cpu] = field(default_factory=list)
    nodes: dict[int, frozenset[int]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """`OSDev:802` and the like of what hangs on PCI: the address."""


@dataclass(frozen=True)
class _Where:
    """What is above an object."""

    package: int | None = None
    core: int | None = None
    threads: frozenset[int] = frozenset()
    cpus: frozenset[int] = frozenset()
    nodes: frozenset[int] = frozenset()
    path: tuple[str, ...] = ()
    function: str = ""


def read(text: str) -> Machine:
    """Read a topology."""
    top = ET.fromstring(text)  # noqa: S314  # recordings of known origin, and no entities
    machine = top.find("object")
    if machine is None:
        raise ValueError("no object in it: this is no topology of hwloc")
    version = int(top.get("version", "1").partition(".")[0])
    found = _Read(nodes=_nodes(machine))
    _object(found, machine, _Where(), version)
    distances = _distances(top, machine, sorted(found.nodes))
    return Machine(
        functions=tuple(found.functions),
        interfaces=tuple(found.interfaces),
        rdma=tuple(found.rdma),
        cpus=tuple(sorted(found.cpus, key=lambda cpu: cpu.number)),
        nodes=tuple(
            Node(number=number, cpus=cpus, distances=distances.get(number, ()))
            for number, cpus in sorted(found.nodes.items())
        ),
        links=tuple(_links(top, found)),
    )


def _object(found: _Read, one: ET.Element, where: _Where, version: int) -> None:
    kind = one.get("type", "")
    number = int(one.get("os_index", "-1"))
    cpus = bits(one.get("cpuset", "")) if one.get("cpuset") else where.cpus
    nodes = where.nodes
    if one.get("nodeset"):
        nodes = frozenset(node for node in bits(one.get("nodeset", "")) if found.nodes.get(node))
    package, core, path, function = where.package, where.core, where.path, where.function
    threads = where.threads
    if kind in ("Package", "Socket"):
        package = number if number >= 0 else None
    elif kind == "Core":
        core, threads = number, cpus
    elif kind == "PU":
        found.cpus.append(Cpu(number=number, package=package, core=core, threads=threads))
    elif kind == "Bridge" and one.get("bridge_type") == "0-1":
        domain, first, _ = _buses(one)
        path, function = (f"pci{domain:04x}:{first:02x}",), ""
    elif kind in ("Bridge", "PCIDev"):
        told = _function(one, path, cpus, nodes)
        found.functions.append(told)
        found.names[f"PCIDev:{one.get('gp_index')}"] = told.address
        function = told.address
        if kind == "Bridge":
            path = (*path, told.address)
    elif kind == "OSDev" and function:
        found.names[f"OSDev:{one.get('gp_index')}"] = function
        _device(found, one, function, version)
    below = _Where(package, core, threads, cpus, nodes, path, function)
    for child in one.findall("object"):
        _object(found, child, below, version)


def _nodes(machine: ET.Element) -> dict[int, frozenset[int]]:
    """Give the NUMA nodes with their CPUs.

    From format 2 on a node of memory alone (of a card, of HBM, of CXL) has the CPUs near to it. A
    CPU is in one node, and the kernel numbers those with CPUs first.
    """
    found: dict[int, frozenset[int]] = {}
    taken: frozenset[int] = frozenset()
    told = [one for one in machine.iter("object") if one.get("type") == "NUMANode"]
    for one in sorted(told, key=lambda one: int(one.get("os_index", "-1"))):
        cpus = bits(one.get("cpuset", "")) - taken
        taken |= cpus
        found[int(one.get("os_index", "-1"))] = cpus
    return found


def _buses(bridge: ET.Element) -> tuple[int, int, int]:
    match = _BUSES.fullmatch(bridge.get("bridge_pci", ""))
    if match is None:
        raise ValueError(f"bridge {bridge.get('gp_index')}: no buses in bridge_pci")
    return int(match[1], 16), int(match[2], 16), int(match[3], 16)


def _function(
    one: ET.Element, path: tuple[str, ...], cpus: frozenset[int], nodes: frozenset[int]
) -> Function:
    match = _TYPE.fullmatch(one.get("pci_type", ""))
    if match is None:
        raise ValueError(f"{one.get('pci_busid')}: pci_type is {one.get('pci_type')!r}")
    subsystem = (int(match["subvendor"], 16), int(match["subdevice"], 16))
    return Function(
        address=one.get("pci_busid", ""),
        path=path,
        kind=int(match["code"], 16),
        # From format 3 on.
        interface=int(match["more"], 16) if match["more"] else None,
        vendor=int(match["vendor"], 16),
        device=int(match["device"], 16),
        # hwloc writes zeros where there is none.
        subsystem_vendor=subsystem[0] if any(subsystem) else None,
        subsystem_device=subsystem[1] if any(subsystem) else None,
        revision=int(match["revision"], 16),
        # Near to several nodes alike: which one the kernel named, or whether, is not recorded.
        numa_node=min(nodes) if len(nodes) == 1 else None,
        cpus=cpus,
        below=_buses(one)[1:] if one.get("type") == "Bridge" else None,
        drm=tuple(
            name
            for child in one.findall("object")
            if re.fullmatch(r"(?:card|renderD)\d+", name := child.get("name", ""))
        ),
    )


def _device(found: _Read, one: ET.Element, function: str, version: int) -> None:
    name = one.get("name", "")
    kind = int(one.get("osdev_type", "-1"))
    # Kinds are numbers up to format 2, and one bit each from 3 on (hwloc_obj_osdev_type_e).
    network, fabric = (kind & 16, kind & 32) if version >= 3 else (kind == 2, kind == 3)
    told = {info.get("name"): info.get("value", "") for info in one.findall("info")}
    if "NVIDIAUUID" in told:
        place = next(n for n, one in enumerate(found.functions) if one.address == function)
        found.functions[place] = replace(
            found.functions[place],
            model=told.get("GPUModel", ""),
            uuid=told["NVIDIAUUID"],
            serial=told.get("NVIDIASerial", ""),
        )
    if fabric:
        ports = [
            int(match[1]) for key in told if key and (match := re.match(r"Port(\d+)State", key))
        ]
        found.rdma += [
            RdmaPort(
                device=name,
                function=function,
                port=port,
                state=int(told[f"Port{port}State"]),
            )
            for port in ports
        ]
    elif network:
        port = told.get("Port", "")
        # hwloc counts ports from 1, the kernel's dev_port from 0.
        found.interfaces.append(
            Interface(
                name=name,
                function=function,
                mac=told.get("Address", ""),
                port=int(port) - 1 if port else None,
            )
        )


def _distances(
    top: ET.Element, machine: ET.Element, nodes: list[int]
) -> dict[int, tuple[int, ...]]:
    for matrix in top.findall("distances2"):
        if matrix.get("type") == "NUMANode" and "Latency" in matrix.get("name", "NUMALatency"):
            # Of format 2 some are not numbered by the kernel, but by their place.
            order = _numbers(matrix, "indexes")
            if matrix.get("indexing") == "gp":
                return {}
            return _rows(order, _numbers(matrix, "u64values"))
    for matrix in machine.findall("distances"):
        base = float(matrix.get("latency_base", "0"))
        values = [round(float(one.get("value", "0")) * base) for one in matrix.findall("latency")]
        if len(values) == len(nodes) ** 2:
            return _rows(nodes, values)
    return {}


def _numbers(matrix: ET.Element, name: str) -> list[int]:
    return [int(word) for part in matrix.findall(name) for word in (part.text or "").split()]


def _rows(order: list[int], values: list[int]) -> dict[int, tuple[int, ...]]:
    """Give each node's distances, to the nodes in the order of their numbers."""
    size = len(order)
    places = sorted(range(size), key=lambda place: order[place])
    return {
        order[row]: tuple(values[row * size + column] for column in places) for row in range(size)
    }


def _links(top: ET.Element, found: _Read) -> Iterator[Link]:
    """Give NVLinks to cards, switches and CPUs from the matrix of their bandwidths."""
    models = [one.model for one in found.functions if one.uuid]
    mbps = {speed for card, speed in _NVLINK_MBPS.items() for model in models if card in model}
    kinds = {one.address: one.kind for one in found.functions}
    for matrix in top.findall("distances2hetero"):
        if matrix.get("name") != "NVLinkBandwidth" or len(mbps) != 1:
            continue
        (of_one,) = mbps
        ends = [word for part in matrix.findall("indexes") for word in (part.text or "").split()]
        values = _numbers(matrix, "u64values")
        for row, one in enumerate(ends):
            for column, other in enumerate(ends):
                value = values[row * len(ends) + column]
                # On the diagonal is a number that is bigger than all of them.
                if not value or row == column or not one.startswith("OSDev"):
                    continue
                at = found.names.get(other, "")
                end: Literal["gpu", "switch", "cpu"] = "gpu"
                if kinds.get(at) != kinds[found.names[one]]:
                    end = "switch" if at else "cpu"
                yield Link(
                    kind="nvlink",
                    one=found.names[one],
                    other=at,
                    count=value // of_one,
                    end=end,
                )
