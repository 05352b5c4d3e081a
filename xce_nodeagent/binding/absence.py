"""What a quarantined binding waits for when its card is in the inventory no more. Pure.

A driver that hangs, or is not loaded yet, takes its cards out of the inventory, and whoever has one
open still has it when it is back. A card that fell off the bus looks the same, and never is.
"""

from __future__ import annotations

from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.rule import Device


def missing(binding: Binding, inventory: Inventory) -> tuple[str, ...]:
    """Give the instances with devices that are not in the inventory."""
    if not binding.plan.grants:
        return ()
    divided = {hold.instance for hold in binding.plan.ports}
    known = inventory.by_id()
    return tuple(i for i in binding.instances if i not in known and i not in divided)


def devices(binding: Binding, inventory: Inventory) -> frozenset[Device]:
    """Give what a binding was granted, by its numbers, without what every holder of a card has."""
    groups = inventory.control.values()
    control = {Device.of(one.node) for group in groups for one in group if one.granted}
    return frozenset(rule.device for rule in binding.plan.grants) - control


def told(binding: Binding, inventory: Inventory) -> str:
    """Say why it waits, and what ends that; "" where it waits for nothing that is missing."""
    gone = missing(binding, inventory) if binding.state == "quarantined" else ()
    if not gone:
        return ""
    return (
        f"{', '.join(gone)}: not in the inventory now, so held back until it is there again and"
        f" clean, until a `release --job {binding.job}` finds nobody who has its devices open, or"
        " until the host reboots"
    )
