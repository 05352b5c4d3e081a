"""Doctor: what is looked at, and what each finding means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.binding.helper import Helper
from xce_nodeagent.errors import AgentError
from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.config import Config
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.rule import Device
from xce_nodeagent.model.wire import Check
from xce_nodeagent.privileged.ops import Look, Looked, Role, Taken


def enforcement(config: Config, taken: Taken | None) -> Check:
    """Say whether jobs are fenced, and how."""
    policy = config.agent.enforcement
    if policy == "off":
        return Check(
            name="enforcement",
            state="warning",
            text="off: jobs are not fenced",
            remedy="set [agent] enforcement = 'required'",
        )
    if taken is None or not taken.backends:
        why = taken.reason if taken else "there is no binder"
        return Check(
            name="enforcement",
            state="fault" if policy == "required" else "warning",
            text=f"{policy}, but nothing can be enforced: {why}",
            remedy="run the agent as root, on a host with cgroup v2 or the v1 devices controller",
        )
    home = taken.home.path if taken.home else "none"
    text = f"{policy}, {' and '.join(taken.backends)}, jobs below {home}"
    if "cgroup2" in taken.backends and taken.program != "shared":
        return Check(
            name="enforcement",
            state="note",
            text=f"{text}; one program for each job: {taken.program} {taken.reason}".strip(),
        )
    return Check(name="enforcement", state="ok", text=text)


def helpers(restarts: Mapping[Role, int]) -> Check:
    """Say how often a helper had to be replaced."""
    replaced = {role: count for role, count in restarts.items() if count}
    if not replaced:
        return Check(name="helpers", state="ok", text=f"{', '.join(restarts) or 'none'}")
    text = ", ".join(f"{role} replaced {count} times" for role, count in replaced.items())
    return Check(
        name="helpers",
        state="warning",
        text=text,
        remedy="the log says why each of them ended",
    )


def discovery(inventory: Inventory | None) -> list[Check]:
    """Say what discovery could not find out, and which instances are unhealthy."""
    if inventory is None:
        return [Check(name="discovery", state="fault", text="the first scan has not finished")]
    checks = [
        Check(
            name=f"discovery.{problem.provider}",
            state="note" if problem.state == "none" else "warning",
            text=f"{problem.state}: {problem.reason}",
        )
        for problem in inventory.problems
    ]
    checks += [
        Check(
            name=f"instance.{instance.id}",
            state="warning",
            text=f"{'drained' if instance.drained else 'unhealthy'}: {instance.reason}",
        )
        for instance in inventory.instances
        if instance.drained or not instance.healthy
    ]
    count = len(inventory.instances)
    checks.append(
        Check(
            name="discovery",
            state="ok",
            text=f"generation {inventory.generation}, {count} instances",
        )
    )
    return checks


class Fault(Struct, frozen=True):
    """What is wrong with a binding, and what to do."""

    text: str
    remedy: str


def bindings(live: Iterable[Binding], faults: Mapping[str, Fault]) -> list[Check]:
    """Say which bindings are not as the ledger says, and what is quarantined."""
    live = list(live)
    checks = [
        Check(
            name=f"binding.{binding.job}",
            state="warning",
            text=f"{binding.state}: {_left(binding)}",
            remedy="end these processes; the instances are freed by themselves then",
        )
        for binding in live
        if binding.state in ("quarantined", "releasing")
    ]
    checks += [
        Check(
            name=f"binding.{job}",
            state="fault",
            text=fault.text,
            remedy=fault.remedy,
        )
        for job, fault in faults.items()
    ]
    return [*checks, Check(name="bindings", state="ok", text=f"{len(live)} live")]


def report(failed: str) -> list[Check]:
    """Say whether the inventory can be reported."""
    if not failed:
        return []
    return [
        Check(
            name="report",
            state="warning",
            text=f"the inventory cannot be written to {failed}",
            remedy="let the agent's user write in that folder",
        )
    ]


async def compare(live: Iterable[Binding], executor: Executor) -> dict[str, Fault]:
    """Compare what the kernel has with the ledger; give the fault of each job that has one."""
    faults: dict[str, Fault] = {}
    for binding in live:
        if binding.state != "bound":
            continue
        try:
            verified = await executor.verify(binding)
        except AgentError as error:
            faults[binding.job] = Fault(error.message, "look again; the log says more")
            continue
        if verified.state == "gone":
            release = f"xce-nodeagent release --job {binding.job}"
            release += f" --attempt {binding.attempt}" if binding.attempt else ""
            faults[binding.job] = Fault(
                verified.fault or "its cgroup is gone",
                f"{release}; or wait: the agent closes the binding when it next verifies it",
            )
        elif verified.state == "differs":
            faults[binding.job] = Fault(
                verified.fault,
                "restart the agent, which puts the fence back; or wait: it verifies by itself",
            )
    return faults


async def strangers(
    live: Iterable[Binding], managed: Iterable[Device], witness: Helper
) -> list[Check]:
    """Say who has a managed device open that no job was given: it was opened outside any fence."""
    granted = {str(rule.device) for binding in live for rule in binding.plan.grants}
    try:
        looked: Looked = await witness.call(Look(devices=tuple(sorted(managed))))
    except AgentError as error:
        return [Check(name="witness", state="warning", text=error.message)]
    checks = [
        Check(
            name=f"holder.{seen.pid}",
            state="warning",
            text=f"{seen.comm} (pid {seen.pid}, uid {seen.uid}) has {seen.what} open, which no"
            " job holds",
            remedy="end it, or let it run as a job; whoever gets that device next shares it",
        )
        for seen in looked.seen
        if seen.what not in granted
    ]
    if looked.hidden:
        text = f"{looked.hidden} processes cannot be looked into: they may have a device open"
        checks.append(Check(name="witness", state="note", text=text))
    elif not checks:
        text = "nobody has a device open that no job holds"
        checks.append(Check(name="witness", state="ok", text=text))
    return checks


def _left(binding: Binding) -> str:
    who: Sequence[str] = [f"{left.comm or 'pid'} {left.pid} {left.what}" for left in binding.left]
    return "; ".join(who) or "it could not be undone yet"
