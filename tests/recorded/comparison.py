"""Holds what discovery made of a machine against what its recording says.

What is right is worked out here from the recorded values alone, by rules of this file's own, so
that nothing of the product can agree with itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from recorded.machine import Function, Machine, listed

from xce_nodeagent.host import Host, pci
from xce_nodeagent.model.distance import Layout
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory

EXPLAINED: Mapping[tuple[str, str, str], str] = {
    ("folders", "sysfs/procfs/fixtures.ttar", "package 0"): (
        "CPUs 4 and 5 are siblings of those that are there, and have no folder in the recording"
    ),
    ("folders", "sysfs/procfs/fixtures.ttar", "NICs beyond those"): (
        "eth0 is a folder of the class itself there, with a link to 0000:00:1f.6"
    ),
    ("lstopo", "hwloc/2pa-pcidomain32bits.tar.bz2", "0000:00:03.0 local_cpus"): (
        "the recording has one CPU in local_cpus, which lstopo reads, and two in local_cpulist"
    ),
    **{
        (against, "hwloc/32em64t-2n8c+dax+nvme+mic+dimms.tar.bz2", "0000:00:02.0 NUMA node"): (
            "numa_node is -1 there; hwloc takes the node of the other functions of the host bridge"
        )
        for against in ("lstopo", "xml")
    },
    **{
        ("xml", "hwloc/40intel64-2g2n4c+pcilocality.tar.bz2", f"{address} local_cpus"): (
            "hwloc was told the places of buses by HWLOC_PCI_LOCALITY when it wrote the XML"
        )
        for address in ("0000:02:00.0", "0000:02:00.1", "0000:03:00.0", "0000:03:00.1",
                        "0000:43:00.0")
    },
    **{
        (
            "expected",
            "nccl-topo/rccl/tools/topo_expl/models/topo_8p1h_1.xml",
            f"{address} bridges",
        ): "the file has a1:00.0 twice: a NIC, and a switch above it, whose address is another"
        for address in ("0000:ae:00.0", "0000:b3:00.0", "0000:a0:00.0")
    },
}  # fmt: skip
"""What differs and may: by what it is held against, by recording and value. All must differ."""


class Tally:
    """Counts what was compared, and keeps what differs."""

    def __init__(self, machine: str, against: str = "record") -> None:
        self.machine = machine
        self.against = against
        self.count = 0
        self.explained: list[str] = []
        self.different: list[str] = []

    @property
    def stale(self) -> list[str]:
        """Give what is explained for this machine and did not differ."""
        every = [what for *where, what in EXPLAINED if where == [self.against, self.machine]]
        return [what for what in every if what not in self.explained]

    def hold(self, what: str, recorded: Any, found: Any) -> None:
        """Compare one value."""
        self.count += 1
        if recorded == found:
            return
        if (self.against, self.machine, what) in EXPLAINED:
            self.explained.append(what)
            return
        self.different.append(f"{what}: {recorded!r} is recorded, {found!r} was found")


def compare(tally: Tally, machine: Machine, seen: tuple[Host, Inventory]) -> None:
    """Compare all that a recording says."""
    host, found = seen
    _topology(tally, machine, found.topology)
    made_up = frozenset(one.address for one in machine.functions if one.made_up)
    placed = [one for one in machine.functions if one.kind is not None and not one.made_up]
    for one in placed:
        if one.below is None and one.kind != 0x0604:
            _function(tally, one, made_up, host, found)
    _cards(tally, placed, found)
    _nics(tally, machine, found)
    _links(tally, machine, found)


def _topology(tally: Tally, machine: Machine, topology: Mapping[str, Any]) -> None:
    packages: dict[int, set[int]] = {}
    for cpu in machine.cpus:
        if cpu.package is not None:
            packages.setdefault(cpu.package, set()).add(cpu.number)
    told = {one["id"]: one["cpus"] for one in topology["packages"]}
    for number, cpus in packages.items():
        tally.hold(f"package {number}", listed(frozenset(cpus)), told.get(number))
    cores = {listed(cpu.threads) for cpu in machine.cpus if cpu.threads}
    if cores:
        tally.hold("cores", sorted(cores), sorted(topology["cores"]))
    nodes = {one["id"]: one for one in topology["numa_nodes"]}
    for node in machine.nodes:
        where = nodes.get(node.number, {})
        if not node.cpus:
            tally.hold(
                f"memory node {node.number}",
                [node.number],
                [one for one in topology["memory_nodes"] if one == node.number],
            )
            continue
        tally.hold(f"node {node.number} CPUs", listed(node.cpus), where.get("cpus"))
        if node.distances:
            tally.hold(
                f"node {node.number} distances", list(node.distances), where.get("distances")
            )
    if machine.nodes:
        numbers = sorted(node.number for node in machine.nodes)
        tally.hold("nodes", numbers, sorted([*nodes, *topology["memory_nodes"]]))


def _function(
    tally: Tally, one: Function, made_up: frozenset[str], host: Host, found: Inventory
) -> None:
    at = one.address
    told = found.topology["pci"].get(at) or function_at(host, at)
    tally.hold(f"{at} class", f"{one.kind:04x}", told.get("class", "")[:4])
    if one.interface is not None:
        tally.hold(f"{at} interface", f"{one.interface:02x}", told.get("class", "")[4:])
    if one.path:
        recorded = [bridge for bridge in one.path[1:] if bridge not in made_up]
        bridges = [bridge for bridge in told.get("bridges", ()) if bridge not in made_up]
        tally.hold(f"{at} bridges", recorded, bridges)
        tally.hold(f"{at} root", one.path[0], told.get("root"))
    if one.numa_node is not None:
        node = one.numa_node if one.numa_node >= 0 else None
        tally.hold(f"{at} NUMA node", node, told.get("numa_node"))


def function_at(host: Host, address: str) -> dict[str, Any]:
    """Give what the product tells of a function that is of no kind that placement is about."""
    place = pci.place(host, f"/sys/bus/pci/devices/{address}")
    where = {"root": place.root, "bridges": list(place.bridges)} if place else {}
    kind = f"{pci.functions(host)[address]:06x}"
    return {"class": kind, "numa_node": pci.numa_node(host, address), **where}


def _cards(tally: Tally, functions: Iterable[Function], found: Inventory) -> None:
    cards = {one.text("pci_address"): one for one in found.instances if one.type == "gpu"}
    for one in functions:
        if not is_gpu(one):
            continue
        card = cards.get(one.address)
        tally.hold(f"{one.address} GPU", one.address, card and card.text("pci_address"))
        if card is not None:
            _attributes(tally, one, card)
            if one.compute_units:
                tally.hold(f"{one.address} CUs", one.compute_units, card.number("multiprocessors"))
    # The display of a management controller is nothing that a job computes on.
    others = {one.address for one in functions if one.vendor in (0x102B, 0x1A03)}
    tally.hold("displays of management controllers that are GPUs", [], sorted(others & set(cards)))


def is_gpu(one: Function) -> bool:
    """Say whether a function surely computes: a card of NVIDIA, one of AMD without a screen."""
    return (one.vendor == 0x10DE and one.kind in (0x0300, 0x0302)) or (
        one.vendor == 0x1002 and one.kind in (0x0302, 0x0380)
    )


def _attributes(tally: Tally, one: Function, instance: Instance) -> None:
    at = one.address
    if one.path:
        nearest = (switches(one.path) or [""])[-1]
        tally.hold(f"{at} pcie_root", one.path[0], instance.text("pcie_root"))
        tally.hold(f"{at} pcie_switch", nearest, instance.text("pcie_switch"))
    if one.numa_node is not None:
        tally.hold(f"{at} numa_node", one.numa_node, instance.number("numa_node"))
    if one.cpus:
        tally.hold(f"{at} local_cpus", listed(one.cpus), instance.text("local_cpus"))


def switches(path: tuple[str, ...]) -> list[str]:
    """Give the upstream ports on the way: below a root port every second bridge is one.

    The last bridge above a device is a port of a switch, or a root port, and no upstream port.
    """
    return [bridge for place, bridge in enumerate(path[1:-1], 1) if place % 2 == 0]


def _nics(tally: Tally, machine: Machine, found: Inventory) -> None:
    nics = [one for one in found.instances if one.type == "nic"]
    functions = {one.address: one for one in machine.functions}
    for interface in machine.interfaces:
        named = [one for one in nics if one.text("netdev") == interface.name]
        tally.hold(f"{interface.name} is there", 1, len(named))
        for nic in named:
            tally.hold(f"{interface.name} address", interface.function, nic.text("pci_address"))
            if interface.mac:
                tally.hold(f"{interface.name} MAC", interface.mac, nic.text("mac"))
            # Some recordings have the interface and not the function.
            if interface.function in functions:
                _attributes(tally, functions[interface.function], nic)
    for port in machine.rdma:
        name = f"{port.device} port {port.port}"
        named = [
            one
            for one in nics
            if (one.text("rdma_device"), one.number("rdma_port")) == (port.device, port.port)
        ]
        tally.hold(f"{name} is there", 1, len(named))
        for nic in named:
            tally.hold(f"{name} address", port.function, nic.text("pci_address"))
            if port.speed_mbps:
                tally.hold(f"{name} speed", port.speed_mbps, nic.number("speed_mbps"))
            _attributes(tally, functions[port.function], nic)
    of = {one.function for one in (*machine.interfaces, *machine.rdma)}
    on_pci = {one.text("pci_address") for one in nics} - {""}
    tally.hold("NICs beyond those", [], sorted(on_pci - of))


def _links(tally: Tally, machine: Machine, found: Inventory) -> None:
    """Compare the links between cards that sysfs tells: XGMI. NVLinks are the library's to tell."""
    addresses = {one.id: one.text("pci_address") for one in found.instances}
    cards = {one.text("pci_address"): one.id for one in found.instances if one.type == "gpu"}
    layout = Layout(found.topology, found.by_id())
    told = {
        frozenset((addresses[link["one"]], addresses[link["other"]])): link["count"]
        for link in found.topology["links"]
        if link["kind"] == "xgmi"
    }
    recorded = {
        frozenset((link.one, link.other)): link.count
        for link in machine.links
        if link.kind == "xgmi"
    }
    for ends in sorted(recorded.keys() | told.keys(), key=sorted):
        one, other = sorted(ends)
        tally.hold(f"XGMI {one}-{other}", recorded.get(ends), told.get(ends))
        word = layout.between(cards[one], cards[other])
        tally.hold(f"{one} to {other}", f"XGMI{recorded.get(ends)}", word)
