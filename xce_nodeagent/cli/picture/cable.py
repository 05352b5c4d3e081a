"""Links between cards that go past PCI: which are drawn as a bus, and which one by one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from xce_nodeagent.model.instance import Instance

_NAMES = {"nvlink": "NVLink", "xgmi": "XGMI"}


class Bus(Struct, frozen=True):
    """Cards that all reach each other in one way: a switch, or each with each."""

    kind: str
    name: str
    about: str
    cards: tuple[str, ...]
    title: str


class Pair(Struct, frozen=True, order=True):
    """So many links between two cards."""

    kind: str
    count: int
    one: str
    other: str


def cables(
    links: Iterable[Mapping[str, Any]], instances: Sequence[Instance]
) -> tuple[list[Bus], list[Pair]]:
    """Give the buses and the single pairs."""
    known = {one.id: one for one in instances if one.type == "gpu"}
    pairs: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    switched: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for link in links:
        one, other, kind = link["one"], link["other"], link["kind"]
        if one not in known:
            continue
        if other in known:
            pairs[kind][min(one, other), max(one, other)] += link["count"]
        else:
            switched[kind][one, other] += link["count"]
    buses: list[Bus] = []
    single: list[Pair] = []
    for kind, ends in sorted(switched.items()):
        buses += [_through_switches(kind, ends, group) for group in _groups(ends)]
    for kind, ends in sorted(pairs.items()):
        for group in _groups(ends):
            between = {pair: count for pair, count in ends.items() if pair[0] in group}
            cards = tuple(sorted(group))
            counts = set(between.values())
            every = len(cards) * (len(cards) - 1) // 2
            if len(cards) > 2 and len(between) == every and len(counts) == 1:
                buses.append(_each_with_each(kind, cards, counts.pop()))
            else:
                single += [Pair(kind, count, *pair) for pair, count in sorted(between.items())]
    drawn = {card for bus in buses for card in bus.cards} | {p.one for p in single}
    drawn |= {pair.other for pair in single}
    buses += _domains([one for one in known.values() if one.id not in drawn])
    return buses, sorted(single)


def _groups(ends: Iterable[tuple[str, str]]) -> list[set[str]]:
    """Part the ends into those that are joined."""
    groups: list[set[str]] = []
    for pair in ends:
        touched = [group for group in groups if not group.isdisjoint(pair)]
        groups = [group for group in groups if group not in touched]
        groups.append(set(pair).union(*touched))
    return sorted(groups, key=min)


def _through_switches(kind: str, ends: Counter[tuple[str, str]], group: set[str]) -> Bus:
    inside = {pair: count for pair, count in ends.items() if pair[0] in group}
    cards = tuple(sorted({one for one, _ in inside}))
    switches = sorted({other for _, other in inside})
    each: Counter[str] = Counter()
    for (one, _), count in inside.items():
        each[one] += count
    name = "NVSwitch" if kind == "nvlink" else f"{_NAMES.get(kind, kind)} switch"
    return Bus(
        kind=kind,
        name=f"{name} ×{len(switches)}" if len(switches) > 1 else name,
        about=f"{_span(each.values())} links a card",
        cards=cards,
        title=f"{name}\n" + "\n".join(switches),
    )


def _each_with_each(kind: str, cards: tuple[str, ...], count: int) -> Bus:
    about = f"each with each, {count} link{'s' if count > 1 else ''}"
    name = _NAMES.get(kind, kind)
    return Bus(kind=kind, name=name, about=about, cards=cards, title=f"{name}: {about}")


def _domains(cards: Sequence[Instance]) -> list[Bus]:
    """Give what cards say of themselves, where no link is told: the domain that they are in."""
    domains: dict[tuple[str, str], list[Instance]] = defaultdict(list)
    for card in cards:
        for attribute in ("nvlink_domain", "xgmi_hive"):
            if value := card.text(attribute):
                kind = "xgmi" if card.text("vendor") == "amd" else "nvlink"
                domains[kind, value].append(card)
                break
    found = []
    for (kind, value), members in sorted(domains.items()):
        if len(members) < 2:
            continue
        name = "XGMI hive" if kind == "xgmi" else "NVLink domain"
        counts = [one.number("nvlink_count") for one in members]
        about = f"{_span(counts)} links a card" if min(counts) > 0 else value
        ids = tuple(sorted(one.id for one in members))
        found.append(Bus(kind=kind, name=name, about=about, cards=ids, title=f"{name} {value}"))
    return found


def _span(counts: Iterable[int]) -> str:
    least, most = min(counts := list(counts)), max(counts)
    return str(most) if least == most else f"{least}–{most}"
