"""NICs: every network interface and RDMA device that hardware stands behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import ClassVar

from msgspec import structs

from xce_nodeagent.errors import exhausted
from xce_nodeagent.host import Host, interface, netlink, pci
from xce_nodeagent.host.event import ROUTES
from xce_nodeagent.host.interface import Interface, RdmaPort
from xce_nodeagent.model import environment
from xce_nodeagent.model.instance import AttributeValue, Instance, ResourceType
from xce_nodeagent.model.inventory import ControlNode
from xce_nodeagent.model.plan import AllowDevice, Plan
from xce_nodeagent.model.resource import NIC
from xce_nodeagent.provider import Found, Grant, Provider

_log = logging.getLogger(__name__)

VENDORS = {
    0x1022: "amd",
    0x1077: "qlogic",
    0x10EC: "realtek",
    0x1414: "microsoft",
    0x14E4: "broadcom",
    0x15AD: "vmware",
    0x15B3: "mellanox",
    0x17DB: "cray",
    0x1AE0: "google",
    0x1AF4: "virtio",
    0x1D0F: "amazon",
    0x1DD8: "pensando",
    0x1FC1: "qlogic",
    0x434E: "cornelis",
    0x8086: "intel",
}
"""By PCI vendor id, as the PCI-SIG gives them out; others are shown by their number."""

MODELS = {
    (0x15B3, 0x1003): "ConnectX-3",
    (0x15B3, 0x1007): "ConnectX-3 Pro",
    (0x15B3, 0x1013): "ConnectX-4",
    (0x15B3, 0x1015): "ConnectX-4 Lx",
    (0x15B3, 0x1017): "ConnectX-5",
    (0x15B3, 0x1019): "ConnectX-5 Ex",
    (0x15B3, 0x101B): "ConnectX-6",
    (0x15B3, 0x101D): "ConnectX-6 Dx",
    (0x15B3, 0x101F): "ConnectX-6 Lx",
    (0x15B3, 0x1021): "ConnectX-7",
    (0x15B3, 0x1023): "ConnectX-8",
    (0x15B3, 0xA2D6): "BlueField-2",
    (0x15B3, 0xA2DC): "BlueField-3",
    (0x1AF4, 0x1000): "virtio-net",
    (0x1AF4, 0x1041): "virtio-net",
    (0x1D0F, 0xEC20): "ENA",
    (0x1D0F, 0xEFA0): "EFA",
    (0x1D0F, 0xEFA1): "EFA",
    (0x1D0F, 0xEFA2): "EFA",
    (0x1D0F, 0xEFA3): "EFA",
}
"""The cards that clusters have; others are shown as `vendor:device`. A host may have no pci.ids."""


_OWN = "the host's default route goes out by it"


class Nics:
    """The provider."""

    name: ClassVar[str] = "nic"
    types: ClassVar[tuple[ResourceType, ...]] = (NIC,)
    subsystems: ClassVar[frozenset[str]] = frozenset(
        {"pci", "net", ROUTES, "infiniband", "infiniband_verbs", "infiniband_mad", "misc", "module"}
    )

    def discover(self, host: Host) -> Found:
        """Find them all. Without netlink the default route is not known, and the rest is."""
        table = None
        try:
            table = host.answer("netlink", netlink.read, netlink.Table)
        except OSError as error:
            if exhausted(error):
                raise
            _log.warning("netlink does not answer, default routes are not known: %s", error)
        table = table or netlink.Table((), frozenset())
        permanent = {link.name: link.permanent for link in table.links if link.permanent}
        carriers = interface.carriers(host, table.default_routes)
        rdma = interface.rdma_ports(host)
        nodes = interface.verbs_nodes(host)
        found: list[Instance] = []
        for card, port in _pairs(interface.interfaces(host), rdma):
            attributes = dict(_attributes(host, card, port))
            if card and card.name in permanent:
                attributes["mac"] = permanent[card.name]
            if card and card.name in carriers:
                attributes["default_route"] = True
            found.append(
                Instance(
                    id=_identity(card, port),
                    type="nic",
                    provider=self.name,
                    parent=card.physical_function or None if card else None,
                    reserved=_OWN if "default_route" in attributes else "",
                    attributes=attributes,
                    devices=(nodes[port.device],) if port and port.device in nodes else (),
                )
            )
        return Found(instances=tuple(_exclusive(found)), control=tuple(_control(host)))

    def plan(self, grant: Grant) -> Plan:
        """Allow the RDMA devices, and name the interfaces to the libraries."""
        nodes = [node for nic in grant.instances for node in nic.devices]
        if nodes:
            nodes += grant.control
        allowed = tuple(AllowDevice(node) for node in dict.fromkeys(nodes))
        return Plan(allowed + environment.nics(grant.instances))


def _pairs(
    cards: tuple[Interface, ...], ports: tuple[RdmaPort, ...]
) -> Iterator[tuple[Interface | None, RdmaPort | None]]:
    """Pair interfaces with RDMA ports; an RDMA port on PCI may have no interface, as with EFA."""
    used: set[tuple[str, int]] = set()
    identities: set[str] = set()
    for card in cards:
        port = interface.match(card, ports)
        if port:
            used.add((port.device, port.port))
        identities.add(_identity(card, port))
        yield card, port
    for port in ports:
        if port.place and (port.device, port.port) not in used and not port.netdev:
            identity = _identity(None, port)
            if identity not in identities:
                yield None, port


def _identity(card: Interface | None, port: RdmaPort | None) -> str:
    """Give the PCI address; the further ports of one function have their number behind it."""
    place = card.place if card else port.place if port else None
    if place is None:
        return f"net-{card.name}" if card else ""
    number = card.port if card else port.port - 1 if port else 0
    return f"{place.address}-p{number}" if number else place.address


def _attributes(
    host: Host, card: Interface | None, port: RdmaPort | None
) -> Iterator[tuple[str, AttributeValue]]:
    """Give what is known; what is not is left out."""
    place = card.place if card else port.place if port else None
    if place:
        yield from pci.attributes(host, place.address, place)
        yield from _made_by(host, place.address)
    one: Interface | RdmaPort | None = card or port
    if card:
        yield "netdev", card.name
        if card.mac:
            yield "mac", card.mac
        if card.physical_function:
            yield "physical_function", card.physical_function
    if port:
        yield "rdma_device", port.device
        yield "rdma_port", port.port
    if one:
        if one.state:
            yield "state", one.state
        if one.link_layer:
            yield "link_layer", one.link_layer
        if speed := one.speed_mbps or (port.speed_mbps if port else 0):
            yield "speed_mbps", speed


def _made_by(host: Host, address: str) -> Iterator[tuple[str, AttributeValue]]:
    vendor = pci.identifier(host, address, "vendor")
    device = pci.identifier(host, address, "device")
    if vendor is not None:
        yield "vendor", VENDORS.get(vendor, f"{vendor:04x}")
        if device is not None:
            yield "model", MODELS.get((vendor, device), f"{vendor:04x}:{device:04x}")


def _exclusive(found: list[Instance]) -> Iterator[Instance]:
    """Let ports that share an RDMA device exclude each other: one node opens all of them."""
    sharing: dict[str, list[str]] = {}
    for nic in found:
        for node in nic.devices:
            sharing.setdefault(node.path, []).append(nic.id)
    for nic in found:
        others = {one for node in nic.devices for one in sharing[node.path] if one != nic.id}
        yield structs.replace(nic, overlaps=tuple(sorted(others))) if others else nic


def _control(host: Host) -> Iterator[ControlNode]:
    if node := interface.connection_manager(host):
        yield ControlNode(node, granted=True)
    for node in interface.management_nodes(host):
        yield ControlNode(node, granted=False)


PROVIDER: Provider = Nics()
