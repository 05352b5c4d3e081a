"""NVIDIA cards and their MIG slices, as the driver's library reports them.

What NVML does not know comes from the kernel: the numbers of device nodes and what the driver
tells of a card (`host/nvidia.py`), the rest from sysfs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct, structs

from xce_nodeagent.host import Host, fact, node, nvidia, nvml, pci
from xce_nodeagent.model import environment, nvlink, share
from xce_nodeagent.model.cut import Cut
from xce_nodeagent.model.instance import NOT_YET, AttributeValue, Instance, ResourceType
from xce_nodeagent.model.plan import AllowDevice, Plan
from xce_nodeagent.model.resource import GPU, GPU_INSTANCE, MIG, MPS
from xce_nodeagent.provider import Found, Grant, Provider

_VENDOR = 0x10DE
_CLASSES = frozenset({0x0300, 0x0302})  # VGA controller, 3D controller
_UNBOUND = "no driver is bound to it"
_COPIED = (
    "memory_bytes",
    "compute_capability",
    "serial",
    "ecc_mode",
    "row_remap_pending",
    "row_remap_failed",
    "power_limit_watts",
    "persistence_mode",
    "compute_mode",
    "module_id",
    "slot_number",
    "tray_index",
    "host_id",
    "fabric_state",
    "fabric_cluster",
    "fabric_clique",
)
_CORES = {
    **dict.fromkeys(("6.0", "7.0", "7.2", "7.5", "8.0"), 64),
    **dict.fromkeys(("5.0", "5.2", "5.3", "6.1", "6.2", "8.6", "8.7", "8.8", "8.9", "9.0"), 128),
    **dict.fromkeys(("10.0", "10.1", "10.3", "11.0", "12.0", "12.1"), 128),
}
"""CUDA cores of a multiprocessor, by compute capability (CUDA Programming Guide, "Arithmetic
Instructions"): the library counts a whole card's cores, and only a slice's multiprocessors."""

Facts = Mapping[str, Any]


class Nvidia:
    """The provider. Where the host has a prober, that asks the library; else it is asked here."""

    name: ClassVar[str] = "nvidia"
    types: ClassVar[tuple[ResourceType, ...]] = (GPU, MIG, GPU_INSTANCE, MPS)
    subsystems: ClassVar[frozenset[str]] = frozenset({"pci", "drm", "nvidia", "module", "nodes"})
    pci_classes: ClassVar[frozenset[int]] = frozenset({0x03})

    def discover(self, host: Host) -> Found:
        """Ask the library, and say what it means that it answers nothing."""
        if host.probe is not None:
            state, reason, facts = host.probe("nvidia")
        else:
            recorded = host.answer("nvml", nvml.probe, nvml.Answer)
            state, reason, facts = recorded or (
                "none",
                "no driver was asked when it was recorded",
                {},
            )
        cards = _on_pci(host)
        nodes = nvidia.Nodes(host)
        if state == "found":
            facts = fact.checked(facts)
            machine = _Machine(host, facts, cards, nodes)
            instances = _shared(host, machine)
            return Found(
                instances=instances,
                # A card that is lost tells of no slices; jobs may have them.
                control=(*nodes.control(), *nodes.unknown_slices(instances)),
                lost=frozenset(card.id for card in machine.cards if card.lost or card.closed),
                kept=frozenset(card.id for card in machine.cards if card.closed),
                links=machine.links,
            )
        driver = bool(host.names(nvidia.DRIVER))
        if state == "not_yet" and not driver and not cards:
            state = "none"
        if state == "none" and cards:
            shown = ", ".join(cards[:8])
            reason = f"{len(cards)} NVIDIA cards on PCI ({shown}), but {reason}"
            state = "error"
        return Found(
            state=_STATES.get(state, "error"),
            reason=reason,
            # A library that is missing while its driver is there says nothing of cards.
            silent=state == "none" and nodes.registered,
            instances=_shared(host, _Machine(host, {"devices": []}, cards, nodes)),
            # A library that hangs while the agent starts must not open them to jobs that run.
            control=(*nodes.control(), *nodes.unknown_slices()) if driver else (),
        )

    def plan(self, grant: Grant) -> Plan:
        """Allow the cards' nodes and the control nodes, and name the cards to CUDA."""
        nodes = [node for one in grant.instances for node in one.devices]
        allowed = tuple(AllowDevice(node) for node in dict.fromkeys([*nodes, *grant.control]))
        return Plan(
            allowed + environment.nvidia(grant.instances, grant.visible, contained=grant.contained)
        )


def _shared(host: Host, machine: _Machine) -> tuple[Instance, ...]:
    """Give all instances, with the shares that the configuration declares."""
    instances = tuple(machine.instances())
    # The FIFO that clients write to (CUDA MPS, "CUDA_MPS_PIPE_DIRECTORY").
    shared = share.divided(instances, host.mps, lambda where: "control" in host.names(where))
    return tuple(_on_disk(host, one) for one in shared) if host.live else shared


def _on_disk(host: Host, one: Instance) -> Instance:
    """Mark what a job could not open, or could take for another's: its node on disk is wrong."""
    why = node.faults(host, one.devices) if one.healthy else ""
    return structs.replace(one, healthy=False, reason=why) if why else one


_STATES: Mapping[str, Any] = {"none": "none", "not_yet": "not_yet", "error": "error"}


def _on_pci(host: Host) -> tuple[str, ...]:
    """Give the addresses of NVIDIA's display and 3D controllers, sorted.

    The driver keeps a card that the bus does not show any more.
    """
    found = {
        address
        for address, code in pci.functions(host).items()
        if code >> 8 in _CLASSES and pci.identifier(host, address, "vendor") == _VENDOR
    }
    return tuple(sorted(found.union(nvidia.cards(host))))


def _devices(host: Host, facts: Facts, cards: Sequence[str]) -> dict[str, Facts]:
    """Give the facts of each card by its address, in the order of the bus."""
    devices: dict[str, Facts] = {}
    for device in facts["devices"]:
        address = device.get("pci_address")
        if address in devices:
            lost = "the NVIDIA library tells of two cards at its address"
            devices[address] = {"pci_address": address, "lost": lost}
        elif address:
            devices[address] = device
    # A card that the library does not report is on the bus all the same, and is not to be used.
    for address in cards:
        if address not in devices:
            bound = host.real(f"/sys/bus/pci/devices/{address}/driver")
            why = f"it is bound to the driver {bound.rpartition('/')[2]}" if bound else _UNBOUND
            lost = f"the NVIDIA library does not report it; {why}"
            devices[address] = {"pci_address": address, "lost": lost}
    return {at: devices[at] for at in sorted(devices, key=lambda address: address.rjust(16, "0"))}


class _Card(Struct, kw_only=True):
    """A card, before it is known whether others claim to be the same."""

    address: str
    device: Facts
    uuid: str
    minor: int | None
    lost: str
    model: str = ""
    fault: str = ""

    @property
    def id(self) -> str:
        return self.uuid or f"gpu-{self.address}"

    @property
    def closed(self) -> bool:
        """Whether it is drained, so that nobody asks it."""
        return bool(self.device.get("closed"))


class _Machine:
    """All the cards, for what only one who sees all of them can tell."""

    def __init__(self, host: Host, facts: Facts, cards: Sequence[str], nodes: nvidia.Nodes) -> None:
        self._host = host
        self._facts = facts
        self._nodes = nodes
        self.cards = [
            self._card(address, device) for address, device in _devices(host, facts, cards).items()
        ]
        self._find_doubles()
        ids = {card.address: card.id for card in self.cards}
        ends = {
            card.address: [nvlink.End(**end) for end in card.device.get("nvlinks", ())]
            for card in self.cards
        }
        self.links = nvlink.links(ids, ends)
        self._domains = nvlink.domains(ids, ends, dict(self._fabrics()))

    def _fabrics(self) -> Iterator[tuple[str, tuple[str, int]]]:
        for card in self.cards:
            if cluster := card.device.get("fabric_cluster"):
                yield card.address, (cluster, card.device.get("fabric_clique", 0))

    def _card(self, address: str, device: Facts) -> _Card:
        told = nvidia.told(self._host, address)
        uuid = _known(device.get("uuid", "")) or _known(told.get("GPU UUID", ""))
        driver_minor = _whole(told.get("Device Minor", ""))
        minor = device.get("minor", driver_minor)
        card = _Card(
            address=address,
            device=device,
            uuid=uuid,
            minor=minor,
            lost=_lost(device),
            model=told.get("Model", ""),
        )
        if driver_minor not in (None, minor):
            card.minor = None
            card.fault = (
                f"its device node is not known: /dev/nvidia{minor} says the library,"
                f" /dev/nvidia{driver_minor} the driver"
            )
        return card

    def _find_doubles(self) -> None:
        """Of cards with one UUID or one device node, none can be told from the others.

        A card that is lost takes nothing from one that answers.
        """
        for answering in (True, False):
            some = [card for card in self.cards if bool(card.lost) is not answering]
            sure = {card.uuid for card in self.cards if not card.lost} if not answering else set()
            uuids = Counter(card.uuid for card in some if card.uuid)
            minors = Counter(card.minor for card in some if card.minor is not None)
            for card in some:
                if uuids[card.uuid] > 1 or (card.uuid and card.uuid in sure):
                    card.fault = f"another card has its UUID, {card.uuid}, too"
                    card.uuid = ""
                elif card.minor is not None and minors[card.minor] > 1:
                    card.fault = f"another card has its device node, /dev/nvidia{card.minor}, too"

    def instances(self) -> Iterator[Instance]:
        """Give the cards in the order of the bus, each with its slices behind it."""
        taken = {card.id for card in self.cards}
        for index, card in enumerate(self.cards):
            attributes = self._attributes(card, index)
            own = self._nodes.card(card.minor, card.address)
            cut = Cut(
                card=card.id,
                minor=card.minor,
                facts=card.device,
                attributes=attributes,
                devices=own,
                lost=card.lost,
                fault=card.fault or self._nodes.lacking,
            )
            slices = tuple(cut.instances(self._nodes.capabilities, taken))
            reason = card.lost or card.fault or _unhealthy(card, slices) or self._nodes.lacking
            yield Instance(
                id=card.id,
                type="gpu",
                provider="nvidia",
                overlaps=tuple(sorted(one.id for one in slices)),
                healthy=not reason,
                reason=reason,
                attributes=attributes,
                devices=own,
            )
            yield from slices

    def _attributes(self, card: _Card, index: int) -> dict[str, AttributeValue]:
        device = card.device
        attributes: dict[str, AttributeValue] = {"vendor": "nvidia", "index": index}
        attributes |= {name: device[name] for name in _COPIED if name in device}
        if name := device.get("name") or card.model or _number_of(self._host, card.address):
            attributes["model"] = name
        if card.uuid:
            attributes["uuid"] = card.uuid
        if card.minor is not None:
            attributes["minor"] = card.minor
        for name in ("driver_version", "cuda_version"):
            if version := self._facts.get(name):
                attributes[name] = version
        per = _CORES.get(device.get("compute_capability", ""), 0)
        if per and device.get("cores", 0) > 0 and device["cores"] % per == 0:
            attributes["multiprocessors"] = device["cores"] // per
        if "nvlinks" in device:
            attributes["nvlink_count"] = sum(end["count"] for end in device["nvlinks"])
        if domain := self._domains.get(card.address):
            attributes["nvlink_domain"] = domain
        attributes.update(pci.attributes(self._host, card.address))
        # What firmware does not tell sysfs, the driver may know.
        if cpus := device.get("cpus"):
            attributes.setdefault("local_cpus", environment.ranges(cpus))
        if len(device.get("numa_nodes", ())) == 1:
            attributes.setdefault("numa_node", device["numa_nodes"][0])
        return attributes


def _known(uuid: str) -> str:
    """Give a UUID; nothing for `GPU-????????-...`, as the driver writes what it cannot ask for."""
    return "" if "?" in uuid else uuid


def _lost(device: Facts) -> str:
    """Say why a card cannot be asked; empty where it can."""
    if device.get("lost"):
        return str(device["lost"])
    if device.get("skipped"):
        return f"it {nvml.LEFT_ALONE}"
    if why := device.get("missing", {}).get("mig"):
        return f"its slices are not known: {why}"
    return ""


def _unhealthy(card: _Card, slices: Sequence[Instance]) -> str:
    device = card.device
    missing = device.get("missing", {})
    if not card.uuid:
        return f"its UUID is not known: {missing.get('uuid', 'no answer')}"
    if card.minor is None:
        return f"its device node is not known: {missing.get('minor', 'no answer')}"
    if device.get("mig_mode"):
        cut = any(one.type == "mig" for one in slices)
        return "" if cut else "it is in MIG mode and has no slices"
    if device.get("compute_mode") == "prohibited":
        return "its compute mode is prohibited, so no CUDA program can use it: `nvidia-smi -c 0`"
    if fault := device.get("fabric_fault"):
        return f"its NVLink fabric: {fault}"
    if device.get("fabric_state", "completed") != "completed":
        # CUDA refuses to start (cudaErrorSystemNotReady) until the fabric manager is done.
        return f"{NOT_YET}its NVLink fabric is coming up ({device['fabric_state']})"
    return ""


def _number_of(host: Host, address: str) -> str:
    """Give the PCI ids, for a card whose name nobody tells."""
    device = pci.identifier(host, address, "device")
    return "" if device is None else f"{_VENDOR:04x}:{device:04x}"


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


PROVIDER: Provider = Nvidia()
