"""Rails: which NIC is each GPU's own, by configuration or from how the host is built. Pure.

In a cluster that is built by rails, the k-th NIC of every host goes to the k-th switch. The rule is
about the whole host, because the NIC that is nearest to one GPU need not be its own: a second
NIC for storage may stand below the same switch. So:

1. Cards are grouped: by the root port below which PCIe switches join them; where a GPU has no
   switch (it may be hidden, as in a virtual machine), by host bridge and NUMA node; where that
   does not join GPUs and NICs either, by NUMA node.
2. NICs are taken by kinds, and a kind makes the rails if every group with GPUs has as many of its
   cards for each GPU: one each, or one for two, ... Two NICs are of one kind if vendor and model
   are equal; where such a kind has too many somewhere, also board, then ports on the card, then
   whether it is part of a bond, then whether it knows RDMA. Speed and link layer are no hints:
   ports are configured and unplugged. Where cards are fewer than GPUs, and have a port for each,
   ports are taken in place of cards.
   Host bridges that follow each other may be one group, if only every second has a NIC, say.
3. Below switches most groups must be so, and the others may lack a card: a NIC that is gone takes
   no number from the others. Without switches all must be so, each NIC must know RDMA, and by
   NUMA node there must be a NIC for each GPU; of ports, one of the kind must be beside a GPU.
4. Of several kinds that fit, the one that knows RDMA and is faster; if that is no answer, none.

Rail k is that of the k-th GPU in PCI order (of the k-th two, where two share a NIC); in a group
NICs follow in PCI order. All ports of a card are on its rail, but where they were taken by
themselves, and virtual functions on that of their port. What remains unsure has no rail: a group
that has too many or, with several GPUs, too few of the kind.
One NIC for the whole host is no rail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from msgspec import Struct, structs

from xce_nodeagent.model.config import RailsConfig
from xce_nodeagent.model.distance import Layout, Site, rank
from xce_nodeagent.model.instance import Instance

Groups = Mapping[object, Sequence["Card"]]


class Card(NamedTuple):
    """The functions of one slot: several ports of a NIC, several parts of a GPU."""

    functions: tuple[Instance, ...]

    @property
    def first(self) -> Instance:
        """The function that speaks for all."""
        return self.functions[0]

    @property
    def rdma(self) -> bool:
        """Whether one of them knows RDMA; Slingshot has another interface to it."""
        return any(
            one.text("rdma_device") or one.text("nic_kind") == "slingshot" for one in self.functions
        )


class Kind(Struct, frozen=True):
    """NICs that are alike, by group as the GPUs, and how many of them there are for each GPU."""

    gpus: Groups
    groups: Groups
    share: Fraction

    @property
    def worth(self) -> tuple[bool, int]:
        """What tells two kinds apart that both fit: RDMA, and speed."""
        cards = [card for group in self.groups.values() for card in group]
        speed = max(one.number("speed_mbps", 0) for card in cards for one in card.functions)
        return all(card.rdma for card in cards), speed


class Rails(Struct, frozen=True):
    """The rails of a host, by the ids of NICs, and of the GPUs whose own they are.

    `nics` has no NIC that tells its rail itself. `by` is `configuration`, `structure` or `none`.
    `unknown` are names in the configuration that no NIC has.
    """

    by: str = "none"
    nics: Mapping[str, int] = {}
    gpus: Mapping[str, int] = {}
    unknown: tuple[str, ...] = ()


def decide(instances: Sequence[Instance], layout: Layout, config: RailsConfig) -> Rails:
    """Give the rails of a host.

    What the configuration lists goes before structure. Instances of a provider that tells the
    rails of its NICs keep them; only whose own they are is found out.
    """
    if config.nics:
        return _listed(instances, layout, config.nics)
    telling = {one.provider for one in instances if one.type == "nic" and "rail" in one.attributes}
    told = [one for one in instances if one.provider in telling]
    rest = [one for one in instances if one.provider not in telling]
    gpus = _owners(told, layout, {one.id: one.number("rail") for one in told if _on_rail(one)})
    if config.by == "none":
        return Rails(gpus=gpus)
    found = built(rest, layout)
    return Rails("structure" if found.nics else "none", found.nics, gpus | dict(found.gpus))


def _on_rail(instance: Instance) -> bool:
    return instance.type == "nic" and instance.number("rail") >= 0


def _listed(instances: Sequence[Instance], layout: Layout, names: Sequence[str]) -> Rails:
    by_name: dict[str, list[str]] = {}
    nics = [one for one in instances if one.type == "nic"]
    for nic in nics:
        for name in {nic.id, nic.text("netdev"), nic.text("rdma_device")} - {""}:
            by_name.setdefault(name, []).append(nic.id)
    numbers: dict[str, int] = {}
    unknown: list[str] = []
    for number, entry in enumerate(names):
        for name in filter(None, map(str.strip, entry.split(","))):
            numbers.update(dict.fromkeys(by_name.get(name, ()), number))
            unknown += [] if name in by_name else [name]
    numbers |= _virtual(nics, numbers)
    gpus = _owners(instances, layout, numbers)
    return Rails("configuration", numbers, gpus, tuple(unknown))


def _owners(
    instances: Sequence[Instance], layout: Layout, numbers: Mapping[str, int]
) -> dict[str, int]:
    """Give each GPU the rail of the nearest NIC, where the rails of NICs are told by somebody.

    GPUs to which the same NICs are nearest share them in order. One of another NUMA node is
    nobody's own. Where not all rails are told, a GPU has none if its own NIC is on none: if one
    is nearer, and all that are told are nearer to other GPUs.
    """
    nics = sorted(numbers, key=lambda one: (numbers[one], one))
    gpus = [one.id for one in instances if one.type == "gpu"] if nics else []
    others = [
        one.id
        for one in instances
        if one.type == "nic" and one.id not in numbers and not one.reserved
    ]
    far = {
        gpu: {one: rank(layout.between_on_pci(gpu, one)) for one in (*nics, *others)}
        for gpu in gpus
    }
    least_of = {nic: min(far[gpu][nic] for gpu in gpus) for nic in nics if gpus}
    sharing: dict[tuple[str, ...], list[str]] = {}
    for gpu in gpus:
        least = min(far[gpu][nic] for nic in nics)
        nearest = tuple(nic for nic in nics if far[gpu][nic] == least)
        has_other = any(far[gpu][one] < least for one in others)
        if least < rank("SYS") and not (has_other and all(least_of[n] < least for n in nearest)):
            sharing.setdefault(nearest, []).append(gpu)
    return {
        gpu: numbers[nearest[at * len(nearest) // len(gpus)]]
        for nearest, gpus in sharing.items()
        for at, gpu in enumerate(gpus)
    }


def _virtual(instances: Iterable[Instance], numbers: Mapping[str, int]) -> dict[str, int]:
    """Give virtual functions the rails of their physical ones."""
    return {
        one.id: numbers[physical]
        for one in instances
        if one.id not in numbers and (physical := one.text("physical_function")) in numbers
    }


def built(instances: Sequence[Instance], layout: Layout) -> Rails:
    """Give the rails that the structure shows."""
    gpus = _cards(one for one in instances if one.type == "gpu")
    nics = _cards(
        one for one in instances if one.type == "nic" and not one.text("physical_function")
    )
    for level in _LEVELS if gpus else ():
        groups = _grouped(gpus, layout, level)
        if None in groups:
            continue
        beside = _grouped(nics, layout, level)
        kinds = _fitting(groups, {key: beside.get(key, []) for key in groups}, layout, level)
        if kinds:
            kinds.sort(key=lambda kind: kind.worth)
            if len(kinds) > 1 and kinds[-2].worth == kinds[-1].worth:
                break
            found = _numbered(gpus, kinds[-1])
            return structs.replace(found, nics={**found.nics, **_virtual(instances, found.nics)})
    return Rails()


def with_rails(instances: Iterable[Instance], rails: Rails) -> tuple[Instance, ...]:
    """Give the instances, each that is on a rail with its number as the attribute `rail`.

    Where the configuration lists them, what it does not list is on none, whatever it told.
    """
    return tuple(_numbered_as(one, rails) for one in instances)


def _numbered_as(one: Instance, rails: Rails) -> Instance:
    number = rails.nics.get(one.id)
    if number is not None:
        return structs.replace(one, attributes={**one.attributes, "rail": number})
    if rails.by == "configuration" and "rail" in one.attributes:
        others = {name: value for name, value in one.attributes.items() if name != "rail"}
        return structs.replace(one, attributes=others)
    return one


# ---- groups ----------------------------------------------------------------------------------


def _below_port(site: Site) -> object:
    return site.path[:2] if site.switches else None


def _below_host_bridge(site: Site) -> object:
    return (site.path[0], site.numa) if site.path else None


def _on_node(site: Site) -> object:
    return None if site.numa == -1 else site.numa


Level = Callable[[Site], object]
_LEVELS: tuple[Level, ...] = (_below_port, _below_host_bridge, _on_node)


def _grouped(cards: Iterable[Card], layout: Layout, level: Level) -> dict[object, list[Card]]:
    groups: dict[object, list[Card]] = {}
    for card in cards:
        groups.setdefault(level(layout.site(card.first.id)), []).append(card)
    return groups


def _cards(instances: Iterable[Instance]) -> list[Card]:
    """Put functions of one slot together, in PCI order; what is on no PCI bus is on no rail."""
    slots: dict[str, list[Instance]] = {}
    for one in instances:
        if address := one.text("pci_address"):
            slots.setdefault(address.rpartition(".")[0].rjust(14, "0"), []).append(one)
    return [
        Card(tuple(sorted(slots[slot], key=lambda one: (one.text("pci_address"), one.id))))
        for slot in sorted(slots)
    ]


# ---- kinds -----------------------------------------------------------------------------------


def _hints(card: Card, layout: Layout) -> tuple[object, ...]:
    """Give what NICs differ by in kind, the plainest first."""
    facts, function = card.first.attributes, layout.function(card.first.id)
    return (
        (facts.get("vendor"), facts.get("model")),
        (facts.get("board_id"), *map(function.get, ("subsystem_vendor", "subsystem_device"))),
        len(card.functions),
        any(one.text("bond") for one in card.functions),
        card.rdma,
    )


def _fitting(gpus: Groups, nics: Groups, layout: Layout, level: Level) -> list[Kind]:
    """Give the kinds that fit, by as few hints as will do; else those that fit most groups."""
    hints = {card.first.id: _hints(card, layout) for group in nics.values() for card in group}
    for strict in (True, False):
        for count in range(1, len(next(iter(hints.values()), ())) + 1):
            kinds: dict[object, dict[object, list[Card]]] = {}
            for key, group in nics.items():
                for card in group:
                    kind = kinds.setdefault(hints[card.first.id][:count], {})
                    kind.setdefault(key, []).append(card)
            fitting = (
                _fit(gpus, _ports(gpus, groups, layout, level) or groups, level, strict=strict)
                or _fit_together(gpus, groups, layout, level)
                for groups in kinds.values()
            )
            if found := [kind for kind in fitting if kind]:
                return found
    return []


def _fit(gpus: Groups, nics: Groups, level: Level, *, strict: bool) -> Kind | None:
    shares = [Fraction(len(nics.get(key, ())), len(cards)) for key, cards in gpus.items()]
    share, count = Counter(filter(None, shares)).most_common(1)[0]
    cards = [card for group in nics.values() for card in group]
    if len(cards) < 2 or 1 not in (share.numerator, share.denominator):
        return None
    if level is _below_port:
        fits = 2 * count > len(gpus) and not (strict and max(shares) > share)
    else:
        fits = count == len(gpus) and all(card.rdma for card in cards)
        fits = fits and (share >= 1 or level is not _on_node)
    return Kind(gpus, nics, share) if fits else None


def _fit_together(gpus: Groups, nics: Groups, layout: Layout, level: Level) -> Kind | None:
    """Fit NICs that are beside every second host bridge of a GPU, or every third, and so on.

    So are cards of two dies, each on a host bridge of its own, and one NIC for both.
    """
    places = [at for at, key in enumerate(gpus) if key in nics]  # in PCI order, as the GPUs
    size = len(gpus) // (len(places) or 1)
    cards = [card for group in gpus.values() for card in group]
    sites = [layout.site(card.first.id) for card in cards]
    nodes = [{site.numa for site in sites[at : at + size]} for at in range(0, len(sites), size)]
    if (
        level is not _below_host_bridge
        or size < 2
        or size * len(places) != len(gpus)
        or len(cards) != len(gpus)  # each on its own
        or places != list(range(places[0], len(gpus), size))
        or any(site.switches for site in sites)
        or any(len(node) > 1 for node in nodes)
    ):
        return None
    return _fit(
        {at: cards[at * size : (at + 1) * size] for at in range(len(places))},
        dict(enumerate(nics.values())),
        level,
        strict=True,
    )


def _ports(gpus: Groups, nics: Groups, layout: Layout, level: Level) -> Groups:
    """Give the ports of cards, each as a card, if every group has one for each GPU, else none.

    By NUMA node alone that says little: a socket often has as many ports as GPUs. So one must be
    where only a NIC for GPUs is.
    """
    ports = {
        key: [Card((one,)) for card in group for one in card.functions]
        for key, group in nics.items()
    }
    fewer = all(len(group) < len(gpus[key]) for key, group in nics.items())
    if not fewer or any(len(group) != len(gpus[key]) for key, group in ports.items()):
        return {}
    beside = {_below_port(layout.site(card.first.id)) for group in gpus.values() for card in group}
    places = {_below_port(layout.site(port.first.id)) for group in ports.values() for port in group}
    return ports if level is not _on_node or (beside & places) - {None} else {}


# ---- numbers ---------------------------------------------------------------------------------


def _numbered(gpus: Sequence[Card], kind: Kind) -> Rails:
    order = {card.first.id: at for at, card in enumerate(gpus)}
    together = kind.share.denominator  # GPUs that share a NIC
    each = kind.share.numerator  # NICs that a GPU has
    slots: list[tuple[Sequence[Card], Sequence[Card]]] = []  # GPUs, and their own NICs
    for key, cards in kind.gpus.items():
        parts = [cards[at : at + together] for at in range(0, len(cards), together)]
        nics = kind.groups.get(key, ())
        sure = len(nics) == len(parts) * each or (len(parts) == 1 and len(nics) <= each)
        for at, part in enumerate(parts):
            slots.append((part, nics[at * each : (at + 1) * each] if sure else ()))
    slots.sort(key=lambda slot: order[slot[0][0].first.id])
    gpus_of, nics_of = (
        {
            one.id: number
            for number, slot in enumerate(slots)
            for card in slot[side]
            for one in card.functions
        }
        for side in (0, 1)
    )
    return Rails("structure", nics_of, gpus_of)
