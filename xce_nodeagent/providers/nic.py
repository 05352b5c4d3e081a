"""NICs: every network interface and RDMA device that hardware stands behind."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

from msgspec import Struct, structs

from xce_nodeagent.errors import exhausted
from xce_nodeagent.host import Host, interface, netlink, pci, rdma, route, stack
from xce_nodeagent.host.event import ROUTES
from xce_nodeagent.host.interface import Interface
from xce_nodeagent.host.rdma import RdmaPort
from xce_nodeagent.host.stack import Stack
from xce_nodeagent.model import environment
from xce_nodeagent.model.instance import AttributeValue, DeviceNode, Instance, ResourceType
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
    (0x15B3, 0x1018): "ConnectX-5 VF",
    (0x15B3, 0x1019): "ConnectX-5 Ex",
    (0x15B3, 0x101A): "ConnectX-5 Ex VF",
    (0x15B3, 0x101B): "ConnectX-6",
    (0x15B3, 0x101C): "ConnectX-6 VF",
    (0x15B3, 0x101D): "ConnectX-6 Dx",
    (0x15B3, 0x101E): "ConnectX VF",
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
    (0x17DB, 0x0501): "Slingshot 200",
    (0x1AE0, 0x0042): "gVNIC",
    (0x8086, 0x24F0): "Omni-Path 100",
    (0x8086, 0x24F1): "Omni-Path 100",
}
"""The cards that clusters have; others are shown as `vendor:device`. A host may have no pci.ids."""


_USB = "it hangs on USB, as a management controller's does"

KINDS = {
    "efa": "efa",
    "hfi1": "omnipath",
    "cxi_ss1": "slingshot",
    "EFA": "efa",
    "Omni-Path 100": "omnipath",
    "Slingshot 200": "slingshot",
}
"""By driver, or by model: what the link layer does not tell."""

_BY_CLASS = {0x0200: "ethernet", 0x0207: "infiniband"}
"""By PCI class; ConnectX cards change theirs with their link layer."""


class Nics:
    """The provider."""

    name: ClassVar[str] = "nic"
    types: ClassVar[tuple[ResourceType, ...]] = (NIC,)
    subsystems: ClassVar[frozenset[str]] = frozenset(
        {"pci", "net", ROUTES, "infiniband", "infiniband_verbs", "infiniband_mad", "misc", "module"}
        | {"cxi_user", "hfi1_user"}
    )
    pci_classes: ClassVar[frozenset[int]] = frozenset({0x02, 0x0C})

    def discover(self, host: Host) -> Found:
        """Find them all. Where netlink does not answer, sysfs and procfs tell most of it."""
        table = None
        try:
            table = host.answer("netlink", netlink.read, netlink.Table)
        except OSError as error:
            if exhausted(error):
                raise
            _log.warning("netlink does not answer, some routes may not be known: %s", error)
        if table is not None and table.links:
            standing, routes = stack.told(table.links), table.default_routes
        else:
            standing, routes = stack.recorded(host), route.recorded(host)
        interfaces = interface.interfaces(host)
        ports = rdma.ports(host)
        look = _Look(
            host=host,
            standing=standing,
            needed=standing.needed(routes),
            permanent={one.name: one.permanent for one in table.links} if table else {},
            nodes=rdma.nodes(host, ports),
            slingshot=rdma.slingshot(host),
        )
        found: dict[str, Instance] = {}
        cards: dict[str, Interface] = {}
        for card, port in _pairs(interfaces, ports, standing):
            identity = _identity(card, port)
            if identity in found:  # which is no reason to lose either of them
                identity = f"{identity}-{card.name if card else port.device if port else ''}"
            found[identity] = look.instance(identity, card, port)
            if card:
                cards[identity] = card
        whole = _overlapping(found, cards, standing)
        return Found(instances=tuple(whole), control=tuple(_control(host, whole)))

    def plan(self, grant: Grant) -> Plan:
        """Allow the RDMA devices, and name the interfaces to the libraries."""
        nodes = [node for nic in grant.instances for node in nic.devices]
        if nodes:
            nodes += grant.control
        allowed = tuple(AllowDevice(node) for node in dict.fromkeys(nodes))
        return Plan(allowed + environment.nics(grant.instances))


class _Look(Struct, frozen=True, kw_only=True):
    """What is known of the host while its NICs are put together."""

    host: Host
    standing: Stack
    needed: Mapping[str, str]
    permanent: Mapping[str, str]
    nodes: Mapping[str, tuple[DeviceNode, ...]]
    slingshot: Mapping[str, DeviceNode]

    def instance(self, identity: str, card: Interface | None, port: RdmaPort | None) -> Instance:
        """Give one, but for what it overlaps with."""
        place = card.place if card else port.place if port else None
        devices = self.nodes.get(port.device, ()) if port else ()
        if place and place.address in self.slingshot:
            devices = (*devices, self.slingshot[place.address])
        reserved = self.needed.get(card.name, "") if card else ""
        if not reserved and card and card.bus == "usb":
            reserved = _USB
        return Instance(
            id=identity,
            type="nic",
            provider=Nics.name,
            parent=card.physical_function or None if card else None,
            reserved=reserved,
            attributes=dict(self._attributes(card, port, place)),
            devices=tuple(dict.fromkeys(devices)),
        )

    def _attributes(
        self, card: Interface | None, port: RdmaPort | None, place: pci.Place | None
    ) -> Iterator[tuple[str, AttributeValue]]:
        """Give what is known; what is not is left out."""
        if place:
            yield from _on_pci(self.host, place).items()
            count = interface.virtual_functions(self.host, place.address)
            if count is not None and not (card and card.physical_function):
                yield "vf_count", count
        if card:
            yield from self._of_interface(card)
        if port:
            yield "rdma_device", port.device
            yield "rdma_port", port.port
            if port.firmware:
                yield "firmware_version", port.firmware
            if port.board:
                yield "board_id", port.board
        if kind := self._kind(card, port, place):
            yield "nic_kind", kind
        one: Interface | RdmaPort | None = card or port
        if one:
            # A job uses the port of InfiniBand; that IP has an interface on it, and that it is up,
            # is another thing.
            fabric = port is not None and port.link_layer == "infiniband"
            seen = port if port and fabric and port.state == "up" else one
            if seen.state:
                yield "state", seen.state
            carrier = seen.carrier if seen.carrier is not None else one.carrier
            if carrier is not None:
                yield "carrier", carrier
            if one.link_layer:
                yield "link_layer", one.link_layer
            if speed := one.speed_mbps or (port.speed_mbps if port else 0):
                yield "speed_mbps", speed

    def _of_interface(self, card: Interface) -> Iterator[tuple[str, AttributeValue]]:
        yield "netdev", card.name
        if mac := self.permanent.get(card.name) or card.mac:
            yield "mac", mac
        if card.physical_function:
            yield "physical_function", card.physical_function
        if bond := self.standing.bond(card.name):
            yield "bond", bond
        if vlans := self.standing.vlans(card.name):
            yield "vlans", list(vlans)
        if card.name in self.needed:
            yield "default_route", True

    def _kind(self, card: Interface | None, port: RdmaPort | None, place: pci.Place | None) -> str:
        """Say what it is, by its driver and model, its RDMA port, its interface, its PCI class.

        In this order. The class counts where neither port nor interface tells a link layer.
        """
        if place:
            if place.address in self.slingshot:
                return "slingshot"
            model = str(_on_pci(self.host, place).get("model"))
            if kind := KINDS.get(interface.driver(self.host, place.address)) or KINDS.get(model):
                return kind
        if port:
            if kind := KINDS.get(port.device.partition("_")[0]):
                return kind
            if port.link_layer == "infiniband":
                return "infiniband"
            # RNIC is iWARP, which is no RoCE; nor are Cisco's usNIC and what does not say.
            if port.link_layer == "ethernet" and port.node_type in ("CA", ""):
                return "roce"
        if (card and card.link_layer) or (port and port.link_layer) or not place:
            return card.link_layer if card else ""
        code = self.host.number(f"/sys/bus/pci/devices/{place.address}/class") or 0
        kind = _BY_CLASS.get(code >> 8, "")
        return "roce" if port and kind == "ethernet" and port.node_type in ("CA", "") else kind


def _pairs(
    cards: tuple[Interface, ...], ports: tuple[RdmaPort, ...], standing: Stack
) -> Iterator[tuple[Interface | None, RdmaPort | None]]:
    """Pair interfaces with RDMA ports; an RDMA port may have no interface, as with EFA."""
    used: set[tuple[str, int]] = set()
    identities: set[str] = set()
    for card in cards:
        port = rdma.match(card, ports, standing.bond(card.name))
        if port:
            used.add((port.device, port.port))
        identities.add(_identity(card, port))
        yield card, port
    for port in ports:
        if not port.software and (port.device, port.port) not in used and not port.netdev:
            identity = _identity(None, port)
            if identity not in identities:
                yield None, port


def _identity(card: Interface | None, port: RdmaPort | None) -> str:
    """Give the PCI address; the further ports of one function have their number behind it.

    What is on no PCI bus has its name.
    """
    place = card.place if card else port.place if port else None
    if place is None:
        device = f"rdma-{port.device}" if port else ""
        further = f"-p{port.port - 1}" if port and port.port > 1 else ""
        return f"net-{card.name}" if card else device + further
    if card and card.subfunction is not None:
        return f"{place.address}-sf{card.subfunction}"
    number = card.port if card else port.port - 1 if port else 0
    return f"{place.address}-p{number}" if number else place.address


def _on_pci(host: Host, place: pci.Place) -> Mapping[str, AttributeValue]:
    """Give what is known of a function: where it is, and who made it."""

    def told() -> dict[str, AttributeValue]:
        found = dict(pci.attributes(host, place.address, place))
        return {**found, **dict(_made_by(host, place.address))}

    # Kept as long as one of the files that it is made of.
    return host.derived(f"/sys/bus/pci/devices/{place.address}/vendor", told)


def _made_by(host: Host, address: str) -> Iterator[tuple[str, AttributeValue]]:
    vendor = pci.identifier(host, address, "vendor")
    device = pci.identifier(host, address, "device")
    if vendor is not None:
        yield "vendor", VENDORS.get(vendor, f"{vendor:04x}")
        if device is not None:
            yield "model", MODELS.get((vendor, device), f"{vendor:04x}:{device:04x}")


def _overlapping(
    found: Mapping[str, Instance], cards: Mapping[str, Interface], standing: Stack
) -> tuple[Instance, ...]:
    """Let exclude each other what is one piece of hardware, or one link.

    Ports that share a device node: who may open it has all of them. A physical function and its
    virtual ones: who holds the port has all of its bandwidth, and can take the others down; the
    virtual ones stand beside each other. Members of one bond: traffic goes by all of them.
    """
    groups: dict[tuple[str, str], set[str]] = {}
    ports: dict[str, set[str]] = {}
    for nic in found.values():
        for node in nic.devices:
            groups.setdefault(("node", node.path), set()).add(nic.id)
        if not nic.text("physical_function") and nic.text("pci_address"):
            ports.setdefault(nic.text("pci_address"), set()).add(nic.id)
    names = {card.name: identity for identity, card in cards.items()}
    for identity, card in cards.items():
        if master := standing.one_link(card.name):
            groups.setdefault(("link", master), set()).add(identity)
            if master in names:  # Hyper-V's own interface is master of the one that hardware has
                groups["link", master].add(names[master])
    overlaps: dict[str, set[str]] = {identity: set() for identity in found}
    for group in groups.values():
        for one in group:
            overlaps[one] |= group
    for nic in found.values():
        for port in ports.get(nic.text("physical_function"), ()):
            overlaps[nic.id].add(port)
            overlaps[port].add(nic.id)
    return tuple(
        structs.replace(nic, overlaps=tuple(sorted(overlaps[nic.id] - {nic.id})))
        for nic in found.values()
    )


def _control(host: Host, found: Iterable[Instance]) -> Iterator[ControlNode]:
    """Give the nodes that are no NIC's own. An hfi1 node of which that is not known is one."""
    if node := rdma.connection_manager(host):
        yield ControlNode(node, granted=True)
    for node in rdma.management(host):
        yield ControlNode(node, granted=False)
    owned = {node for nic in found for node in nic.devices}
    for node in rdma.omnipath(host):
        if node not in owned:
            yield ControlNode(node, granted=False)


PROVIDER: Provider = Nics()
