"""Reads what DRA drivers published for a node: ResourceSlices of DRANET and of NVIDIA's driver.

It is YAML; these files use so little of it (mappings, and lists of mappings) that it is read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from recorded.machine import Function, Interface, Machine, RdmaPort

_ATTRIBUTE = re.compile(r"\s*(?:- )?(?P<key>[A-Za-z0-9./-]+):(?: (?P<value>.*))?")
_VENDORS = {"Amazon.com, Inc.": 0x1D0F, "Mellanox Technologies": 0x15B3, "Nvidia": 0x10DE}


def read(*texts: str) -> Machine:
    """Read the slices of one node."""
    functions: dict[str, Function] = {}
    interfaces: list[Interface] = []
    rdma: list[RdmaPort] = []
    for text in texts:
        for device in devices(text):
            address = device.get("dra.net/pciAddress") or device.get(
                "resource.kubernetes.io/pciBusID"
            )
            if address:
                functions[address] = _function(device, address)
                interfaces += _interface(device, address)
                if name := device.get("dra.net/rdmaDevice"):
                    rdma.append(RdmaPort(device=name, function=address, port=1))
    return Machine(
        functions=tuple(functions[address] for address in sorted(functions)),
        interfaces=tuple(interfaces),
        rdma=tuple(rdma),
    )


def devices(text: str) -> Iterator[dict[str, str]]:
    """Give the attributes of each device, as text."""
    found: dict[str, str] = {}
    key = ""
    inside = False
    for line in text.splitlines():
        match = _ATTRIBUTE.fullmatch(line)
        if match is None:
            continue
        name, value = match["key"], (match["value"] or "").strip("'\"")
        if name == "attributes":
            inside, found = True, {}
        elif inside and name in ("name", "capacity"):
            yield found
            inside = False
        elif inside and name in ("string", "int", "bool", "version"):
            found[key] = value
        else:
            key = name


def _function(device: dict[str, str], address: str) -> Function:
    model = device.get("dra.net/pciSubsystem", "")
    vendor = device.get("dra.net/pciVendor") or device.get("brand", "")
    numa = device.get("dra.net/numaNode")
    root = device.get("resource.kubernetes.io/pcieRoot")
    return Function(
        address=address,
        # Without a root told, the bus itself is one: there is nothing above it in the recording.
        path=(root or f"pci{address[:7]}",),
        # What kind it is, is told; which subclass, is not.
        kind=0x0302 if device.get("type") == "gpu" else 0x0200,
        vendor=_VENDORS.get(vendor),
        subsystem_device=int(model, 16) if re.fullmatch("[0-9a-f]{4}", model) else None,
        numa_node=int(numa) if numa is not None else None,
    )


def _interface(device: dict[str, str], address: str) -> Iterator[Interface]:
    if name := device.get("dra.net/ifName"):
        yield Interface(name=name, function=address, mac=device.get("dra.net/mac", ""))
