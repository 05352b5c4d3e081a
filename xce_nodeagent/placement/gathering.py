"""Which cards a job gets together: those of the narrowest group that has enough. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from xce_nodeagent.model.distance import Layout
from xce_nodeagent.model.instance import Instance


def grouped(cards: Sequence[Instance], layout: Layout) -> list[tuple[int, ...]]:
    """Give for each card the groups that it is in, from the widest (all cards) to the narrowest.

    One group: all cards, an NVLink or XGMI domain, a package, a NUMA node, a root port, a PCIe
    switch, a card. Groups are numbers: two cards have one number at a level if they share all
    levels down to it.
    """
    numbers: dict[tuple[int, Any], int] = {}
    found = []
    for card in cards:
        site = layout.site(card.id)
        domain = card.text("nvlink_domain") or card.text("xgmi_hive")
        group, groups = 0, [0]
        for shared in (
            domain, layout.package(site.numa), site.numa, site.path[:2], site.path, card.parent
        ):  # fmt: skip
            group = numbers.setdefault((group, shared), len(numbers) + 1)
            groups.append(group)
        found.append(tuple(groups))
    return found


def gather(cards: Sequence[int], grouped: Sequence[tuple[int, ...]], count: int) -> list[int]:
    """Take cards out of the narrowest group that has enough, and of those the smallest.

    In a group whose parts are all too small the largest part is taken whole, and the rest is
    gathered in the same way. Cards are given by their places in PCI order; a tie goes to the group
    whose first card is first.
    """
    if count >= len(cards):
        return list(cards)
    levels = range(len(grouped[0]))
    sizes = Counter(group for card in cards for group in grouped[card])
    level = max(at for at in levels if any(sizes[grouped[card][at]] >= count for card in cards))
    first = min(
        (card for card in cards if sizes[grouped[card][level]] >= count),
        key=lambda card: [sizes[group] for group in reversed(grouped[card][: level + 1])],
    )
    group = [card for card in cards if grouped[card][level] == grouped[first][level]]
    if level == levels[-1]:
        return group[:count]
    most = max(group, key=lambda card: sizes[grouped[card][level + 1]])
    largest = grouped[most][level + 1]
    taken = [card for card in group if grouped[card][level + 1] == largest]
    rest = [card for card in group if grouped[card][level + 1] != largest]
    return taken + gather(rest, grouped, count - len(taken))
