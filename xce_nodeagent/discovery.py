"""Discovery: ask every provider, and put together one inventory.

A provider that fails, raises or answers "not yet" costs its own news and nothing else: what was
known of its instances before stays, and the inventory says why it is old. A card that is lost
stays under the id that it had.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, convert, structs, to_builtins

from xce_nodeagent import concern
from xce_nodeagent.errors import BadConfig, exhausted
from xce_nodeagent.host import Host, pci, system, topology
from xce_nodeagent.host import virtual as virtual_file
from xce_nodeagent.host.event import ALL, LOST, Event
from xce_nodeagent.host.memory import Memory
from xce_nodeagent.model import claim, mig, rail, reservation, share, virtual
from xce_nodeagent.model.distance import Layout
from xce_nodeagent.model.instance import Instance, ResourceType
from xce_nodeagent.model.inventory import ANY, ControlNode, Inventory, Problem
from xce_nodeagent.model.link import Link
from xce_nodeagent.provider import Declares, Divides, Found, Provider

_log = logging.getLogger(__name__)
_TYPES = ("gpu", "mig", "gi", "mps", "accelerator", "nic", "ports")
_TYPE_ORDER = {name: place for place, name in enumerate(_TYPES)}

_PROCESSORS = frozenset({"cpu", "node"})
"""Subsystems whose events change what is told of the host itself."""

_GROUND = _PROCESSORS | {"pci"}
"""Subsystems whose events change the topology."""


def scan(host: Host, providers: Sequence[Provider], previous: Inventory | None = None) -> Inventory:
    """Look at the host once.

    The topology is what the host tells (see `host.topology`), with `links` between cards and
    `rails` (see `model.rail`). The source is `local`; generation and digest are left to
    `model.inventory.advance`, drains and holders to whoever knows them. Raise BadConfig, and only
    that, where what the configuration asks for does not exist.
    """
    return Discovery(host, providers).look(previous)


class Discovery:
    """Looks at one host again and again; what no event concerns is known from the look before.

    The inventory is put together anew each time, by the same rules. A look that raised leaves
    nothing known.
    """

    def __init__(self, host: Host, providers: Sequence[Provider]) -> None:
        self._host = host
        self._providers = providers
        # To ask what a provider is able to takes 25 µs, and a look after an event 2 ms.
        self._declaring = frozenset(one.name for one in providers if isinstance(one, Declares))
        self._dividing = dividing(providers)
        self._memory = Memory(host.real)
        self._found: dict[str, Found] = {}
        self._ground: dict[str, Any] = {}
        self._placed: frozenset[str] | None = None
        self._attributes: dict[str, Any] = {}
        self._hidden = virtual.Virtual()
        self._rails: tuple[Any, rail.Rails] | None = None
        self._codes: Mapping[str, int] = {}

    def look(
        self,
        previous: Inventory | None = None,
        events: Iterable[Event] | None = None,
        *,
        earlier: bool = False,
    ) -> Inventory:
        """Give what there is, after `previous`; `earlier`: that is of an agent before this one.

        `scan` says more.

        `events` are all that were told since the last look; None, LOST or ALL: anything may have
        changed.
        """
        events = None if events is None or self._placed is None else frozenset(events)
        if events is not None and not events.isdisjoint((LOST, ALL)):
            events = None
        self._placed, placed = None, self._placed if events is not None else None
        self._memory.begin(events)
        host = self._host.remembering(self._memory)
        codes, self._codes = self._codes, pci.functions(host)
        kinds = concern.kinds(events or (), codes, self._codes)
        for provider in self._providers:
            name = provider.name
            if events is None or concern.concerned(provider, self._found[name], events, kinds):
                self._found[name] = _ask(provider, host)
        gathered = _gather(
            self._providers, self._found, previous, declaring=self._declaring, earlier=earlier
        )
        kept = reservation.decided(gathered.instances, host.nic)
        shown = tuple(sorted(kept, key=_order))
        also = frozenset(one.text("pci_address") for one in shown)
        if events is None or also != placed or any(e.subsystem in _GROUND for e in events):
            self._ground = topology.read(host, also)
            self._hidden = virtual_file.read(host)
        if events is None or any(e.subsystem in _PROCESSORS for e in events):
            self._attributes = system.facts(host, self._ground["cpu"])
        self._placed = also
        shown, ground = virtual.applied(shown, self._ground, self._hidden)
        ground["links"] = to_builtins(sorted(gathered.links))
        rails = self._decide_rails(shown, ground)
        ground["rails"] = {"by": rails.by, "nics": dict(rails.nics), "gpus": dict(rails.gpus)}
        return Inventory(
            source="local",
            node=host.node(),
            boot_id=host.boot_id(),
            types=tuple(gathered.types[name] for name in sorted(gathered.types, key=_type_order)),
            attributes=self._attributes,
            counters=counters(shown, self._dividing),
            topology=ground,
            instances=rail.with_rails(shown, rails),
            control=gathered.control,
            problems=(*gathered.problems, *_settings(shown, host, rails.unknown, self._hidden)),
        )

    def _decide_rails(self, shown: tuple[Instance, ...], ground: dict[str, Any]) -> rail.Rails:
        """Decide anew only where something changed: most events change nothing."""
        known = (shown, ground)
        if self._rails is None or self._rails[0] != known:
            layout = Layout(ground, {one.id: one for one in shown})
            self._rails = (shown, dict(ground)), rail.decide(shown, layout, self._host.rails)
        return self._rails[1]


class _Gathered(Struct, frozen=True):
    """What the providers found, put together."""

    instances: tuple[Instance, ...]
    types: dict[str, ResourceType]
    control: dict[str, tuple[ControlNode, ...]]
    links: list[Link]
    problems: tuple[Problem, ...]


def _gather(
    providers: Sequence[Provider],
    told: Mapping[str, Found],
    previous: Inventory | None,
    *,
    declaring: frozenset[str],
    earlier: bool,
) -> _Gathered:
    problems: list[Problem] = []
    links: list[Link] = []
    instances: dict[str, Instance] = {}
    control: dict[str, tuple[ControlNode, ...]] = {}
    types: dict[str, ResourceType] = {}
    for provider in providers:
        for described in provider.types:
            types.setdefault(described.name, described)
        found = told[provider.name]
        if found.silent and (off_bus := _off_bus(provider.name, previous)):
            why = f"{found.reason}; {off_bus} were seen before, on no bus that could be looked at"
            found = structs.replace(found, state="not_yet", reason=why)
        if found.state != "found":
            unsure = (
                () if found.state == "none" else _types_of(provider, found, previous, declaring)
            )
            problems.append(Problem(provider.name, found.state, found.reason, unsure))
        if found.faults:
            unsure = _types_of(provider, found, previous, declaring)
            problems += [Problem(provider.name, "error", fault, unsure) for fault in found.faults]
        if found.state in ("error", "not_yet"):
            found = _as_before(provider.name, previous, found)
            if earlier:
                found = _never_asked(found)
        elif found.lost:
            found = _lost_as_before(provider.name, previous, found)
        for described in (*found.types, *_types_before(found, previous)):
            types.setdefault(described.name, described)
        if found.control:
            control[provider.name] = found.control
        links += _links(found, previous)
        for instance in found.instances:
            if instance.id in instances:
                problems.append(_twice(provider.name, instance, instances[instance.id]))
                continue
            instances[instance.id] = instance
    problems += claim.give_way(instances, control, declaring)
    problems += claim.make_symmetric(instances, declaring)
    return _Gathered(tuple(instances.values()), types, control, links, tuple(problems))


def _types_of(
    provider: Provider, found: Found, previous: Inventory | None, declaring: Collection[str]
) -> tuple[str, ...]:
    """Give the types of which a provider may have more; of one that declares, ANY."""
    names = {one.name for one in provider.types}
    if provider.name in declaring:
        before = previous.instances if previous else ()
        names.update(one.type for one in before if one.provider == provider.name)
        names.update(one.name for one in found.types)
        names.add(ANY)
    return tuple(sorted(names))


def _types_before(found: Found, previous: Inventory | None) -> tuple[ResourceType, ...]:
    """Give the descriptors of what is kept from before."""
    if previous is None or found.state not in ("error", "not_yet"):
        return ()
    kept = {one.type for one in found.instances}
    return tuple(one for one in previous.types if one.name in kept)


def _ask(provider: Provider, host: Host) -> Found:
    try:
        return provider.discover(host)
    except BadConfig:
        raise
    except Exception as error:  # noqa: BLE001  # it must not cost the other providers' news
        if exhausted(error):  # there may be room again at the next look
            return Found(state="not_yet", reason=f"the agent is out of it: {error}"[:500])
        _log.exception("provider %s failed", provider.name)
        return Found(state="error", reason=f"{type(error).__name__}: {error}"[:500])


def _as_before(name: str, previous: Inventory | None, found: Found) -> Found:
    """Keep what the provider found the last time, and add what it found now in spite of all.

    Without its driver a card is known by its PCI address alone: it is the one known before.
    """
    if previous is None:
        return found
    kept = tuple(
        structs.replace(_as_told(instance, previous), drained=False, held_by=None)
        for instance in previous.instances
        if instance.provider == name
    )
    known = {one.id for one in kept} | {one.text("pci_address") for one in kept}
    more = tuple(
        one
        for one in found.instances
        if one.id not in known and one.text("pci_address") not in known
    )
    return structs.replace(
        found,
        instances=kept + more,
        control=found.control or previous.control.get(name, ()),
    )


def _off_bus(name: str, previous: Inventory | None) -> int:
    """Count what was known of a provider at addresses that no bus shows, as in some VMs."""
    if previous is None:
        return 0
    bus = previous.topology.get("pci", {})
    return sum(
        one.provider == name and not one.parent and one.text("pci_address") not in {*bus, ""}
        for one in previous.instances
    )


def _never_asked(found: Found) -> Found:
    """Let nobody have what only an earlier agent saw, until it is seen again.

    Its driver may have been loaded anew since, and have numbered the cards in another order.
    """
    instances = (
        structs.replace(one, healthy=False, reason=one.reason or found.reason)
        for one in found.instances
    )
    return structs.replace(found, instances=tuple(instances))


def _as_told(instance: Instance, previous: Inventory | None) -> Instance:
    """Give an instance without the rail that was found out, not told: it is found out anew."""
    if previous is None or instance.id not in previous.topology.get("rails", {}).get("nics", ()):
        return instance
    told = {name: value for name, value in instance.attributes.items() if name != "rail"}
    return structs.replace(instance, attributes=told)


def _settings(
    instances: Sequence[Instance], host: Host, unknown: Iterable[str], hidden: virtual.Virtual
) -> Iterable[Problem]:
    """Tell what files of the site say that this host does not have, or that cannot be read."""
    if hidden.fault:
        yield Problem("topology", "error", hidden.fault)
    for name in unknown:
        why = f"[rails] nics names {name!r}, but no NIC has such an id, interface or RDMA device"
        yield Problem("rails", "error", why)
    if why := share.without(instances, host.mps):
        yield Problem("mps", "error", why)


def _lost_as_before(name: str, previous: Inventory | None, found: Found) -> Found:
    """Keep the id and all else that was known of what is lost; it is unhealthy, as told now.

    A card on which nothing can be asked any more does not tell its UUID, nor its slices.
    """
    before = {one.id: one for one in previous.instances if one.provider == name} if previous else {}
    places = {(one.type, one.text("pci_address")): one for one in before.values() if not one.parent}
    instances = {one.id: one for one in found.instances}
    for lost in (one for one in found.instances if one.id in found.lost):
        place = (lost.type, lost.text("pci_address"))
        known = before.get(lost.id) or (places.get(place) if place[1] else None)
        if known:
            kept = [known, *(one for one in before.values() if one.parent == known.id)]
        else:  # it may have been known by its parts alone
            kept = [
                one
                for one in before.values()
                if one.parent and place[1] and (one.type, one.text("pci_address")) == place
            ]
        if not kept:
            continue
        # What is told of its slices may name it by its place.
        instances = {i: one for i, one in instances.items() if lost.id not in (i, one.parent)}
        for one in kept:
            same = structs.replace(_as_told(one, previous), drained=False, held_by=None)
            if lost.id not in found.kept:
                same = structs.replace(same, healthy=False, reason=lost.reason)
            instances[one.id] = same
    return structs.replace(found, instances=tuple(instances.values()))


def _links(found: Found, previous: Inventory | None) -> frozenset[Link]:
    """Give the links as found; those of cards that cannot be asked now stay as they were."""
    silent = found.lost
    if found.state in ("error", "not_yet"):
        silent = frozenset(one.id for one in found.instances)
    before = convert(previous.topology.get("links", ()), tuple[Link, ...]) if previous else ()
    return frozenset(found.links).union(
        link for link in before if not silent.isdisjoint((link.one, link.other))
    )


def _twice(name: str, instance: Instance, first: Instance) -> Problem:
    return Problem(
        name, "error", f"{instance.id}: found already by {first.provider}; this one is left out"
    )


def dividing(providers: Iterable[Provider]) -> dict[str, Divides]:
    """Give those whose instances are held in parts, by their names."""
    return {one.name: one for one in providers if isinstance(one, Divides)}


def counters(
    instances: Sequence[Instance], divided: Mapping[str, Divides]
) -> dict[str, dict[str, int]]:
    """Count what there is of each type for jobs, and what of it is sound.

    Of what is held in parts these count; a part that a stranger uses is not sound. What the host
    keeps for itself is counted apart, as `reserved`, where there is any. Device memory is counted
    too, for each type that has some (`gpu_memory_bytes`), and once where instances share it.
    """
    totals: dict[str, dict[str, int]] = {}
    for instance in instances:
        amount = sound = 1
        if provider := divided.get(instance.provider):
            amount = sum(len(part) for part in provider.parts(instance))
            sound = amount - instance.number("foreign_count", 0)
        total = totals.setdefault(instance.type, {"total": 0, "healthy": 0})
        if instance.reserved:
            total["reserved"] = total.get("reserved", 0) + amount
            continue
        total["total"] += amount
        total["healthy"] += sound if instance.healthy else 0
    offered = [one for one in instances if not one.reserved]
    sound_memory = mig.memory(one for one in offered if one.healthy)
    for kind, amount in mig.memory(offered).items():
        counted = {"total": amount, "healthy": sound_memory.get(kind, 0)}
        totals[f"{kind}_memory_bytes"] = counted
    return totals


def _type_order(name: str) -> tuple[int, str]:
    return _TYPE_ORDER.get(name, len(_TYPE_ORDER)), name


def _order(instance: Instance) -> tuple[Any, ...]:
    """Order by type, then by PCI address (domains have 4 or 8 digits), then slices by their ids."""
    address = instance.text("pci_address")
    return (
        *_type_order(instance.type),
        address.rjust(16, "0"),
        instance.number("gpu_instance"),
        instance.number("compute_instance"),
        instance.id,
    )
