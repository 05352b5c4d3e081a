"""The PCIe switches that a cloud hides from its guests, as it tells NCCL of them in a file. Pure.

Where a virtual machine has each card at a host bridge of its own, clouds describe the real tree in
a topology file (NCCL documentation, NCCL_TOPO_FILE): `<cpu numaid>` has `<pci busid>` inside, and
such a function that has others inside is a switch. What the guest's own sysfs shows goes before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.parsers import expat

from msgspec import Struct, structs

from xce_nodeagent.model.instance import Instance

SIZE_LIMIT = 1 << 20
FUNCTIONS_LIMIT = 4096
DEPTH_LIMIT = 16
_NODES_LIMIT = 1 << 20
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SWITCH = {"class": "060400"}  # a bridge from PCI to PCI


class Hidden(Struct, frozen=True):
    """What sysfs does not show of a function: the switches above it, from the root down."""

    switches: tuple[str, ...] = ()
    numa_node: int | None = None

    @property
    def sound(self) -> bool:
        """Whether it can be of a machine: a record that somebody sends may say anything."""
        return (
            len(self.switches) <= DEPTH_LIMIT
            and all(map(_ADDRESS.fullmatch, self.switches))
            and (self.numa_node is None or 0 <= self.numa_node < _NODES_LIMIT)
        )


class Virtual(Struct, frozen=True):
    """What a file tells, by the addresses of functions; `fault` says why it tells nothing."""

    path: str = ""
    functions: dict[str, Hidden] = {}
    fault: str = ""


def parse(data: bytes) -> dict[str, Hidden]:
    """Read a topology file; raise ValueError where it is none.

    Of several hosts in one NVLink fabric the first one's functions count.
    """
    reading = _Reading()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reading.start
    parser.EndElementHandler = reading.end
    parser.StartDoctypeDeclHandler = _no_document_type
    try:
        parser.Parse(data, True)  # noqa: FBT003  # that this is all of it
    except expat.ExpatError as error:
        raise ValueError(f"it is no XML: {error}") from None
    return reading.found


def _no_document_type(*_: object) -> None:
    """Refuse what could declare entities, which grow without end."""
    raise ValueError("it has a document type, as no topology of NCCL has")


class _Reading:
    """What was read until now."""

    def __init__(self) -> None:
        self.found: dict[str, Hidden] = {}
        self._open: list[str] = []
        self._above: list[str] = []
        self._numa: int | None = None
        self._host: str | None = None
        self._foreign = False

    def start(self, name: str, told: dict[str, str]) -> None:
        if not self._open and name != "system":
            raise ValueError(f"it begins with <{name[:40]}>, and a topology of NCCL with <system>")
        if len(self._open) >= DEPTH_LIMIT:
            raise ValueError("its elements are too deep in each other")
        self._open.append(name)
        if name == "cpu":
            number = told.get("numaid", "")
            self._numa = int(number) if re.fullmatch("[0-9]{1,6}", number) else None
            host = told.get("host_hash", "")
            self._host = host if self._host is None else self._host
            self._foreign = host != self._host
        elif name == "pci":
            self._above.append(told.get("busid", "").lower())
            # One that has others inside is their switch; until then it is taken for a device.
            for switch in self._above[:-1]:
                self.found.pop(switch, None)
            if not self._foreign and all(map(_ADDRESS.fullmatch, self._above)):
                if len(self.found) >= FUNCTIONS_LIMIT:
                    raise ValueError(f"it has more than {FUNCTIONS_LIMIT} functions")
                self.found[self._above[-1]] = Hidden(tuple(self._above[:-1]), self._numa)

    def end(self, name: str) -> None:
        self._open.pop()
        if name == "pci":
            self._above.pop()


def applied(
    instances: Sequence[Instance], ground: Mapping[str, Any], told: Virtual
) -> tuple[tuple[Instance, ...], dict[str, Any]]:
    """Give instances and topology with what sysfs does not show.

    A switch is told where sysfs has none above a function, a NUMA node where it has none for it
    and the guest has such a node. Functions that are not here are another kind of machine's.
    """
    if not told.functions:
        return tuple(instances), dict(ground)
    known = {address: one for address, one in told.functions.items() if one.sound}
    functions = dict(ground["pci"])
    bridges = dict(ground["bridges"])
    nodes = {node["id"]: node["cpus"] for node in ground["numa_nodes"]}
    more: dict[str, dict[str, Any]] = {}
    for address, function in ground["pci"].items():
        hidden = _of(address, function["bridges"], known)
        found: dict[str, Any] = {}
        if hidden.switches and len(function["bridges"]) < 3:  # root port, and two ports of a switch
            way = tuple(_ports(hidden.switches, address))
            functions[address] = {**function, "root": f"pci{way[1]}", "bridges": list(way)}
            bridges.update((port, dict(_SWITCH)) for port in way)
            found["pcie_switch"] = hidden.switches[-1]
        if "numa_node" not in function and hidden.numa_node in nodes:
            found |= {"numa_node": hidden.numa_node, "local_cpus": nodes[hidden.numa_node]}
            functions[address] = {**functions[address], "numa_node": hidden.numa_node}
        if found:
            more[address] = found
    if not more:
        return tuple(instances), dict(ground)
    shown = tuple(
        structs.replace(one, attributes={**extra, **one.attributes})
        if (extra := more.get(one.text("pci_address")))
        else one
        for one in instances
    )
    return shown, {**ground, "pci": functions, "bridges": bridges, "virtual": told.path}


def _of(address: str, bridges: Iterable[str], known: Mapping[str, Hidden]) -> Hidden:
    """Give what is told of a function; else the NUMA node of the nearest bridge above it."""
    if address in known:
        return known[address]
    above = next((known[one] for one in reversed(list(bridges)) if one in known), Hidden())
    return Hidden(numa_node=above.numa_node)


def _ports(switches: Sequence[str], address: str) -> Iterable[str]:
    """Make up the ports that NCCL leaves out, as sysfs would show them: each has one link."""
    for number, switch in enumerate(switches):
        below = switches[number + 1] if number + 1 < len(switches) else address
        if number == 0:
            yield f"root port of {switch}"
        yield switch
        yield f"port of {switch} to {below}"
