"""Which NICs the host keeps for itself: what it needs, what goes with that, what a site says. Pure.

Providers say what the host needs (`Instance.reserved` with its reason). With it go

- the physical function of a virtual one that the host needs: who has the port can take it down.
  Not the other way round: virtual functions are made so that others than the host have them;
- whatever else overlaps it: another port of the same RDMA device, which one node opens, or another
  member of the same bond.

What the configuration offers is not kept, and draws nothing after it. What it reserves is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from msgspec import structs

from xce_nodeagent.model.config import NicConfig
from xce_nodeagent.model.instance import Instance


def decided(found: Iterable[Instance], config: NicConfig) -> tuple[Instance, ...]:
    """Give the instances, each with why the host keeps it, or with no reason where it does not."""
    instances = {instance.id: instance for instance in found}
    nics = [instance for instance in instances.values() if instance.type == "nic"]
    named = {nic.id for nic in nics if _matches(nic, config.reserve)}
    offered = {nic.id for nic in nics if _matches(nic, config.offer)} - named
    reasons = {nic.id: nic.reserved for nic in nics if nic.reserved}
    reasons |= dict.fromkeys(named, "`[nic] reserve` of the configuration names it")
    reasons = {own: why for own, why in reasons.items() if own not in offered}
    todo = sorted(reasons)
    while todo:
        own = todo.pop()
        for other in instances[own].overlaps:
            nic = instances.get(other)
            if nic is None or other in reasons or other in offered:
                continue
            if _is_part(nic, of=instances[own]):
                continue
            reasons[other] = (
                f"its virtual function {own} is the host's own"
                if _is_part(instances[own], of=nic)
                else f"it overlaps {own}, which is the host's own"
            )
            todo.append(other)
    return tuple(
        instance
        if instance.reserved == reasons.get(instance.id, "") or instance.type != "nic"
        else structs.replace(instance, reserved=reasons.get(instance.id, ""))
        for instance in instances.values()
    )


def _is_part(nic: Instance, *, of: Instance) -> bool:
    """Say whether it is a virtual function of the other's port."""
    function = nic.text("physical_function")
    return bool(function) and function == of.text("pci_address")


def _matches(nic: Instance, patterns: Iterable[str]) -> bool:
    names = (nic.id, nic.text("netdev"), nic.text("rdma_device"))
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names if name)
