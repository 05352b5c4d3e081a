"""AMD's compute driver as sysfs shows it: `/sys/class/kfd/kfd/topology`.

Each GPU that ROCm can use is a node there, and so is each part of a card that is partitioned. ROCm
counts them in the order of their numbers. Source: kernel, drivers/gpu/drm/amd/amdkfd
(kfd_topology.c writes the files, kfd_crat.c fills in the links).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from xce_nodeagent.host import drm
from xce_nodeagent.host.machine import Host
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.rule import MINOR_LIMIT

_KFD = "/sys/class/kfd/kfd"
_NODES = f"{_KFD}/topology/nodes"
_LINE = re.compile(r"(\w+) ([0-9]{1,20})")
_VENDOR = 0x1002
_XGMI = 11  # CRAT_IOLINK_TYPE_XGMI
_ONE_HOP = 15  # the weight of an XGMI link is 15 for each hop
_DEVICE_MEMORY = (1, 2)  # heap types: frame buffer that the CPU sees, and that it does not see
_WORD = 1 << 64


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU, or a part of one, as the compute driver shows it. What it does not tell is 0."""

    node: int
    index: int
    """Its place among the GPUs, as ROCm counts them."""
    address: str
    """The PCI address of its card."""
    partition: int = 0
    """Which part of its card it is."""
    render_minor: int = 0
    unique_id: int = 0
    hive: int = 0
    """XGMI hive: cards with one value reach each other by XGMI."""
    target: int = 0
    """Instruction set: major * 10000 + minor * 100 + stepping."""
    compute_units: int = 0


def control(host: Host) -> DeviceNode | None:
    """Give the node that every ROCm program needs, `/dev/kfd`."""
    return drm.numbered(host, _KFD, "/dev/kfd")


def gpus(host: Host) -> tuple[Gpu, ...]:
    """Give the GPUs in the order in which ROCm counts them."""
    numbers = sorted(int(name) for name in host.names(_NODES) if re.fullmatch("[0-9]{1,6}", name))
    every = ((number, _properties(host, f"{_NODES}/{number}/properties")) for number in numbers)
    found = [(number, told) for number, told in every if told.get("simd_count")]
    return tuple(
        _gpu(host, number, place, told)
        for place, (number, told) in enumerate(found)
        if "location_id" in told and told.get("vendor_id", _VENDOR) == _VENDOR
    )


def _gpu(host: Host, node: int, index: int, told: Mapping[str, int]) -> Gpu:
    address, partition = _place(host, told)
    minor = told.get("drm_render_minor", 0)
    per_unit = told.get("simd_per_cu", 0)
    return Gpu(
        node=node,
        index=index,
        address=address,
        partition=partition,
        render_minor=minor if minor < MINOR_LIMIT else 0,
        unique_id=told.get("unique_id", 0),
        hive=told.get("hive_id", 0),
        target=told.get("gfx_target_version", 0),
        compute_units=told["simd_count"] // per_unit if per_unit else 0,
    )


def _place(host: Host, told: Mapping[str, int]) -> tuple[str, int]:
    """Give a node's PCI address, and which part of its card it is.

    The number of the part stands in bits 31:28 of `location_id`, or, as first released, in place
    of the function, which then is none that there is on the bus.
    """
    location = told.get("location_id", 0)
    domain = told.get("domain", 0) & 0xFFFFFFFF
    card = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"
    number, part = location & 7, location >> 28 & 0xF
    if number and not part and not host.names(drm.function(f"{card}.{number}")):
        return f"{card}.0", number
    return f"{card}.{number}", part


def memory(host: Host, gpu: Gpu) -> int:
    """Give the bytes of memory on the device that are this GPU's; 0 where nobody tells."""
    folder = f"{_NODES}/{gpu.node}/mem_banks"
    banks = [_properties(host, f"{folder}/{name}/properties") for name in host.names(folder)]
    total = sum(b.get("size_in_bytes", 0) for b in banks if b.get("heap_type") in _DEVICE_MEMORY)
    return total if total < 1 << 53 else 0


def links(host: Host, gpu: Gpu) -> Iterator[tuple[int, int]]:
    """Give the nodes to which XGMI leads directly, each with how many links there are.

    The driver tells the bandwidth of one link and of all of them, and tells neither for cards
    before CDNA 2, which have one. Where the way leads over another card, the whole is 0.
    """
    folder = f"{_NODES}/{gpu.node}/io_links"
    for name in host.names(folder):
        told = _properties(host, f"{folder}/{name}/properties")
        if told.get("type") != _XGMI or told.get("weight", 0) > _ONE_HOP or "node_to" not in told:
            continue
        one, every = told.get("min_bandwidth", 0), told.get("max_bandwidth", 0)
        number = every // one if one else 1
        if 0 < number < 64:
            yield told["node_to"], number


def _properties(host: Host, name: str) -> dict[str, int]:
    """Read lines of a name and a number; the rest is left out."""
    lines = (_LINE.fullmatch(line) for line in (host.read(name) or "").splitlines())
    told = {match[1]: int(match[2]) for match in lines if match}
    return {name: value for name, value in told.items() if value < _WORD}
