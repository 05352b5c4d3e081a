"""Accelerators that are neither NVIDIA's nor AMD's GPUs, as sysfs shows them.

Sources: kernel Documentation/accel/introduction.rst, Documentation/ABI/testing/
sysfs-driver-habanalabs and sysfs-driver-intel-xe-hwmon, drivers/gpu/drm/xe (xe_tile_sysfs.c).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from xce_nodeagent.host import drm, pci
from xce_nodeagent.host.machine import Host
from xce_nodeagent.model.instance import DeviceNode

CLASSES = ("accel", "habanalabs", "neuron_device", "tenstorrent", "ve")
"""Classes of accelerators: the kernel's own, and those of drivers that have one of their own:
Habana's before it moved, AWS Neuron's, Tenstorrent's, and that of NEC's Vector Engines."""

INTEL, HABANA, NEC = 0x8086, 0x1DA3, 0x1BCF
_OTHERS_PROVIDE = frozenset({0x10DE, 0x1002})
"""NVIDIA and AMD: their GPUs have providers of their own."""

_NOT_FOR_JOBS = frozenset(
    {
        0x1013,  # Cirrus Logic
        0x102B,  # Matrox, in BMCs
        0x1234,  # Bochs
        0x1414,  # Hyper-V
        0x15AD,  # VMware
        0x1A03,  # ASPEED, in BMCs
        0x1AF4,  # virtio
        0x1B36,  # QXL
        0x80EE,  # VirtualBox
    }
)
"""Vendors of display chips on which no job computes; some of them have a render node."""

_DISPLAY, _PROCESSING = 0x03, 0x12  # PCI base classes
_COPROCESSOR = 0x0B40  # which crypto engines say they are, too
_XEON_PHI = range(0x2250, 0x2260)
_VGA = 0x0300
_HANDED_ON = frozenset({"vfio-pci", "pci-stub", "pciback", "xen-pciback", "uio_pci_generic"})
"""Drivers that give a function to a virtual machine or to a program."""


class Device(Struct, frozen=True, kw_only=True):
    """An accelerator. What the kernel does not tell is empty or None."""

    name: str
    """Its PCI address, or its name where it is on another bus."""
    address: str = ""
    display: bool = False
    vendor: int | None = None
    device: int | None = None
    nodes: tuple[DeviceNode, ...] = ()
    why: str = ""
    """Why no job can use it."""
    driver: str = ""
    physical: str = ""
    """Of a virtual function: the PCI address of its physical one."""
    module: int | None = None
    """Which module of its board it is."""
    tiles: int = 0
    memory: int = 0


def devices(host: Host) -> tuple[Device, ...]:
    """Give them all: those on PCI in the order of the bus, then the others by name."""
    made = _by_class(host)
    codes = pci.functions(host)
    for address, code in codes.items():
        second = pci.is_second_head(host, address, codes)
        if address not in made and not second and _computes(host, address, code):
            made[address] = {}
    found = (_device(host, name, nodes) for name, nodes in made.items() if _is_ours(host, name))
    return tuple(sorted(found, key=lambda one: (not one.address, one.name.rjust(16, "0"))))


def _is_ours(host: Host, name: str) -> bool:
    return not pci.is_address(name) or pci.identifier(host, name, "vendor") not in _OTHERS_PROVIDE


def _by_class(host: Host) -> dict[str, dict[str, DeviceNode]]:
    """Give the nodes of each device that is in a class of accelerators, by the device's name."""
    found: dict[str, dict[str, DeviceNode]] = {}
    for kind in CLASSES:
        for name in host.names(f"/sys/class/{kind}"):
            folder = f"/sys/class/{kind}/{name}"
            # Habana's control nodes are in the folder of `accel` since the driver moved there.
            behind = (host.real(f"{folder}/device") or folder).rpartition("/")[2]
            node = drm.numbered(host, folder, f"/dev/{_node_name(host, folder, name)}")
            if re.fullmatch(r"[A-Za-z0-9:._!-]{1,64}", name + behind):
                found.setdefault(behind, {}).update({name: node} if node else {})
    return found


def _node_name(host: Host, folder: str, name: str) -> str:
    """Give the name of a node below /dev, as the kernel tells it or, in a record, as it would.

    A slash in it is a ! in sysfs. Habana's control nodes are in the folder of `accel` since the
    driver moved there; other drivers have a class `accel` too, and nodes outside of that folder.
    """
    told = re.search(
        r"^DEVNAME=([A-Za-z0-9/_-]+)$", host.read(f"{folder}/uevent") or "", re.MULTILINE
    )
    if told:
        return told[1]
    return f"accel/{name}" if name.startswith("accel") else name.replace("!", "/")


def _computes(host: Host, address: str, code: int) -> bool:
    """Say whether a function is for jobs, by its class; a plain display needs a render node."""
    if code >> 16 == _PROCESSING:
        return True
    if code >> 16 != _DISPLAY and code >> 8 != _COPROCESSOR:
        return False
    vendor = pci.identifier(host, address, "vendor")
    if code >> 8 == _COPROCESSOR:
        device = pci.identifier(host, address, "device")
        return vendor == NEC or (vendor == INTEL and device in _XEON_PHI)
    if vendor in _NOT_FOR_JOBS:
        return False
    return code >> 8 != _VGA or vendor == INTEL or _renders(drm.nodes(host, drm.function(address)))


def _renders(nodes: Mapping[str, DeviceNode]) -> bool:
    return any(name.startswith("renderD") for name in nodes)


def _device(host: Host, name: str, made: Mapping[str, DeviceNode]) -> Device:
    if not pci.is_address(name):
        why = "" if made else "its driver has made no device node"
        return Device(name=name, nodes=tuple(sorted(made.values())), why=why)
    folder = drm.function(name)
    code = drm.count(host, f"{folder}/class") or 0
    nodes = {**drm.nodes(host, folder), **made}
    display = code >> 16 == _DISPLAY
    vendor = pci.identifier(host, name, "vendor")
    tiles = _tiles(host, folder, code)
    return Device(
        name=name,
        address=name,
        display=display,
        vendor=vendor,
        device=pci.identifier(host, name, "device"),
        nodes=tuple(sorted(nodes.values())),
        why=_unusable(host, name, nodes, display=display) or _status(host, folder, made),
        driver=drm.driver(host, name),
        physical=(host.real(f"{folder}/physfn") or "").rpartition("/")[2],
        module=drm.count(host, f"{folder}/module_id", 1 << 16),
        tiles=len(tiles) if vendor == INTEL and display else 0,
        memory=_memory(host, folder, tiles) if vendor == INTEL and display else 0,
    )


def _unusable(host: Host, address: str, nodes: Mapping[str, DeviceNode], *, display: bool) -> str:
    bound = drm.driver(host, address)
    if nodes and (_renders(nodes) or not display):
        return ""
    if not bound or bound in _HANDED_ON:
        return drm.unbound(host, address)
    return f"its driver {bound} has made no {'render' if display else 'device'} node"


def _status(host: Host, folder: str, made: Mapping[str, DeviceNode]) -> str:
    """Say what Habana's driver says of a card that cannot be used now (hl_device_status)."""
    places = (folder, *(f"/sys/class/habanalabs/{name}" for name in made))
    told = next(filter(None, (drm.text(host, f"{place}/status") for place in places)), "")
    return f"its driver says: {told}" if told.lower() not in ("", "operational") else ""


def _tiles(host: Host, folder: str, code: int) -> list[str]:
    """Give the folders of an Intel card's tiles, as the driver xe or i915 has them.

    The driver i915 shows a folder for each engine block; only on cards without a display that is
    one for each tile.
    """
    tiles = [name for name in host.names(folder) if re.fullmatch(r"tile[0-9]", name)]
    if tiles or code >> 8 == _VGA:
        return [f"{folder}/{name}" for name in tiles]
    cards = [name for name in host.names(f"{folder}/drm") if re.fullmatch(r"card[0-9]+", name)]
    blocks = f"{folder}/drm/{cards[0]}/gt" if cards else ""
    names = host.names(blocks) if blocks else ()
    return [f"{blocks}/{name}" for name in names if re.fullmatch(r"gt[0-9]", name)]


def _memory(host: Host, folder: str, tiles: list[str]) -> int:
    sizes = [drm.count(host, f"{tile}/physical_vram_size_bytes") for tile in tiles]
    if sizes and None not in sizes:
        return sum(filter(None, sizes))
    cards = (name for name in host.names(f"{folder}/drm") if re.fullmatch(r"card[0-9]+", name))
    found = (drm.count(host, f"{folder}/drm/{card}/lmem_total_bytes") for card in cards)
    return next(filter(None, found), 0)
