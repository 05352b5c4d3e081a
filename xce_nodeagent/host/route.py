"""By which interfaces the host's own default routes go out: decided from routes and rules. Pure.

A route counts where an ordinary packet of the host may take it: one whose sender bound neither an
address, nor an interface, nor a mark. So a table for what comes from one card's address (as sites
have it for each card of a rail, and clouds for each interface) makes that card no way of the
host's; and a table that a rule names for everything does. Several metrics are several ways: the
next one is taken when the first is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from xce_nodeagent.host.machine import Host

FAMILIES = {2: "IPv4", 10: "IPv6"}  # AF_INET, AF_INET6
_MAIN = frozenset({253, 254})  # RT_TABLE_DEFAULT, RT_TABLE_MAIN: what the kernel looks into
SHORT = {2: 1, 10: 3}
"""Prefixes so short are default routes, too: a VPN sets two halves of IPv4, 0.0.0.0/1 and
128.0.0.0/1, and some routers announce 2000::/3, which is all of IPv6 that is given out."""

_RTF_UP, _RTF_REJECT = 0x0001, 0x0200  # linux/route.h


class Route(Struct, frozen=True):
    """A route with a short prefix: `length` is that of the prefix, `ways` are interfaces."""

    family: int
    table: int
    length: int
    ways: tuple[int, ...]


class Rule(Struct, frozen=True):
    """A rule that sends ordinary packets to a table; `above`: only to longer prefixes there."""

    family: int
    table: int
    above: int = -1


def ways(routes: Iterable[Route], rules: Iterable[Rule]) -> dict[int, str]:
    """Give the interfaces, by index, by which default routes go out, and of which family.

    A kernel without rules has none to tell, and looks into the main table.
    """
    looked = {family: dict.fromkeys(_MAIN, -1) for family in FAMILIES}
    for family in {rule.family for rule in rules} & looked.keys():
        looked[family] = {}
        for rule in rules:
            if rule.family == family:
                known = looked[family].get(rule.table, rule.above)
                looked[family][rule.table] = min(known, rule.above)
    found: dict[int, set[str]] = {}
    for route in routes:
        above = looked.get(route.family, {}).get(route.table)
        if above is not None and above < route.length <= SHORT[route.family]:
            for way in route.ways:
                found.setdefault(way, set()).add(FAMILIES[route.family])
    return {way: " and ".join(sorted(families)) for way, families in found.items()}


def recorded(host: Host) -> Mapping[str, str]:
    """Give the same by name, from proc(5)'s `net/route` and `net/ipv6_route`: the main table.

    `ipv6_route` has every table, and does not say which; so it may name more.
    """
    found: dict[str, set[str]] = {}
    for line in (host.read("/proc/net/route") or "").splitlines()[1:]:
        words = line.split()
        if len(words) < 8 or (flags := _hexadecimal(words[3])) is None:
            continue
        mask = _hexadecimal(words[7])
        # The mask is in the order of the network, written by a host of the other order or not.
        if mask in (0, 0x80, 0x80000000) and flags & _RTF_UP and not flags & _RTF_REJECT:
            found.setdefault(words[0], set()).add("IPv4")
    for line in (host.read("/proc/net/ipv6_route") or "").splitlines():
        words = line.split()
        if len(words) < 10 or (flags := _hexadecimal(words[8])) is None:
            continue
        length = _hexadecimal(words[1])
        if length is not None and length <= SHORT[10] and not flags & _RTF_REJECT:
            found.setdefault(words[9], set()).add("IPv6")
    found.pop("lo", None)
    return {name: " and ".join(sorted(families)) for name, families in found.items()}


def _hexadecimal(word: str) -> int | None:
    try:
        return int(word, 16)
    except ValueError:
        return None
