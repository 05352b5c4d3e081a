"""What a job left over: processes in its cgroup, and ports on which somebody still listens."""

from __future__ import annotations

from xce_nodeagent.binding.parts import Parts
from xce_nodeagent.host import process
from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.wire import LeftOver
from xce_nodeagent.privileged.ops import Unbound


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
