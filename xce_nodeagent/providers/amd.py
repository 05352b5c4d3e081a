"""AMD's GPUs, from sysfs alone: what the driver amdgpu and its compute part, KFD, show.

A card is an instance, and where it is partitioned each part is one instead: ROCm sees each as a
GPU of its own. `parent` is then the card. The parts of a card have their compute dies to
themselves, so they do not overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from xce_nodeagent.host import Host, amdgpu, kfd
from xce_nodeagent.host.amdgpu import Card
from xce_nodeagent.host.slow import Hung
from xce_nodeagent.model import environment
from xce_nodeagent.model.instance import AttributeValue, DeviceNode, Instance, ResourceType
from xce_nodeagent.model.inventory import ControlNode
from xce_nodeagent.model.link import Link
from xce_nodeagent.model.plan import AllowDevice, Plan
from xce_nodeagent.model.resource import GPU
from xce_nodeagent.provider import Found, Grant, Provider

_NO_KFD = "/sys/class/kfd/kfd/dev does not tell the number of /dev/kfd, which ROCm needs"
_NOT_LISTED = "amdgpu has it, but /sys/class/kfd does not list it, so ROCm cannot use it"


class Amd:
    """The provider."""

    name: ClassVar[str] = "amd"
    types: ClassVar[tuple[ResourceType, ...]] = (GPU,)
    subsystems: ClassVar[frozenset[str]] = frozenset({"pci", "drm", "kfd", "module"})
    pci_classes: ClassVar[frozenset[int]] = frozenset({0x03, 0x12})

    def discover(self, host: Host) -> Found:
        """Find every card that is on the bus or that KFD shows; those without driver are lost."""
        gpus = kfd.gpus(host)
        cards = amdgpu.cards(host, gpus)
        build = _Build(host, cards, gpus)
        instances = tuple(one for card in cards for one in build.instances(card))
        return Found(
            instances=instances,
            control=tuple(build.control(instances)),
            lost=frozenset(build.identity(card) for card in cards if card.why),
            links=tuple(build.links()),
        )

    def plan(self, grant: Grant) -> Plan:
        """Allow the cards' nodes and /dev/kfd, and name the cards to ROCm."""
        nodes = [node for one in grant.instances for node in one.devices]
        allowed = tuple(AllowDevice(node) for node in dict.fromkeys([*nodes, *grant.control]))
        return Plan(
            allowed + environment.amd(grant.instances, grant.visible, contained=grant.contained)
        )


class _Build:
    """The instances of all cards: which ids are unique shows only when all are known."""

    def __init__(self, host: Host, cards: Sequence[Card], gpus: Sequence[kfd.Gpu]) -> None:
        self._host = host
        self._cards = cards
        self._of_cards = Counter(map(_unique_id, cards))
        self._of_gpus = Counter(gpu.unique_id for gpu in gpus)
        self._kfd = kfd.control(host)
        self._part_nodes = amdgpu.part_nodes(host)
        self._errors = amdgpu.uncorrected(host, (card for card in cards if card.parts))
        self._holders: dict[DeviceNode, str] = {}
        self._by_node: dict[int, str] = {}

    def identity(self, card: Card) -> str:
        """Give the id of a card: its own where it has one and no other card has the same."""
        number = _unique_id(card)
        if number and self._of_cards[number] == 1:
            return f"GPU-{number:016x}"
        return f"gpu-{card.address}"

    def instances(self, card: Card) -> Iterator[Instance]:
        """Give the card, or its parts."""
        identity = self.identity(card)
        if not card.parts:
            devices, why = self._own(identity, card.nodes.values(), card.why or _NOT_LISTED)
            yield _instance(identity, None, dict(card.attributes), devices, why)
        for gpu in card.parts:
            one = f"{identity}-{_part(card, gpu)}" if card.divided else identity
            if one in self._by_node.values():  # two nodes say that they are the same part
                one = f"{one}-n{gpu.node}"
            self._by_node[gpu.node] = one
            attributes = dict(card.attributes) | self._told(card, gpu)
            devices, why = self._own(one, *self._devices(card, gpu))
            yield _instance(one, identity if card.divided else None, attributes, devices, why)

    def _told(self, card: Card, gpu: kfd.Gpu) -> dict[str, AttributeValue]:
        """Give what KFD tells of a card or a part of one."""
        told: dict[str, AttributeValue] = {"index": gpu.index}
        # ROCm takes a UUID only where no other GPU has the same (amd_filter_device.cpp,
        # ProcessUuidToken); older kernels give all parts of a card that of the card.
        if gpu.unique_id and self._of_gpus[gpu.unique_id] == 1:
            told["uuid"] = f"GPU-{gpu.unique_id:016x}"
        if gpu.render_minor:
            told["minor"] = told["render_minor"] = gpu.render_minor
        memory = kfd.memory(self._host, gpu)
        if not memory and not card.divided:
            memory = amdgpu.memory(self._host, card)
        if memory:
            told["memory_bytes"] = memory
        if gpu.compute_units:
            told["multiprocessors"] = gpu.compute_units
        if target := _target(gpu.target):
            told["gfx_target"] = target
        if gpu.hive:
            told["xgmi_hive"] = f"{gpu.hive:016x}"
        return told

    def _devices(self, card: Card, gpu: kfd.Gpu) -> tuple[Iterable[DeviceNode], str]:
        """Give the nodes of a card or a part of one, and why no job can use it, if so.

        A whole card has all its nodes. A part has its render node alone: who opens `card*` uses
        the whole card (amdgpu_xcp.c, amdgpu_xcp_open_device).
        """
        name = f"renderD{gpu.render_minor}"
        render = card.nodes.get(name) or self._part_nodes.get(name)
        if render is None:
            return (), f"its render node {name} is not in /sys"
        why = _NO_KFD if self._kfd is None else _sick(self._errors[card.address])
        return ({render} if card.divided else {render, *card.nodes.values()}), why

    def _own(
        self, identity: str, devices: Iterable[DeviceNode], why: str
    ) -> tuple[tuple[DeviceNode, ...], str]:
        """Give nodes to the first that has them: no job may be given somebody else's."""
        for node in devices:
            holder = self._holders.setdefault(node, identity)
            if holder != identity:
                return (), why or f"its node {node.path} is that of {holder} as well"
        return tuple(sorted(devices)), why

    def control(self, instances: Iterable[Instance]) -> Iterator[ControlNode]:
        """Give /dev/kfd, and all nodes that are nobody's own, which are for no job."""
        if self._kfd is not None:
            yield ControlNode(self._kfd, granted=True)
        own = {node for one in instances for node in one.devices}
        every = {node for card in self._cards for node in card.nodes.values()}
        for node in sorted(every.union(self._part_nodes.values()) - own):
            yield ControlNode(node, granted=False)

    def links(self) -> Iterator[Link]:
        """Give the XGMI links between whole cards.

        Parts share the links of their cards, and KFD does not tell how many those are; that they
        are in one hive is in their attributes.
        """
        found: dict[tuple[str, str], int] = {}
        for gpu in (card.parts[0] for card in self._cards if card.parts and not card.divided):
            one = self._by_node[gpu.node]
            for node, number in kfd.links(self._host, gpu):
                other = self._by_node.get(node, one)
                if other != one:
                    ends = (min(one, other), max(one, other))
                    found[ends] = max(number, found.get(ends, 0))
        for (one, other), number in sorted(found.items()):
            yield Link("xgmi", one, other, number)


def _instance(
    identity: str,
    parent: str | None,
    attributes: dict[str, AttributeValue],
    devices: tuple[DeviceNode, ...],
    why: str,
) -> Instance:
    return Instance(
        id=identity,
        type="gpu",
        provider="amd",
        parent=parent,
        healthy=not why,
        reason=why,
        attributes=attributes,
        devices=devices,
    )


def _sick(errors: int | Hung) -> str:
    if isinstance(errors, Hung):
        return f"its driver does not tell of memory errors: {errors}"
    return f"its memory had {errors} errors that could not be corrected" if errors else ""


def _unique_id(card: Card) -> int:
    """Give the id of a card; KFD has it, too, unless it shows parts, which have their own."""
    if card.unique_id or len(card.parts) != 1 or card.divided:
        return card.unique_id
    return card.parts[0].unique_id


def _part(card: Card, gpu: kfd.Gpu) -> str:
    """Name a part of a card: by its number, or by its node where that tells nothing.

    Before Linux 6.9 the number of all parts is 0; the first one is known by its node, which hangs
    on the card itself.
    """
    first = f"renderD{gpu.render_minor}" in card.nodes
    return str(gpu.partition) if gpu.partition or first else f"r{gpu.render_minor}"


def _target(number: int) -> str:
    """Give AMD's name of an instruction set, `gfx90a` for 90010; empty for what is none."""
    major, minor, stepping = number // 10000, number // 100 % 100, number % 100
    if not 0 < major < 100 or max(minor, stepping) > 15:
        return ""
    return f"gfx{major}{minor:x}{stepping:x}"


PROVIDER: Provider = Amd()
