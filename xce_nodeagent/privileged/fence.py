"""What every back end does for the binder, and the one bit of algebra that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from xce_nodeagent.errors import AgentError, BadCgroup
from xce_nodeagent.model.rule import Device, Rule, normal
from xce_nodeagent.privileged.cgroup import Cgroup
from xce_nodeagent.privileged.ops import Verified


class Fence(Protocol):
    """A way to refuse devices to the processes of a cgroup and of all cgroups below it."""

    def manage(self, devices: frozenset[Device], bound: Iterable[Cgroup], /) -> None:
        """Make these the managed devices, also for the cgroups that are bound already."""
        ...

    def remember(self, cgroup: Cgroup, *, made: bool) -> None:
        """Note who else judges the cgroup's devices, before it is bound anew."""
        ...

    def forget(self, cgroup: Cgroup) -> None:
        """Drop the grants of an earlier binding, before the cgroup is bound anew."""
        ...

    def bind(self, cgroup: Cgroup, grants: tuple[Rule, ...], *, made: bool) -> None:
        """Fence the cgroup and give it exactly these grants; `made`: it was just made by us."""
        ...

    def spread(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> None:
        """Give what is granted to every sub-cgroup again, where one may lack it."""
        ...

    def holds(self, cgroup: Cgroup) -> bool:
        """Say whether something of ours is granted to a cgroup, whatever mark it bears."""
        ...

    def verify(self, cgroup: Cgroup, grants: tuple[Rule, ...]) -> Verified:
        """Compare with the kernel; change nothing."""
        ...

    def granted(self, cgroup: Cgroup) -> tuple[Rule, ...] | None:
        """Give the grants that are in force; None where they cannot be read."""
        ...

    def verify_home(self, home: Cgroup | None) -> str:
        """Compare what all bindings share; give the fault, "" where there is none."""
        ...

    def repair_home(self, home: Cgroup | None) -> None:
        """Put right what bindings share at the jobs' home; `manage` does the rest."""
        ...

    def close(self) -> None:
        """Let go of descriptors; what is enforced stays."""
        ...


def each(bound: Iterable[Cgroup], act: Callable[[Cgroup], None]) -> None:
    """Do something to every cgroup, whatever happens with one of them; raise the first error last.

    One that was removed meanwhile needs nothing.
    """
    first: AgentError | None = None
    for cgroup in bound:
        try:
            act(cgroup)
        except BadCgroup:
            continue
        except AgentError as error:
            first = first or error
    if first is not None:
        raise first


def common(left: Iterable[Rule], right: Iterable[Rule]) -> tuple[Rule, ...]:
    """Give what both grant."""
    bits = {rule.device: rule.access for rule in normal(right)}
    both = ((rule.device, rule.access & bits.get(rule.device, 0)) for rule in normal(left))
    return tuple(Rule(device, access) for device, access in both if access)


def beyond(left: Iterable[Rule], right: Iterable[Rule]) -> tuple[Rule, ...]:
    """Give what `left` grants and `right` does not."""
    bits = {rule.device: rule.access for rule in normal(right)}
    more = ((rule.device, rule.access & ~bits.get(rule.device, 0)) for rule in normal(left))
    return tuple(Rule(device, access) for device, access in more if access)


def listed(grants: Iterable[Rule]) -> str:
    """Show grants in a message."""
    return ", ".join(rule.line() for rule in grants) or "none"
