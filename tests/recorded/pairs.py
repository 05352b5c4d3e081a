"""Holds the distance of every two functions against the recorded way between them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from recorded.comparison import Tally, switches
from recorded.machine import Function, Machine

from xce_nodeagent.model.distance import Layout
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory

WORDS = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""From near to far."""


def compare(tally: Tally, machine: Machine, found: Inventory) -> None:
    """Compare the distance of every two functions that placement is about."""
    instances = {
        at: Instance(id=at, type="thing", provider="test", attributes={"pci_address": at})
        for at in found.topology["pci"]
    }
    layout = Layout(found.topology, instances)
    functions = [one for one in machine.functions if one.address in instances]
    for one, other in combinations(functions, 2):
        right = distance(one, other)
        if right:
            pair = f"{one.address} to {other.address}"
            words = {
                layout.between_on_pci(one.address, other.address),
                layout.between_on_pci(other.address, one.address),
            }
            tally.hold(pair, {right}, words)
    nics = [one for one in functions if one.kind is not None and one.kind >> 8 == 0x02]
    for card in (one for one in functions if one.kind in (0x0302, 0x0380)):
        if nics and all(distance(card, nic) for nic in nics):
            nearest = _nearest({nic.address: _nearness(card, nic) for nic in nics})
            told = {nic.address: layout.nearness(card.address, nic.address)[:2] for nic in nics}
            tally.hold(f"{card.address} nearest NICs", nearest, _nearest(told))


def _nearest(keys: Mapping[str, tuple[int, int]]) -> list[str]:
    return sorted(address for address, key in keys.items() if key == min(keys.values()))


def _nearness(one: Function, other: Function) -> tuple[int, int]:
    """Give a key that is the less, the nearer: by the word, then by the bridges in common."""
    return WORDS.index(distance(one, other)), -_common(one, other)


def distance(one: Function, other: Function) -> str:
    """Give the word that is right for two functions; empty where the recording leaves it open.

    NVML's levels (nvmlGpuTopologyLevel_t): a single switch is PIX, several are PXB, a host bridge
    is PHB. Functions of one card are PIX.
    """
    if not one.path or not other.path:
        return ""
    if one.address[:-1] == other.address[:-1]:
        return "PIX"
    common = _common(one, other)
    if common >= 2:
        mine, theirs = switches(one.path), switches(other.path)
        both = [bridge for bridge in mine if bridge in theirs]
        return "PIX" if len(both) == max(len(mine), len(theirs)) else "PXB"
    if common == 1:
        return "PHB"
    if None in (one.numa_node, other.numa_node):
        return ""
    return "NODE" if one.numa_node == other.numa_node else "SYS"


def _common(one: Function, other: Function) -> int:
    """Count what is the same from the root down: the host bridge, and the bridges."""
    same = 0
    for mine, theirs in zip(one.path, other.path, strict=False):
        if mine != theirs:
            break
        same += 1
    return same
