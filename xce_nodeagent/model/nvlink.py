"""NVLinks of a host's cards: as links between instances, and which cards reach each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from xce_nodeagent.model.link import Link

HIDDEN = "nvswitch"
"""Stands for the switches of a host that shows none: a virtual machine, or a rack's own trays."""

_ONE_HOST = "00000000-0000-0000-0000-000000000000"  # the cluster of a fabric within one host


class End(Struct, frozen=True):
    """So many links of one card with one other end.

    `type` is `gpu`, `switch`, `npu` (a POWER9), or empty where it is not told; `address` is its
    PCI address, empty where that is hidden.
    """

    type: str
    address: str
    count: int


Ends = Mapping[str, Sequence[End]]
"""What each card, by its PCI address, says it is linked to."""


def links(ids: Mapping[str, str], ends: Ends) -> tuple[Link, ...]:
    """Give the links between cards, and between cards and switches. `ids` is by PCI address.

    Two cards each tell of their links: the higher count holds, because one may be lost.
    """
    found: dict[tuple[str, str], int] = {}
    for address, other, count in _pairs(ids, ends):
        if other in ids:
            first, second = sorted((ids[address], ids[other]))
            found[first, second] = max(count, found.get((first, second), 0))
        else:
            found[ids[address], other] = found.get((ids[address], other), 0) + count
    return tuple(Link("nvlink", one, other, found[one, other]) for one, other in sorted(found))


def domains(
    ids: Mapping[str, str], ends: Ends, fabrics: Mapping[str, tuple[str, int]]
) -> dict[str, str]:
    """Give the domain of each card that has one: cards of one domain reach each other by NVLink.

    In a fabric of several hosts that is its cluster and clique, whose name holds on all of them,
    and for what is connected to one of its cards.
    Else it is what is connected, directly or by switches, named by the least address in it (of
    a switch, where there is one): that does not change when a card is lost.
    """
    group = {address: address for address in ids}

    def top(of: str) -> str:
        while group.setdefault(of, of) != of:
            of = group[of]
        return of

    switch = ""
    for address, other, _ in _pairs(ids, ends):
        group[top(other)] = top(address)
        if other not in ids:
            # All switches of a host are one fabric: those on the two boards of a DGX-2 are linked
            # with each other, and no card tells of that.
            switch = switch or other
            group[top(other)] = top(switch)
    members: dict[str, list[str]] = {}
    for one in group:
        members.setdefault(top(one), []).append(one)
    found = {
        address: f"{cluster}/{clique}"
        for address, (cluster, clique) in fabrics.items()
        if cluster != _ONE_HOST
    }
    for connected in members.values():
        named = {found[one] for one in connected if one in found}
        if len(connected) > 1 and len(named) < 2:
            switches = [one for one in connected if one not in ids]
            name = named.pop() if named else f"nvlink-{min(switches or connected)}"
            found |= {one: name for one in connected if one in ids}
    return found


def _pairs(ids: Mapping[str, str], ends: Ends) -> Iterator[tuple[str, str, int]]:
    """Give (card, what it is linked to, how often); cards that are not here are left out.

    A type that is not told follows from the address: no card's is a switch's. A hidden one is
    taken for a switch, as NCCL does.
    """
    for address, told in ends.items():
        for end in told:
            here = end.address in ids or end.type in ("", "switch")
            if here and end.address != address:
                yield address, end.address or HIDDEN, end.count
