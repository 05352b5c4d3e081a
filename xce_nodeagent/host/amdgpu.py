"""AMD's GPUs as the bus and the driver amdgpu show them.

Source: kernel Documentation/gpu/amdgpu (driver-misc.rst, ras.rst).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from xce_nodeagent.host import drm, kfd, pci
from xce_nodeagent.host.machine import Host
from xce_nodeagent.host.slow import Hung
from xce_nodeagent.model.instance import AttributeValue, DeviceNode

VENDOR = 0x1002
_CLASSES = frozenset({0x0300, 0x0302, 0x0380, 0x1200})  # displays, and processing accelerators
_DRIVER = "amdgpu"
_WHOLE = "SPX"

MANAGEMENT = frozenset({0x4752, 0x515E, 0x5969})
"""Display chips of BMCs: Rage XL, ES1000. No job computes on them."""

MODELS = {
    0x66A0: "Radeon Instinct MI50",
    0x66A1: "Radeon Instinct MI50",
    0x738C: "Instinct MI100",
    0x7408: "Instinct MI250X",
    0x740C: "Instinct MI250X/MI250",
    0x740F: "Instinct MI210",
    0x74A0: "Instinct MI300A",
    0x74A1: "Instinct MI300X",
    0x74A5: "Instinct MI325X",
    0x74B5: "Instinct MI300X VF",
    0x75A0: "Instinct MI350X",
    0x75A3: "Instinct MI355X",
}
"""For boards that do not tell their product's name; others are shown as `vendor:device`."""


class Card(Struct, frozen=True, kw_only=True):
    """A card, with what is common to all its parts."""

    address: str
    why: str
    """Why no job can use it; empty where amdgpu has it."""
    nodes: Mapping[str, DeviceNode]
    """The DRM nodes of the PCI function, by name."""
    parts: tuple[kfd.Gpu, ...]
    """What KFD shows of it: one for a whole card, more where it is divided."""
    unique_id: int
    """0 where it has none, as consumers' cards."""
    mode: str
    attributes: Mapping[str, AttributeValue]

    @property
    def divided(self) -> bool:
        """Whether ROCm sees parts of it in place of the card."""
        several = len(self.parts) > 1 or any(part.partition for part in self.parts)
        return several or bool(self.parts and self.mode and self.mode != _WHOLE)


def cards(host: Host, gpus: Sequence[kfd.Gpu]) -> tuple[Card, ...]:
    """Give every card that is on the bus, and those that only KFD shows, in bus order."""
    codes = pci.functions(host)
    addresses = {
        address
        for address, code in codes.items()
        if code >> 8 in _CLASSES
        and pci.identifier(host, address, "vendor") == VENDOR
        and pci.identifier(host, address, "device") not in MANAGEMENT
        and not pci.is_second_head(host, address, codes)
    }
    addresses.update(gpu.address for gpu in gpus)
    return tuple(_card(host, address, gpus) for address in sorted(addresses, key=_bus_order))


def _bus_order(address: str) -> str:
    return address.rjust(16, "0")  # domains have 4 or 8 digits


def _card(host: Host, address: str, gpus: Sequence[kfd.Gpu]) -> Card:
    parts = tuple(gpu for gpu in gpus if gpu.address == address)
    bound = bool(parts) or drm.driver(host, address) == _DRIVER
    mode = _mode(host, address, "compute", r"[A-Z]PX")
    return Card(
        address=address,
        why="" if bound else drm.unbound(host, address),
        nodes=drm.nodes(host, drm.function(address)),
        parts=parts,
        unique_id=_unique_id(host, address),
        mode=mode,
        attributes=dict(_attributes(host, address, mode)),
    )


def _unique_id(host: Host, address: str) -> int:
    digits = host.read(f"{drm.function(address)}/unique_id") or ""
    return int(digits, 16) if re.fullmatch(r"[0-9a-fA-F]{1,16}", digits) else 0


def _mode(host: Host, address: str, what: str, form: str) -> str:
    mode = host.read(f"{drm.function(address)}/current_{what}_partition") or ""
    return mode if re.fullmatch(form, mode) else ""


def _attributes(host: Host, address: str, mode: str) -> Iterator[tuple[str, AttributeValue]]:
    """Give what all parts of a card have in common; what nobody tells is left out."""
    folder = drm.function(address)
    device = pci.identifier(host, address, "device")
    yield "vendor", "amd"
    if name := drm.text(host, f"{folder}/product_name"):
        yield "model", name
    elif device is not None:
        yield "model", MODELS.get(device, f"{VENDOR:04x}:{device:04x}")
    serial = drm.text(host, f"{folder}/serial_number")
    if serial.strip("0"):  # boards whose FRU is empty say 0
        yield "serial", serial
    # A driver that is part of the kernel has no version of its own.
    if version := drm.text(host, f"/sys/module/{_DRIVER}/version"):
        yield "driver_version", version
    if mode:
        yield "compute_partition", mode
    available = (host.read(f"{folder}/available_compute_partition") or "").split(", ")
    if all(re.fullmatch("[A-Z]PX", one) for one in available):
        yield "available_compute_partitions", list(dict.fromkeys(available))
    if memory := _mode(host, address, "memory", r"NPS[0-9]{1,2}"):
        yield "memory_partition", memory
    yield from pci.attributes(host, address)


def memory(host: Host, card: Card) -> int:
    """Give the bytes of memory on a card; 0 where nobody tells."""
    return drm.count(host, f"{drm.function(card.address)}/mem_info_vram_total") or 0


def part_nodes(host: Host) -> Mapping[str, DeviceNode]:
    """Give the nodes of all parts of cards but the first ones, by name.

    They hang on platform devices, and there are always as many as a card can have parts; KFD
    tells which are in use, and of which card (drivers/gpu/drm/amd/amdxcp).
    """
    folder = "/sys/devices/platform"
    devices = (name for name in host.names(folder) if name.startswith("amdgpu_xcp"))
    return {
        name: node
        for device in devices
        for name, node in drm.nodes(host, f"{folder}/{device}").items()
    }


def uncorrected(host: Host, cards: Iterable[Card]) -> Mapping[str, int | Hung]:
    """Give how many errors of the memory could not be corrected since the driver was loaded.

    By the cards' addresses. The driver asks the card's firmware: Hung where that does not answer.
    """
    files = {card.address: f"{drm.function(card.address)}/ras/umc_err_count" for card in cards}
    told = host.read_slowly(files.values())
    return {address: _uncorrected(told[file]) for address, file in files.items()}


def _uncorrected(counts: str | Hung | None) -> int | Hung:
    if isinstance(counts, Hung):
        return counts
    errors = re.search(r"^ue: ([0-9]{1,18})$", counts or "", re.MULTILINE)  # "ue: 0\nce: 12"
    return int(errors[1]) if errors else 0
