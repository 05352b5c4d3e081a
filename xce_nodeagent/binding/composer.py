"""The composer: puts a plan together from what each provider says of the job's instances.

A provider's part depends on nothing but the instances and the ports, and the same ones are given
out again and again (a whole node, a card with its NIC), so the parts of the current generation
are kept. Composing is a quarter of the cost of a prepare without that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, structs

from xce_nodeagent.errors import Unhealthy
from xce_nodeagent.model import environment
from xce_nodeagent.model.binding import Binding, Key
from xce_nodeagent.model.config import EnforcementPolicy
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.plan import (
    AdoptCgroup,
    CgroupRef,
    HoldPort,
    MakeCgroup,
    Plan,
    SetEnv,
    Step,
)
from xce_nodeagent.provider import Grant, PortGrant, Provider

KEPT = 512
"""Parts that are kept; when there are more, all are dropped and made anew as they are needed."""


class Site(Struct, frozen=True, kw_only=True):
    """What the site decided, and where the binder makes the jobs' own cgroups."""

    policy: EnforcementPolicy
    home: CgroupRef | None = None
    roots: tuple[str, ...] = ()
    visible: Literal["uuid", "index"] = "uuid"
    attempt_memory_seconds: int = 86_400


class Composer:
    """Composes plans. Its answers depend on its arguments only; what it keeps is only kept."""

    def __init__(self, providers: Mapping[str, Provider], site: Site) -> None:
        self._providers = providers
        self._site = site
        self._generation = ""
        self._parts: dict[tuple[tuple[str, ...], tuple[HoldPort, ...]], Plan] = {}

    def compose(
        self,
        job: Key,
        instances: Sequence[Instance],
        ports: tuple[HoldPort, ...],
        cgroup: MakeCgroup | AdoptCgroup | None,
        inventory: Inventory,
    ) -> Plan:
        """Give the plan: the cgroup first, what opens and holds, then the environment.

        `instances` are the job's, all of this inventory, in its order.
        """
        if inventory.generation != self._generation or len(self._parts) > KEPT:
            self._parts.clear()
            self._generation = inventory.generation
        key = (tuple([instance.id for instance in instances]), ports)
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = self._compose(instances, ports, inventory)
        name, attempt = job
        more = [SetEnv("XCE_JOB_ID", name)]
        if attempt:
            more.append(SetEnv("XCE_ATTEMPT", attempt))
        if cgroup is not None:
            more.append(SetEnv("XCE_CGROUP", cgroup.cgroup.path))
        return part.placed(cgroup, *more)

    def whole(self, binding: Binding, inventory: Inventory) -> Binding:
        """Give a binding with its environment, composed anew where its record had no room for it.

        Raise Unhealthy where that cannot be: a job must not get an environment that is not its own.
        """
        if binding.plan.environment:
            return binding
        lost = f"the environment of job {binding.job!r} was lost with the ledger"
        if binding.doubtful:
            raise Unhealthy(f"{lost}: {binding.reason}; release the job", job=binding.job)
        order = [one for one in inventory.instances if one.id in binding.instances]
        if missing := set(binding.instances) - {one.id for one in order}:
            raise Unhealthy(
                f"{lost}, and can't be composed anew while the inventory is without"
                f" {', '.join(sorted(missing))}: wait until it is back, or release the job",
                job=binding.job,
            )
        old = binding.plan
        plan = self.compose(binding.key, order, old.ports, old.cgroup, inventory)
        if set(plan.grants) != set(old.grants):
            raise Unhealthy(
                f"{lost}, and can't be composed anew, because what it holds has other device nodes"
                " now: release the job",
                job=binding.job,
            )
        return structs.replace(binding, plan=plan)

    def _compose(
        self, instances: Sequence[Instance], ports: Sequence[HoldPort], inventory: Inventory
    ) -> Plan:
        steps: list[Step] = []
        values = [*environment.hidden()]
        for name in sorted({instance.provider for instance in instances}):
            own = tuple(i for i in instances if i.provider == name)
            ids = {instance.id for instance in own}
            control = inventory.control.get(name, ())
            plan = self._providers[name].plan(
                Grant(
                    instances=own,
                    ports=tuple(PortGrant(p.port, p.name) for p in ports if p.instance in ids),
                    control=tuple(c.node for c in control if c.granted),
                    visible=self._site.visible,
                    contained=self._site.policy == "required",
                )
            )
            for step in plan.steps:
                if isinstance(step, SetEnv):
                    values.append(step)
                else:
                    steps.append(step)
        return Plan((*steps, *environment.combined(values)))
