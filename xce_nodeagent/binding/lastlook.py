"""The last look at the host before an answer: are the nodes and the ports what was planned with?

It costs a tenth of a millisecond, and the binder works for as long: so it is looked while the
binder works, after the commit. What is found then undoes the binding, nobody was told of it yet,
and it is planned again with what is known now. A crash in between leaves a binding that nobody
looked at: that is made up for when it is asked for again. Its fence is right all the same, because
rules are made from numbers and not from nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from time import perf_counter

from msgspec import structs

from xce_nodeagent.binding.parts import Parts
from xce_nodeagent.errors import AgentError, Unhealthy
from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.instance import DeviceNode, Instance
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.plan import AllowDevice

LookAtNodes = Callable[[Iterable[Instance], Iterable[DeviceNode]], None]
"""Raises Unhealthy where a node on disk is not what is granted: of an instance, or any."""


class Strangers:
    """Who uses ports without holding them; remembered only as whether there was anybody.

    Where there was, it is looked before it is planned, and otherwise afterwards.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._some = True  # nobody has looked yet

    def known(self, ports: Instance | None, held: Collection[int]) -> frozenset[int] | None:
        """Give the ports in use, to plan with; None where it is to be looked afterwards.

        `held` are the ports of bindings.
        """
        if ports is None or not self._some:
            return None
        used = self._parts.in_use(ports)
        self._some = not used.issubset(held)
        return used

    def on(self, ports: Instance, wanted: Collection[int], held: Collection[int]) -> list[int]:
        """Look now; give those of the wanted ports that somebody uses. `held` has them, too."""
        used = self._parts.in_use(ports)
        if not used:
            return []
        taken = sorted(used.intersection(wanted))
        self._some = bool(taken) or not used.issubset(held)
        return taken


class LastLook:
    """One look, to be called while the binder works; `error` then says what is wrong, if anything.

    `ports` is the divisible instance whose parts are looked at, None where they were already.
    `seconds` is how long it took.
    """

    def __init__(
        self,
        binding: Binding,
        before: Binding | None,
        inventory: Inventory,
        *,
        nodes: LookAtNodes | None,
        strangers: Strangers,
        ports: Instance | None,
        held: Collection[int],
    ) -> None:
        self.error: AgentError | None = None
        self.seconds = 0.0
        self._binding = binding
        self._before = before
        self._inventory = inventory
        self._nodes = nodes
        self._strangers = strangers
        self._ports = ports
        self._held = held

    def __call__(self) -> None:
        """Look. It raises nothing: the binder is at work, and must be heard first."""
        started = perf_counter()
        try:
            if self._ports is not None:
                self._look_at_ports(self._ports)
            if self._nodes is not None:
                self._look_at_nodes(self._nodes)
        except AgentError as error:
            self.error = error
        self.seconds = perf_counter() - started

    def _look_at_ports(self, ports: Instance) -> None:
        had = {hold.port for hold in self._before.plan.ports} if self._before else ()
        wanted = [hold.port for hold in self._binding.plan.ports if hold.port not in had]
        if taken := self._strangers.on(ports, wanted, self._held):
            raise Unhealthy(
                f"port {taken[0]}: a process outside any job uses it; `ss -lntup` shows which",
                ports=taken,
            )

    def _look_at_nodes(self, look: LookAtNodes) -> None:
        by_id = self._inventory.by_id()
        had = self._before.instances if self._before else ()
        new = [one for one in self._binding.instances if one not in had]
        look(
            [by_id[one] for one in new],
            [step.node for step in self._binding.plan.steps if isinstance(step, AllowDevice)],
        )

    def corrected(self) -> Inventory | None:
        """Give the inventory with what was found, to plan again; None where that is no use."""
        if self.error is None or "ports" in self.error.details:
            return self._inventory
        sick = self.error.details.get("instance", "")
        known = self._inventory.by_id().get(sick)
        if known is None or not known.healthy or not isinstance(self.error, Unhealthy):
            return None
        reason = self.error.details["reason"]
        instances = tuple(
            structs.replace(one, healthy=False, reason=reason) if one.id == sick else one
            for one in self._inventory.instances
        )
        return structs.replace(self._inventory, instances=instances)
