"""Intel's GPUs, Habana's Gaudi, and every other accelerator that the kernel has a class for.

sysfs alone tells of them: where they are, their nodes, and whether a driver has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from msgspec import structs

from xce_nodeagent.host import Host, accel, drm, pci
from xce_nodeagent.host.accel import Device
from xce_nodeagent.model import environment
from xce_nodeagent.model.instance import AttributeValue, Instance, ResourceType
from xce_nodeagent.model.plan import AllowDevice, Plan
from xce_nodeagent.model.resource import ACCELERATOR, GPU
from xce_nodeagent.provider import Found, Grant, Provider

VENDORS = {
    0x1022: "amd",
    0x10EE: "xilinx",
    0x17CB: "qualcomm",
    0x1AE0: "google",
    0x1D0F: "amazon",
    0x1E52: "tenstorrent",
    accel.HABANA: "habana",
    accel.INTEL: "intel",
    accel.NEC: "nec",
}
"""By PCI vendor id, as the PCI-SIG gives them out; others are shown by their number."""

MODELS = {
    (0x17CB, 0xA100): "Cloud AI 100",
    (accel.HABANA, 0x0001): "Goya",
    (accel.HABANA, 0x1000): "Gaudi",
    (accel.HABANA, 0x1010): "Gaudi",
    (accel.HABANA, 0x1020): "Gaudi2",
    (accel.HABANA, 0x1060): "Gaudi3",
    (accel.INTEL, 0x0BD5): "Data Center GPU Max 1550",
    (accel.INTEL, 0x0BDA): "Data Center GPU Max 1100",
    (accel.INTEL, 0x56C0): "Data Center GPU Flex 170",
    (accel.INTEL, 0x56C1): "Data Center GPU Flex 140",
    (accel.NEC, 0x001C): "Vector Engine",
}
"""The cards that clusters have; others are shown as `vendor:device`. A host may have no pci.ids."""


class Accelerators:
    """The provider."""

    name: ClassVar[str] = "accelerator"
    types: ClassVar[tuple[ResourceType, ...]] = (GPU, ACCELERATOR)
    subsystems: ClassVar[frozenset[str]] = frozenset({"pci", "drm", "module", *accel.CLASSES})
    pci_classes: ClassVar[frozenset[int]] = frozenset({0x03, 0x0B, 0x12})

    def discover(self, host: Host) -> Found:
        """Find them all; one that no driver has is there, and unhealthy."""
        return Found(instances=tuple(_exclusive(_instances(host, accel.devices(host)))))

    def plan(self, grant: Grant) -> Plan:
        """Allow their nodes, and name them to the libraries that are known."""
        nodes = dict.fromkeys(node for one in grant.instances for node in one.devices)
        plan = Plan(tuple(map(AllowDevice, nodes)))
        gpus = [one for one in grant.instances if one.type == "gpu"]
        intel = [one for one in gpus if one.text("vendor") == "intel"]
        others = [one for one in grant.instances if one.type != "gpu"]
        if gpus:
            plan += Plan(environment.gpus(gpus))
        if intel:
            plan += Plan(environment.level_zero(intel, contained=grant.contained))
        if others:
            plan += Plan(environment.accelerators(others))
        return plan


def _instances(host: Host, devices: Iterable[Device]) -> Iterator[Instance]:
    index = 0
    for device in devices:
        attributes = dict(_attributes(host, device))
        # Level Zero counts the cards that it can open.
        if device.display and device.vendor == accel.INTEL and not device.why:
            attributes["index"] = index
            index += 1
        yield Instance(
            id=_identity(device.name, display=device.display),
            type="gpu" if device.display else "accelerator",
            provider="accelerator",
            parent=_identity(device.physical, display=device.display) or None,
            healthy=not device.why,
            reason=device.why,
            attributes=attributes,
            devices=device.nodes,
        )


def _identity(name: str, *, display: bool) -> str:
    """Give the id: sysfs tells no vendor's id, so it is the place on the bus."""
    return f"{'gpu' if display else 'accel'}-{name}" if name else ""


def _attributes(host: Host, device: Device) -> Iterator[tuple[str, AttributeValue]]:
    """Give what is known; what is not is left out."""
    if device.vendor is not None:
        yield "vendor", VENDORS.get(device.vendor, f"{device.vendor:04x}")
        if device.device is not None:
            ids = (device.vendor, device.device)
            yield "model", MODELS.get(ids, f"{device.vendor:04x}:{device.device:04x}")
    if device.driver and (version := drm.text(host, f"/sys/module/{device.driver}/version")):
        yield "driver_version", version
    if device.module is not None:
        yield "module_id", device.module
    if device.display:
        for node in device.nodes:
            if node.path.startswith("/dev/dri/renderD"):
                yield "minor", node.minor
                yield "render_minor", node.minor
                break
        if device.tiles:
            yield "tiles", device.tiles
        if device.memory:
            yield "memory_bytes", device.memory
    if device.address:
        yield from pci.attributes(host, device.address)


def _exclusive(found: Iterable[Instance]) -> Iterator[Instance]:
    """Let a card and its virtual functions exclude each other: they are one piece of silicon."""
    instances = {one.id: one for one in found}
    functions: dict[str, list[str]] = {}
    for one in instances.values():
        if one.parent in instances:
            functions.setdefault(one.parent or "", []).append(one.id)
    for one in instances.values():
        parent = one.parent if one.parent in instances else None
        overlaps = [parent] if parent else functions.get(one.id, [])
        yield structs.replace(one, parent=parent, overlaps=tuple(sorted(overlaps)))


PROVIDER: Provider = Accelerators()
