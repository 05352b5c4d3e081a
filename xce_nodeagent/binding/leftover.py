"""What a job left over: processes in its cgroup, and ports on which somebody still listens."""

from __future__ import annotations

from collections.abc import Iterable

from xce_nodeagent.binding.parts import Parts
from xce_nodeagent.host import process
from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.wire import LeftOver
from xce_nodeagent.privileged.ops import Unbound


def after(binding: Binding, book: Iterable[Binding]) -> list[Binding]:
    """Give the bindings that may have got what this one had, so that it was clean then.

    A quarantine that ended comes back with a ledger that lost the end of it. Who listens on a
    port, or has a device open, is then whoever got it later, in quarantine itself or not.
    """
    others = (other for other in book if other.key != binding.key)
    return [b for b in others if b.state != "quarantined" or binding.is_older(b)]


def still(binding: Binding, book: Iterable[Binding]) -> list[str]:
    """Give the instances of a quarantined binding that nobody has got since."""
    later = {instance for other in after(binding, book) for instance in other.instances}
    return [instance for instance in binding.instances if instance not in later]


def listening(binding: Binding, inventory: Inventory, parts: Parts) -> list[int]:
    """Give the binding's ports on which somebody listens now."""
    held = {hold.port for hold in binding.plan.ports}
    if not held:
        return []
    instances = inventory.by_id()
    used: set[int] = set()
    for instance in {hold.instance for hold in binding.plan.ports} & instances.keys():
        used |= parts.served(instances[instance]) & held
    return sorted(used)


def in_cgroup(unbound: Unbound) -> tuple[LeftOver, ...]:
    """Give the processes that are still in the cgroup, or below it; who can't be named, as one."""
    if unbound.populated and not unbound.pids:
        return (LeftOver(-1, "in the job's cgroup, and cannot be named from here"),)
    return tuple(
        LeftOver(pid, "in the job's cgroup", *process.name_and_owner(pid)) for pid in unbound.pids
    )


def quarantined(binding: Binding, unbound: Unbound, ports: list[int]) -> tuple[str, ...]:
    """Give what is not free yet: everything while a process is left, else what still listens."""
    if unbound.pids or unbound.populated:
        return binding.instances
    of = {hold.instance for hold in binding.plan.ports if hold.port in ports}
    return tuple(instance for instance in binding.instances if instance in of)
