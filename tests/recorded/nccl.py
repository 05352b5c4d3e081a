"""Reads the topology files of NCCL and RCCL (NCCL_TOPO_FILE, src/graph/xml.cc).

NCCL looks at every second level of sysfs (`ncclTopoFillXmlFromPci`): of a PCIe switch it has the
upstream port alone, and of root ports nothing. A switch has a port towards each of its devices, and
hangs below a root port itself, so such ports are made up here, and are marked; their addresses
are in a domain of their own. A host bridge is not told either; NCCL's `cpu`, a NUMA node, stands
for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from xml.etree import ElementTree as ET

from recorded.machine import Function, Interface, Link, Machine, Node, RdmaPort, bits

MADE_UP = 0xFFFE
_BRIDGE = 0x0604
_AMD = 0x1002


@dataclass
class _Read:
    functions: list[Function] = field(default_factory=list)
    interfaces: list[Interface] = field(default_factory=list)
    rdma: list[RdmaPort] = field(default_factory=list)
    nodes: dict[int, Node] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    leaves: frozenset[str] = frozenset()
    """Addresses of what no other function is below of."""
    numbers: Iterator[int] = field(default_factory=lambda: count(0))


def read(text: str) -> Machine:
    """Read a topology file."""
    system = ET.fromstring(text)  # noqa: S314  # recordings of known origin, and no entities
    if system.tag != "system":
        raise ValueError(f"<{system.tag}> is no topology of NCCL: it begins with <system>")
    leaves = (pci.get("busid", "") for pci in system.iter("pci") if not pci.findall("pci"))
    found = _Read(leaves=frozenset(leaves))
    cpus = system.findall("cpu")
    for cpu in cpus:
        if cpu.get("host_hash") != cpus[0].get("host_hash"):
            continue  # of another host that is in the same NVLink fabric
        number = int(cpu.get("numaid", "-1"))
        affinity = cpu.get("affinity")
        if number >= 0 and affinity is not None:
            found.nodes[number] = Node(number=number, cpus=bits(affinity))
        for pci in cpu.findall("pci"):
            _pci(found, pci, (f"pci{MADE_UP:04x}:{max(number, 0):02x}",), number)
    return Machine(
        functions=tuple(found.functions),
        interfaces=tuple(found.interfaces),
        rdma=tuple(found.rdma),
        nodes=tuple(found.nodes[number] for number in sorted(found.nodes)),
        links=tuple(found.links),
    )


def _pci(found: _Read, pci: ET.Element, path: tuple[str, ...], node: int) -> None:
    address = pci.get("busid", "")
    inside = pci.findall("pci")
    if inside:
        path = (*path, _port(found, path))
        if address in found.leaves:
            # A file that people wrote by hand has one address twice. It is the device's.
            address = _made_up(found)
    code = _number(pci, "class")
    told = Function(
        address=address,
        path=path,
        kind=None if code is None else code >> 8,
        interface=None if code is None else code & 0xFF,
        vendor=_vendor(pci),
        device=_number(pci, "device"),
        subsystem_vendor=_number(pci, "subsystem_vendor"),
        subsystem_device=_number(pci, "subsystem_device"),
        numa_node=node,
        # NCCL has the compute capability there.
        compute_units=next(
            (int(gpu.get("sm", "0")) for gpu in pci.findall("gpu") if "gcn" in gpu.attrib), None
        ),
    )
    found.functions.append(told)
    for one in inside:
        below = (*path, address)
        # What is a switch itself gets its own port above it.
        if not one.findall("pci"):
            below = (*below, _port(found, below))
        _pci(found, one, below, node)
    # A GPU that several processes share is there once for each.
    for gpu in pci.findall("gpu")[:1]:
        found.links += _links(gpu, address)
    for place, name in enumerate(dict.fromkeys(_net_names(pci))):
        _nets(found, pci, name, told, place)


def _port(found: _Read, path: tuple[str, ...]) -> str:
    """Make a port of a bridge up; give its address."""
    address = _made_up(found)
    found.functions.append(Function(address=address, path=path, kind=_BRIDGE, made_up=True))
    return address


def _made_up(found: _Read) -> str:
    number = next(found.numbers)
    return f"{MADE_UP:04x}:{number // 32:02x}:{number % 32:02x}.0"


def _number(one: ET.Element, name: str) -> int | None:
    value = one.get(name)
    return int(value, 16) if value else None


def _vendor(pci: ET.Element) -> int | None:
    """Give the vendor; where no number is told, RCCL tells AMD's cards by their instruction set."""
    if any("gcn" in gpu.attrib for gpu in pci.findall("gpu")):
        return _AMD
    return _number(pci, "vendor")


def _links(gpu: ET.Element, address: str) -> Iterator[Link]:
    for link in (*gpu.findall("nvlink"), *gpu.findall("xgmi")):
        # A virtual machine that may not see the switches has fffffff:ff:ff.0 for them.
        other = link.get("target", "")
        other = "" if other.endswith(":ff:ff.0") else other
        yield Link(
            kind="nvlink" if link.tag == "nvlink" else "xgmi",
            one=address,
            other=other,
            count=int(link.get("count", "0")),
            end="switch" if link.get("tclass", "").startswith("0x0680") else "gpu",
        )


def _net_names(pci: ET.Element) -> Iterator[str]:
    yield from (net.get("name", "") for net in pci.iterfind("nic/net"))


def _nets(found: _Read, pci: ET.Element, name: str, on: Function, place: int) -> None:
    """Add what NCCL calls nets: ports of RDMA devices, or interfaces where the port is 0.

    NCCL joins the functions of a card with several ports in the first of them; each RDMA device
    has a function of its own.
    """
    function = on
    if place:
        address = f"{on.address[:-1]}{place}"
        function = replace(on, address=address, compute_units=None, made_up=True)
        found.functions.append(function)
    ports: dict[int, int] = {}
    for net in pci.iterfind("nic/net"):
        if net.get("name") == name:
            ports[int(net.get("port", "0"))] = int(net.get("speed", "0"))
    for port, speed in ports.items():
        if port:
            found.rdma.append(
                RdmaPort(device=name, function=function.address, port=port, speed_mbps=speed)
            )
        else:
            found.interfaces.append(Interface(name=name, function=function.address))
