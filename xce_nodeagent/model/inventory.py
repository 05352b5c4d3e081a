"""The inventory of a host: its instances at one generation, and what they were a moment ago.

Generation and digest describe what the hardware is, not who holds it: `held_by` is in neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Struct, structs

from xce_nodeagent.model.distance import Layout
from xce_nodeagent.model.instance import DeviceNode, Holder, Instance, ResourceType
from xce_nodeagent.model.rule import Device

SCHEMA = "xce.inventory/v1"

ANY = "*"
"""Among the types of a problem: every one that nobody described."""


class ControlNode(Struct, frozen=True):
    """A device node that is no instance's own. `granted` ones go with the first grant.

    What is not granted (MIG's config and monitor capabilities) is fenced for every job.
    """

    node: DeviceNode
    granted: bool


class Problem(Struct, frozen=True):
    """What discovery could not find out, and why. `state`: none, not_yet or error.

    `types` are those of which there may be more than what is known, where that is so; `*` is any
    that nobody described.
    """

    provider: str
    state: str
    reason: str
    types: tuple[str, ...] = ()


class Inventory(Struct, frozen=True, kw_only=True, dict=True):
    """Everything that is known of a host. `generation` is `BOOT_ID:N`.

    `dict=True` is where a cached property keeps its value; it takes no part in comparison.
    """

    schema: str = SCHEMA
    source: str
    node: str
    boot_id: str
    generation: str = ""
    digest: str = ""
    types: tuple[ResourceType, ...] = ()
    attributes: dict[str, Any] = {}
    counters: dict[str, Any] = {}
    topology: dict[str, Any] = {}
    instances: tuple[Instance, ...] = ()
    control: dict[str, tuple[ControlNode, ...]] = {}
    problems: tuple[Problem, ...] = ()

    def by_id(self) -> Mapping[str, Instance]:
        """Give the instances by their id."""
        return self._by_id

    @cached_property
    def _by_id(self) -> Mapping[str, Instance]:
        return {instance.id: instance for instance in self.instances}

    @cached_property
    def layout(self) -> Layout:
        """Where the instances are, and how far from each other."""
        return Layout(self.topology, self._by_id)

    @cached_property
    def divisible(self) -> frozenset[str]:
        """The names of the types whose instances are held in parts."""
        return frozenset(kind.name for kind in self.types if kind.divisible)

    @cached_property
    def ports(self) -> Instance | None:
        """The range of ports; None where none is managed."""
        return next((i for i in self.instances if i.type == "ports"), None)

    def unsure(self, kind: str) -> Problem | None:
        """Give the problem because of which there may be more of a type than is known, if any.

        What may come by itself goes before what needs somebody.
        """
        unknown = all(kind != described.name for described in self.types)
        of_kind = [p for p in self.problems if kind in p.types or (unknown and ANY in p.types)]
        return min(of_kind, key=lambda p: p.state != "not_yet", default=None)

    def managed(self) -> frozenset[Device]:
        """Give every device that the fence rules: of all instances, and all control nodes."""
        nodes = [node for instance in self.instances for node in instance.devices]
        nodes += [control.node for nodes in self.control.values() for control in nodes]
        return frozenset(Device.of(node) for node in nodes)

    @property
    def number(self) -> int:
        """The N of the generation; 0 before the first."""
        return int(self.generation.rpartition(":")[2] or 0)


class Seen(Struct, frozen=True):
    """What is remembered of an instance between generations: a hash, and when it changed."""

    hash: str
    changed: int


def advance(
    found: Inventory, seen: Mapping[str, Seen], number: int
) -> tuple[Inventory, dict[str, Seen], int]:
    """Number a fresh inventory after what was seen before.

    N rises by one when anything changed: an instance, a type, an attribute of the host, the
    topology. Each instance that changed (or is new, or came back) takes the new N; what
    vanished is remembered with the N of its vanishing. Returns the inventory with generation,
    digest and `changed` filled in, what to remember, and the N.
    """
    hashes = {instance.id: _hash(instance) for instance in found.instances}
    hashes[""] = _hash_host(found)
    changed = {key for key, value in hashes.items() if key not in seen or seen[key].hash != value}
    vanished = {key for key, value in seen.items() if key not in hashes and value.hash}
    if changed or vanished:
        number += 1
    after = dict(seen)
    after.update({key: Seen(hashes[key], number) for key in changed})
    after.update({key: Seen("", number) for key in vanished})
    instances = tuple(
        structs.replace(instance, changed=after[instance.id].changed)
        for instance in found.instances
    )
    numbered = structs.replace(found, instances=instances, generation=f"{found.boot_id}:{number}")
    return structs.replace(numbered, digest=digest(numbered)), after, number


def _hash(instance: Instance) -> str:
    plain = structs.replace(instance, changed=0, held_by=None)
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


def _hash_host(inventory: Inventory) -> str:
    value = (inventory.types, inventory.attributes, inventory.topology, inventory.control)
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def digest(inventory: Inventory) -> str:
    """Give the SHA-256 over the canonical JSON (RFC 8785) of types and instances.

    msgspec's sorted order is RFC 8785's for what stands here: keys are ASCII, numbers are whole
    or short floats that both write in the shortest form, and strings escape alike.
    """
    value = {
        "types": inventory.types,
        "instances": [structs.replace(i, held_by=None) for i in inventory.instances],
    }
    builtins = msgspec.to_builtins(value)
    for instance in builtins["instances"]:
        del instance["held_by"]
    return hashlib.sha256(msgspec.json.encode(builtins, order="sorted")).hexdigest()


def with_holders(inventory: Inventory, holders: Mapping[str, Iterable[Holder]]) -> Inventory:
    """Give the inventory with `held_by` filled in: nobody, where `holders` names nobody."""
    return structs.replace(
        inventory,
        instances=tuple(
            structs.replace(instance, held_by=tuple(sorted(holders.get(instance.id, ()))))
            for instance in inventory.instances
        ),
    )


def overlapping(instances: Mapping[str, Instance], instance_id: str) -> frozenset[str]:
    """Give the ids that share silicon with an instance, itself included."""
    instance = instances.get(instance_id)
    return frozenset((instance_id, *(instance.overlaps if instance else ())))
