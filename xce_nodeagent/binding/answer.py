"""What is said of a binding: the answer to a prepare, and how it is shown. Pure."""

from __future__ import annotations

from xce_nodeagent.errors import BadRequest
from xce_nodeagent.model import name, wire
from xce_nodeagent.model.binding import Binding


def prepared(binding: Binding) -> wire.Prepared:
    """Give the answer to Prepare: what the job holds, and what its processes need."""
    return wire.Prepared(
        job=binding.job,
        attempt=binding.attempt,
        instances=binding.instances,
        env=binding.plan.environment,
        cgroup=cgroup(binding),
        generation=binding.generation,
        enforcement=binding.enforcement,
        ports=ports(binding),
    )


def cgroup(binding: Binding) -> dict[str, str]:
    """Give the binding's cgroup as answers show it; empty where nothing is enforced."""
    step = binding.plan.cgroup
    return step.cgroup.answer() if step else {}


def ports(binding: Binding) -> tuple[wire.PortHeld, ...]:
    """Give the ports that the binding holds."""
    return tuple(wire.PortHeld(hold.port, hold.name) for hold in binding.plan.ports)


def view(
    binding: Binding,
    *,
    last_seen: float,
    populated: bool | None,
    env: bool,
    shared: tuple[wire.LeftOver, ...] = (),
    trouble: str = "",
    fault: str = "",
) -> wire.BindingView:
    """Give a binding as `jobs` and `job` show it; its environment only when that is asked for.

    `shared` are those who have something open that it holds; `trouble` says why it cannot be
    looked who has; `fault` is what verification found wrong.
    """
    waits = binding.state == "quarantined"
    reasons = [binding.reason, trouble if waits else "", "shared" if shared else ""]
    return wire.BindingView(
        job=binding.job,
        attempt=binding.attempt,
        uid=binding.uid,
        state=binding.state,
        reason="; ".join(filter(None, reasons)),
        instances=binding.instances,
        ports=ports(binding),
        cgroup=cgroup(binding),
        enforcement=binding.enforcement,
        since=binding.since,
        # A prepare is seen before it is committed.
        last_seen=max(last_seen, binding.since),
        populated=populated,
        holders=binding.left if waits else shared,
        env=binding.plan.environment if env else {},
        healthy=not fault,
        fault=fault,
    )


def no_binding(job: str, attempt: str | None) -> BadRequest:
    """Give the error for a job that holds nothing here."""
    which = f"job {job!r}" if attempt is None else name.run(job, attempt)
    return BadRequest(
        f"{which} holds nothing on this host: `xce-nodeagent jobs` shows who does",
        job=job,
    )


def several_bindings(job: str, attempts: list[str]) -> BadRequest:
    """Give the error for a job that is meant without its attempt, and has several."""
    return BadRequest(
        f"job {job!r} has {len(attempts)} bindings: name the attempt"
        f" ({', '.join(attempt or 'none' for attempt in attempts)})",
        job=job,
        attempts=attempts,
    )
