"""What the witness is asked after releases. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import structs

from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged.ops import Look, Owner

OWNERS_LIMIT = 512
"""Owners in one question, which must fit into a message."""

Held = tuple[Binding, frozenset[str]]
"""A live binding, and which devices it was granted that only a holder may open."""


def nodes(instance: Instance | None) -> list[Device]:
    """Give an instance's own devices, which control nodes are none of."""
    return [] if instance is None else [Device.of(node) for node in instance.devices]


def exclusive(inventory: Inventory) -> dict[str, Device]:
    """Give the devices that only the holder of an instance may open, by their names."""
    return {str(device): device for instance in inventory.instances for device in nodes(instance)}


def owners(book: Iterable[Binding], inventory: Inventory) -> list[Held]:
    """Give which of these devices each live binding was granted."""
    names = exclusive(inventory).keys()
    found = []
    for binding in book:
        if binding.state != "quarantined" and binding.plan.grants:
            devices = names & {str(rule.device) for rule in binding.plan.grants}
            if devices:
                found.append((binding, frozenset(devices)))
    return found


def look(inventory: Inventory, held: Sequence[Held], ports: Collection[int]) -> Look:
    """Ask for every such device; of those that are held, who is outside of the holder's cgroup.

    Where a holder has no cgroup, nobody can say who is outside of it.
    """
    names = exclusive(inventory)
    inside: list[tuple[str, frozenset[str]]] = []
    for binding, devices in held:
        step = binding.plan.cgroup
        if step is None or len(inside) >= OWNERS_LIMIT:
            for device in devices:
                names.pop(device, None)
        else:
            inside.append((step.cgroup.path, devices))
    order = sorted(names)
    place = {name: number for number, name in enumerate(order)}
    return Look(
        devices=tuple(names[name] for name in order),
        ports=tuple(sorted(ports)),
        owners=tuple(
            Owner(path, tuple(place[d] for d in sorted(devices) if d in place))
            for path, devices in inside
        ),
    )


def more(asked: Look, *devices: Iterable[Device]) -> Look:
    """Ask also for these devices, of which nobody is the owner."""
    new = {device for some in devices for device in some} - set(asked.devices)
    return structs.replace(asked, devices=(*asked.devices, *sorted(new)))
