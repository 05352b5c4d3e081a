"""Interfaces that stand on one another: bonds, bridges, VLANs, tunnels; which the host needs.

On this machine rtnetlink tells; on a recorded one sysfs does: `lower_*` and `upper_*` since Linux
3.14, `master`, `bonding`, `brif` and `iflink` before that too (Documentation/ABI/testing/
sysfs-class-net).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from xce_nodeagent.host.machine import Host
from xce_nodeagent.host.netlink import Link

_NET = "/sys/class/net"
_APART = frozenset({"vrf"})
"""Kinds whose members have nothing in common but a routing table."""
_NO_LINK = frozenset({"bridge", "openvswitch", "vrf"})
"""Kinds of masters whose members are links of their own, each with its own traffic."""


class Stack(Struct, frozen=True):
    """What stands on what, by name. `masters` are those that an interface is a part of."""

    below: Mapping[str, frozenset[str]] = {}
    masters: Mapping[str, str] = {}
    kinds: Mapping[str, str] = {}

    def bond(self, name: str) -> str:
        """Give the bond or team that an interface is in; empty where it is in none."""
        master = self.masters.get(name, "")
        return master if self.kinds.get(master) in ("bond", "team") else ""

    def one_link(self, name: str) -> str:
        """Give the master that makes one link of its members, whatever makes it."""
        master = self.masters.get(name, "")
        return "" if self.kinds.get(master) in _NO_LINK else master

    def vlans(self, name: str) -> tuple[str, ...]:
        """Give the VLANs on an interface, those on its bond and on other VLANs included."""
        found: set[str] = set()
        todo = {name}
        seen: set[str] = set()
        while todo:
            one = todo.pop()
            seen.add(one)
            above = {upper for upper, lower in self.below.items() if one in lower}
            tagged = {upper for upper in above if self.kinds.get(upper) == "vlan"}
            found |= tagged
            todo |= tagged | {bond for bond in (self.bond(one),) if bond}
            todo -= seen
        return tuple(sorted(found))

    def needed(self, routes: Mapping[str, str]) -> dict[str, str]:
        """Give every interface that these default routes need, with the reason.

        Down from the one that a route names: what it stands on. And up to what those are a part
        of, because that has further members: a port of Open vSwitch that has the host's address
        is itself a part of the switch, and so is the card that it sends by.
        """
        reasons: dict[str, str] = {}
        for first, family in sorted(routes.items()):
            todo = [first]
            while todo:
                name = todo.pop()
                told = f"the host's {family} default route goes out by "
                if name in reasons and name != first:
                    continue
                reasons[name] = f"{told}it" if name == first else f"{told}{first}, and so by it"
                more = set(self.below.get(name, ()))
                master = self.masters.get(name, "")
                if master and self.kinds.get(master) not in _APART:
                    more.add(master)
                todo += sorted(more - reasons.keys() - {first})
        return reasons


def told(links: Iterable[Link]) -> Stack:
    """Put together what rtnetlink told."""
    links = tuple(links)
    names = {link.index: link.name for link in links}
    pairs = [(link.name, names.get(link.below, "")) for link in links]
    masters = {link.name: names[link.master] for link in links if link.master in names}
    pairs += [(master, name) for name, master in masters.items()]
    return _stack(pairs, masters, {link.name: link.kind for link in links if link.kind})


def recorded(host: Host) -> Stack:
    """Put together what sysfs shows."""
    names = host.names(_NET)
    indexes = {host.number(f"{_NET}/{name}/ifindex"): name for name in names}
    pairs: list[tuple[str, str]] = []
    masters: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for name in names:
        folder = f"{_NET}/{name}"
        there = frozenset(host.names(folder))
        if kind := _kind(host, folder, there):
            kinds[name] = kind
        lower = {one.removeprefix("lower_") for one in there if one.startswith("lower_")}
        if "bonding" in there:
            lower.update((host.read(f"{folder}/bonding/slaves") or "").split())
        if "brif" in there:
            lower.update(host.names(f"{folder}/brif"))
        # The two ends of a veth name each other by iflink, and the other may be anywhere.
        if not lower and (kind or "device" in there):
            lower.add(indexes.get(host.number(f"{folder}/iflink"), ""))
        pairs += [(name, one) for one in lower]
        pairs += [(one.removeprefix("upper_"), name) for one in there if one.startswith("upper_")]
        for link in ("master", "brport/bridge"):
            if link.partition("/")[0] not in there:
                continue
            if master := (host.real(f"{folder}/{link}") or "").rpartition("/")[2]:
                masters[name] = master
                pairs.append((master, name))
    for upper, lower_name in pairs:
        if kinds.get(upper) in ("bond", "bridge"):
            masters.setdefault(lower_name, upper)
    return _stack(pairs, masters, kinds)


def _kind(host: Host, folder: str, there: frozenset[str]) -> str:
    if "bonding" in there:
        return "bond"
    if "bridge" in there or "brif" in there:
        return "bridge"
    devtype = re.search(r"^DEVTYPE=(\S+)$", host.read(f"{folder}/uevent") or "", re.MULTILINE)
    return devtype[1] if devtype else ""


def _stack(
    pairs: Iterable[tuple[str, str]], masters: Mapping[str, str], kinds: Mapping[str, str]
) -> Stack:
    below: dict[str, set[str]] = {}
    for upper, lower in pairs:
        if upper and lower and upper != lower:
            below.setdefault(upper, set()).add(lower)
    return Stack({one: frozenset(lower) for one, lower in below.items()}, masters, kinds)
