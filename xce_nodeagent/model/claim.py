"""Whose a device is, where several providers say that they have it; and who overlaps whom. Pure.

`declaring` are the names of those providers that go by what people wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import structs

from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import ControlNode, Problem
from xce_nodeagent.model.rule import Device


def give_way(
    instances: dict[str, Instance],
    control: Mapping[str, Iterable[ControlNode]],
    declaring: frozenset[str],
) -> Iterator[Problem]:
    """Take out what was declared with a node that others have: two jobs would get one device.

    Others are providers that found it, and those that declared it before.
    """
    owners: dict[Device, tuple[str, str]] = {}
    for name, nodes in control.items():
        owners.update(
            (Device.of(one.node), (name, f"{name}, and to none of its instances alone"))
            for one in nodes
        )
    found = [one for one in instances.values() if one.provider not in declaring]
    for one in found:
        owners.update((Device.of(node), (one.provider, one.id)) for node in one.devices)
    for one in [one for one in instances.values() if one.provider in declaring]:
        for node in one.devices:
            provider, whose = owners.setdefault(Device.of(node), (one.provider, one.id))
            if provider != one.provider:
                del instances[one.id]
                why = f"{one.id}: {node.path} belongs to {whose}; this one is left out"
                yield Problem(one.provider, "error", why)
                break
    for one in instances.values():
        named = {*one.overlaps, *([one.parent] if one.parent else [])}
        if one.provider in declaring and (unknown := sorted(named - instances.keys())):
            why = f"{one.id}: it names {', '.join(unknown)}, and this host has no such instance"
            yield Problem(one.provider, "error", why)


def make_symmetric(instances: dict[str, Instance], declaring: frozenset[str]) -> Iterator[Problem]:
    """Add what is missing to `overlaps`: of two that share silicon, each must name the other.

    What is declared to overlap what others found is named by one side alone, and is right so.
    """
    missing: dict[str, set[str]] = {}
    for instance in instances.values():
        for other in instance.overlaps:
            if other in instances and instance.id not in instances[other].overlaps:
                missing.setdefault(other, set()).add(instance.id)
    for name, more in sorted(missing.items()):
        instance = instances[name]
        overlaps = tuple(sorted({*instance.overlaps, *more}))
        instances[name] = structs.replace(instance, overlaps=overlaps)
        told = sorted(one for one in more if instances[one].provider not in declaring)
        if told:
            why = f"{name}: {', '.join(told)} overlap it unilaterally"
            yield Problem(instance.provider, "error", why)
