"""A plan: what a binding does, as a value. Steps are a closed union, each with its inverse.

A provider gives the steps of its own instances (AllowDevice, SetEnv, HoldPort); the planner puts
the cgroup in front. The ledger stores the plan, so recovery needs nothing but the ledger, even
when the provider has changed since.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal, assert_never

from msgspec import Struct

from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.rule import READ_WRITE, Device, Rule

Backend = Literal["cgroup2", "cgroup1"]


class CgroupRef(Struct, frozen=True, gc=False, order=True):
    """A cgroup: the absolute path of its directory, and which kind of hierarchy that is in."""

    backend: Backend
    path: str

    def answer(self) -> dict[str, str]:
        """Give it as answers show it."""
        return {"v2" if self.backend == "cgroup2" else "devices": self.path}


class MakeCgroup(Struct, frozen=True, gc=False, tag="make_cgroup"):
    """Make the job's own cgroup; it must not exist, or bear this binding's mark."""

    cgroup: CgroupRef


class AdoptCgroup(Struct, frozen=True, gc=False, tag="adopt_cgroup"):
    """Bind a cgroup of the caller's. `populated` ones are taken only when that is asked for."""

    cgroup: CgroupRef
    populated: bool = False


class AllowDevice(Struct, frozen=True, gc=False, tag="allow_device"):
    """Let the job open a managed device."""

    node: DeviceNode
    access: int = int(READ_WRITE)

    def rule(self) -> Rule:
        """Give the grant as the rule algebra writes it."""
        return Rule(Device.of(self.node), self.access)


class SetEnv(Struct, frozen=True, gc=False, tag="set_env"):
    """Give the job an environment variable. The value has no newline and no NUL."""

    name: str
    value: str


class HoldPort(Struct, frozen=True, gc=False, tag="hold_port"):
    """Give the job a port of a divisible instance, maybe under a name."""

    instance: str
    port: int
    name: str = ""


class RemoveCgroup(Struct, frozen=True, gc=False, tag="remove_cgroup"):
    """Take back every grant, and remove the cgroup when it is empty."""

    cgroup: CgroupRef


class LeaveCgroup(Struct, frozen=True, gc=False, tag="leave_cgroup"):
    """Take back every grant, and leave the cgroup, still fenced, to its owner."""

    cgroup: CgroupRef


class DenyDevice(Struct, frozen=True, gc=False, tag="deny_device"):
    """Take back a grant."""

    node: DeviceNode


class FreePort(Struct, frozen=True, gc=False, tag="free_port"):
    """Take back a port."""

    instance: str
    port: int


Step = MakeCgroup | AdoptCgroup | AllowDevice | SetEnv | HoldPort
Undo = RemoveCgroup | LeaveCgroup | DenyDevice | FreePort


def inverse(step: Step) -> Undo | None:
    """Give the step that takes this one back; None where nothing outside the answer was done."""
    match step:
        case MakeCgroup(cgroup):
            return RemoveCgroup(cgroup)
        case AdoptCgroup(cgroup):
            return LeaveCgroup(cgroup)
        case AllowDevice(node):
            return DenyDevice(node)
        case HoldPort(instance, port):
            return FreePort(instance, port)
        case SetEnv():
            return None
        case _:
            assert_never(step)


class Plan(Struct, frozen=True, dict=True):
    """Steps in the order in which they are carried out.

    What is asked of it again and again on a job's path is sorted out once (`dict=True` is where
    a cached property keeps its value; it takes no part in comparison or on disk).
    """

    steps: tuple[Step, ...] = ()

    def __add__(self, other: Plan) -> Plan:
        return Plan(self.steps + other.steps)

    def placed(self, cgroup: Step | None, *more: SetEnv) -> Plan:
        """Give this plan behind a cgroup, with more variables; what is sorted out stays so."""
        front = () if cgroup is None else (cgroup,)
        plan = Plan((*front, *self.steps, *more))
        environment = self.environment | {step.name: step.value for step in more}
        plan.__dict__.update(grants=self.grants, ports=self.ports, environment=environment)
        return plan

    def undo(self) -> tuple[Undo, ...]:
        """Give what takes the plan back, last step first."""
        undone = (inverse(step) for step in reversed(self.steps))
        return tuple(step for step in undone if step is not None)

    @cached_property
    def grants(self) -> tuple[Rule, ...]:
        """The devices that the plan allows, as rules."""
        return tuple(step.rule() for step in self.steps if type(step) is AllowDevice)

    @cached_property
    def environment(self) -> dict[str, str]:
        """The job's environment; a later step wins over an earlier one."""
        return {step.name: step.value for step in self.steps if type(step) is SetEnv}

    @cached_property
    def ports(self) -> tuple[HoldPort, ...]:
        """The ports that the plan holds."""
        return tuple(step for step in self.steps if type(step) is HoldPort)

    @cached_property
    def cgroup(self) -> MakeCgroup | AdoptCgroup | None:
        """The step that names the cgroup, which is the first; None where nothing is enforced."""
        first = self.steps[0] if self.steps else None
        return first if isinstance(first, (MakeCgroup, AdoptCgroup)) else None
