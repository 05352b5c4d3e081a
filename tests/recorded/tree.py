"""Writes a machine as the kernel shows one: folders below `sys`, and relative links.

The layout is the kernel's (Documentation/ABI/testing/sysfs-bus-pci, sysfs-class-net, ABI/stable/
sysfs-devices-node, sysfs-class-infiniband). A value that the recording lacks makes no file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from recorded.machine import Cpu, Function, Interface, Machine, Node, RdmaPort, listed, mask

BUSES = frozenset(
    (
        "acpi",
        "auxiliary",
        "cpu",
        "hdaudio",
        "hid",
        "i2c",
        "memory",
        "node",
        "pci",
        "pci_express",
        "platform",
        "pnp",
        "scsi",
        "serial-base",
        "usb",
        "virtio",
        "wmi",
    )
)
"""Subsystems below /sys/bus; the others are classes."""


def write(machine: Machine, root: Path) -> Path:
    """Write the machine below a folder, and give that."""
    tree = Tree(root)
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    (root / "sys/class").mkdir(parents=True)
    for function in machine.functions:
        _function(tree, function)
    paths = {function.address: folder_of(function) for function in machine.functions}
    for number, interface in enumerate(machine.interfaces, 2):
        _interface(tree, interface, paths[interface.function], number)
    for port in machine.rdma:
        _rdma_port(tree, port, paths[port.function])
    _cpus(tree, machine.cpus)
    for node in machine.nodes:
        _node(tree, node)
    if machine.nodes:
        numbers = frozenset(node.number for node in machine.nodes)
        tree.file("sys/devices/system/node/online", listed(numbers))
    _kfd(tree, machine)
    return root


class Tree:
    """A folder that becomes a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, name: str, text: str) -> None:
        """Write a file with one line."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", "utf-8")

    def number(self, name: str, value: int | None, digits: int = 4) -> None:
        """Write an identifier in hexadecimal; none where there is no value."""
        if value is not None:
            self.file(name, f"0x{value:0{digits}x}")

    def link(self, name: str, to: str) -> None:
        """Link to another path of the machine, relatively, as the kernel does."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_symlink():
            path.symlink_to(os.path.relpath(self.root / to, path.parent))

    def device(self, folder: str, subsystem: str) -> None:
        """Make a device: its folder, and the links to and from its bus or class.

        A device of a class has a link to what it is of; a folder named after the class stands
        between the two where that is of another subsystem (drivers/base/core.c).
        """
        path = self.root / folder
        path.mkdir(parents=True, exist_ok=True)
        if subsystem in BUSES:
            home = f"sys/bus/{subsystem}"
            (self.root / home).mkdir(parents=True, exist_ok=True)
            self.link(f"{home}/devices/{path.name}", folder)
        else:
            home = f"sys/class/{subsystem}"
            self.link(f"{home}/{path.name}", folder)
            parent = path.parent.parent if path.parent.name == subsystem else path.parent
            above = parent.relative_to(self.root).as_posix()
            if not above.startswith("sys/devices/virtual") and above != "sys/devices":
                self.link(f"{folder}/device", above)
        self.link(f"{folder}/subsystem", home)

    def driver(self, folder: str, bus: str, name: str) -> None:
        """Bind a driver to a device."""
        home = f"sys/bus/{bus}/drivers/{name}"
        (self.root / home).mkdir(parents=True, exist_ok=True)
        self.link(f"{folder}/driver", home)


def folder_of(function: Function) -> str:
    """Give the folder of a function."""
    return "/".join(("sys/devices", *function.path, function.address))


def code_of(one: Function) -> int | None:
    """Give the class code as the kernel has it; its last byte is 0 where it is not recorded."""
    return None if one.kind is None else one.kind << 8 | (one.interface or 0)


def _function(tree: Tree, one: Function) -> None:
    folder = folder_of(one)
    tree.device(folder, "pci")
    tree.number(f"{folder}/class", code_of(one), 6)
    tree.number(f"{folder}/vendor", one.vendor)
    tree.number(f"{folder}/device", one.device)
    tree.number(f"{folder}/subsystem_vendor", one.subsystem_vendor)
    tree.number(f"{folder}/subsystem_device", one.subsystem_device)
    tree.number(f"{folder}/revision", one.revision, 2)
    if one.numa_node is not None:
        tree.file(f"{folder}/numa_node", str(one.numa_node))
    if one.cpus:
        tree.file(f"{folder}/local_cpulist", listed(one.cpus))
        tree.file(f"{folder}/local_cpus", mask(one.cpus))
    if one.kind is not None and one.vendor is not None:
        (tree.root / folder / "config").write_bytes(_config(one))
    for name in one.drm:
        tree.device(f"{folder}/drm/{name}", "drm")


def _config(one: Function) -> bytes:
    """Give the configuration space that everybody may read (PCI Local Bus 3.0, 6.1).

    Who draws the tree by himself (hwloc) takes the buses behind a bridge from it.
    """
    config = bytearray(64)
    config[0:4] = (one.vendor or 0).to_bytes(2, "little") + (one.device or 0).to_bytes(2, "little")
    config[8] = one.revision or 0
    config[9:12] = (code_of(one) or 0).to_bytes(3, "little")
    if one.below is not None:
        config[0x0E] = 1
        config[0x18:0x1B] = bytes((int(one.address.split(":")[1], 16), *one.below))
    else:
        config[0x2C:0x2E] = (one.subsystem_vendor or 0).to_bytes(2, "little")
        config[0x2E:0x30] = (one.subsystem_device or 0).to_bytes(2, "little")
    return bytes(config)


def _interface(tree: Tree, one: Interface, behind: str, index: int) -> None:
    folder = f"{behind}/net/{one.name}"
    tree.device(folder, "net")
    # The kernel numbers all interfaces; which number it was does not matter.
    tree.file(f"{folder}/ifindex", str(index))
    tree.file(f"{folder}/iflink", str(index))
    if one.mac:
        tree.file(f"{folder}/address", one.mac)
        # An IPoIB address has 20 bytes (RFC 4391), an Ethernet one 6; ARPHRD_* in linux/if_arp.h.
        tree.file(f"{folder}/type", "32" if len(one.mac) == 59 else "1")
    if one.port is not None:
        tree.file(f"{folder}/dev_port", str(one.port))


def _rdma_port(tree: Tree, one: RdmaPort, behind: str) -> None:
    folder = f"{behind}/infiniband/{one.device}"
    tree.device(folder, "infiniband")
    port = f"{folder}/ports/{one.port}"
    (tree.root / port).mkdir(parents=True)
    if one.state is not None:
        states = ("NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")
        tree.file(f"{port}/state", f"{one.state}: {states[one.state]}")
    if one.speed_mbps:
        # The kernel tells the width and the generation in brackets; they are not recorded.
        tree.file(f"{port}/rate", f"{one.speed_mbps / 1000:g} Gb/sec")


def _cpus(tree: Tree, cpus: Iterable[Cpu]) -> None:
    every = tuple(cpus)
    packages: dict[int | None, set[int]] = {}
    for cpu in every:
        packages.setdefault(cpu.package, set()).add(cpu.number)
    for cpu in every:
        folder = f"sys/devices/system/cpu/cpu{cpu.number}/topology"
        if cpu.package is not None:
            tree.file(f"{folder}/physical_package_id", str(cpu.package))
            package = frozenset(packages[cpu.package])
            tree.file(f"{folder}/core_siblings", mask(package))
            tree.file(f"{folder}/core_siblings_list", listed(package))
        if cpu.core is not None:
            tree.file(f"{folder}/core_id", str(cpu.core))
        if cpu.threads:
            tree.file(f"{folder}/thread_siblings", mask(cpu.threads))
            tree.file(f"{folder}/thread_siblings_list", listed(cpu.threads))
    if every:
        numbers = frozenset(cpu.number for cpu in every)
        for name in ("online", "present", "possible"):
            tree.file(f"sys/devices/system/cpu/{name}", listed(numbers))


def _node(tree: Tree, node: Node) -> None:
    folder = f"sys/devices/system/node/node{node.number}"
    tree.file(f"{folder}/cpulist", listed(node.cpus))
    tree.file(f"{folder}/cpumap", mask(node.cpus))
    if node.distances:
        tree.file(f"{folder}/distance", " ".join(map(str, node.distances)))


def _kfd(tree: Tree, machine: Machine) -> None:
    """Write AMD's cards and their XGMI links as the driver's topology has them.

    From drivers/gpu/drm/amd/amdkfd/kfd_topology.c: `location_id` is bus, device and function, type
    11 is XGMI, and the bandwidths are in MB/s. The recording counts links, so one link is the unit
    of bandwidth here: `max_bandwidth` is that of all, `min_bandwidth` that of one.
    """
    xgmi = [link for link in machine.links if link.kind == "xgmi"]
    cards = sorted(
        one.address for one in machine.functions if one.compute_units and one.vendor == 0x1002
    )
    numbers = {card: number for number, card in enumerate(cards, 1)}
    folder = "sys/devices/virtual/kfd/kfd/topology/nodes"
    functions = {function.address: function for function in machine.functions}
    for card, number in numbers.items():
        node = f"{folder}/{number}"
        properties = _properties(functions[card])
        links = [link for link in xgmi if link.one == card]
        properties["io_links_count"] = len(links)
        tree.file(f"{node}/properties", _lines(properties))
        # Any number but 0, which is that of a node of CPUs.
        tree.file(f"{node}/gpu_id", str(number))
        for place, link in enumerate(links):
            values = {
                "type": 11,
                "node_from": number,
                "node_to": numbers[link.other],
                "min_bandwidth": 1,
                "max_bandwidth": link.count,
            }
            tree.file(f"{node}/io_links/{place}/properties", _lines(values))
    if cards:
        tree.link("sys/class/kfd/kfd", "sys/devices/virtual/kfd/kfd")


def _properties(card: Function) -> dict[str, int]:
    domain, bus, rest = card.address.split(":")
    device, function = rest.split(".")
    found = {
        "domain": int(domain, 16),
        "location_id": int(bus, 16) << 8 | int(device, 16) << 3 | int(function),
    }
    if card.vendor is not None:
        found["vendor_id"] = card.vendor
    if card.device is not None:
        found["device_id"] = card.device
    if card.compute_units is not None:
        # How many SIMD units one of them has, is not recorded; the driver tells all of them.
        found["simd_count"] = card.compute_units
        found["simd_per_cu"] = 1
    return found


def _lines(values: dict[str, int]) -> str:
    return "\n".join(f"{name} {value}" for name, value in values.items())
