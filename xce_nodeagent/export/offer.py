"""What of an inventory another scheduler may be told of, and what not, and why. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory


class LeftOut(Struct, frozen=True):
    """An instance that is not told of, and why, in a line."""

    instance: Instance
    why: str


class Offer(Struct, frozen=True):
    """What is told of, in the order of the PCI bus, and what is left out."""

    instances: tuple[Instance, ...]
    left_out: tuple[LeftOut, ...]


def offered(inventory: Inventory) -> Offer:
    """Choose for a scheduler that counts: no two of what is left share silicon.

    Where some do, the parts stay and the whole goes: virtual functions rather than their port. A
    card that is cut into MIG slices is left out also where the slices are. Shares under MPS stay
    beside their card, because they are counted by a name of their own. What is held in parts
    (ports) is in neither list.
    """
    able, left_out = _able(inventory)
    cut = {one.parent for one in inventory.instances if one.type in ("mig", "gi")}
    shares = {one.id for one in able if one.type == "mps"}
    rivals = {one.id: frozenset(one.overlaps) - shares for one in able if one.id not in shares}
    kept: set[str] = set()
    for one in sorted(able, key=lambda one: len(rivals.keys() & rivals.get(one.id, ()))):
        if one.type == "gpu" and one.id in cut:
            left_out.append(LeftOut(one, "it is cut into MIG slices"))
        elif taken := sorted(kept & rivals.get(one.id, frozenset())):
            left_out.append(LeftOut(one, f"it shares silicon with {taken[0]}"))
        else:
            kept.add(one.id)
    return Offer(tuple(one for one in able if one.id in kept), tuple(left_out))


def usable(inventory: Inventory) -> Offer:
    """Choose for a program that is told later which ones to take: they may share silicon."""
    able, left_out = _able(inventory)
    return Offer(tuple(able), tuple(left_out))


def _able(inventory: Inventory) -> tuple[list[Instance], list[LeftOut]]:
    able: list[Instance] = []
    left_out: list[LeftOut] = []
    for one in in_bus_order(inventory.instances):
        if one.type in inventory.divisible:
            continue
        if why := hindrance(one):
            left_out.append(LeftOut(one, why))
        else:
            able.append(one)
    return able, left_out


def hindrance(instance: Instance) -> str:
    """Say why no job can have an instance now; empty where one can."""
    if instance.reserved:
        return f"the host keeps it: {instance.reserved}"
    if not instance.healthy:
        return f"it is unhealthy: {instance.reason}"
    if instance.drained:
        return f"it is drained: {instance.reason}" if instance.reason else "it is drained"
    return ""


def in_bus_order(instances: Iterable[Instance]) -> list[Instance]:
    """Sort by PCI address, as other programs number cards; slices by their place in the card."""
    return sorted(
        instances,
        key=lambda one: (
            one.text("pci_address").rjust(16, "0"),
            one.number("gpu_instance"),
            one.number("compute_instance"),
            one.id,
        ),
    )


def word(text: str) -> str:
    """Give a text as one word of lower-case letters, digits and `_ . -`; it may become empty."""
    return re.sub(r"[^a-z0-9_.-]+", "_", text.lower()).strip("_.-")


def one_line(text: str) -> str:
    """Give a text as a comment may have it: a line, and nothing that a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)
