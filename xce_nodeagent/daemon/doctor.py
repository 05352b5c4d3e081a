"""Doctor: what is looked at, and what each finding means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from xce_nodeagent.binding.helper import Helper
from xce_nodeagent.binding.verification import GONE, MASKED, Found, Verification
from xce_nodeagent.binding.vigil import Vigil
from xce_nodeagent.daemon.reloads import Reloads
from xce_nodeagent.errors import AgentError
from xce_nodeagent.host.process import name_and_owner
from xce_nodeagent.model.binding import Binding, Key
from xce_nodeagent.model.config import Config
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.rule import Device
from xce_nodeagent.model.wire import Check
from xce_nodeagent.privileged.ops import Look, Looked, Role, Taken


def enforcement(config: Config, taken: Taken | None, missing: str = "") -> Check:
    """Say whether jobs are fenced, and how. `missing` says why there is no binder any more."""
    policy = config.agent.enforcement
    if missing and taken is not None and policy != "off":
        return Check(
            name="enforcement",
            state="warning",
            text=f"{policy}; running jobs keep their fences, and no new one can be made without a"
            " binder: see `helpers`",
        )
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


def helpers(restarts: Mapping[Role, int], missing: Mapping[Role, str]) -> Check:
    """Say how often a helper had to be replaced, and why there is none of a role."""
    gone = {role: why for role, why in missing.items() if why}
    if gone:
        why = "; ".join(dict.fromkeys(gone.values()))
        return Check(
            name="helpers",
            state="fault",
            text=f"there is no {' and no '.join(gone)}: {why}",
            remedy="restart the agent (under systemd xce-nodeagent-helpers first): running jobs"
            " keep their fences meanwhile",
        )
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


def bindings(
    live: Iterable[Binding],
    verification: Verification,
    differing: Mapping[Key, str],
    missing: str = "",
) -> list[Check]:
    """Say which bindings are not as the ledger says, and what is quarantined.

    `differing` is what was found just now, and is not put right yet. `missing`: there is no binder,
    so nothing could be found.
    """
    live = list(live)
    checks = []
    for binding in live:
        name = f"binding.{binding.job}"
        if binding.state in ("quarantined", "releasing"):
            checks.append(
                Check(
                    name=name,
                    state="warning",
                    text=f"{binding.state}: {_left(binding)}",
                    remedy=_END if binding.left else "see `helpers`" if missing else _AGAIN,
                )
            )
        elif missing:
            continue
        elif fault := differing.get(binding.key):
            gone = fault.startswith(GONE)
            remedy = _CLOSE if gone else _REPAIR
            checks.append(Check(name=name, state="fault", text=fault, remedy=remedy))
        elif fault := verification.fault(binding):
            # What a program of another's refuses is not known: it may be nothing of the job's.
            masked = fault.startswith(MASKED)
            checks.append(
                Check(
                    name=name,
                    state="warning" if masked else "fault",
                    text=f"unhealthy: {fault}",
                    remedy="take away what is in the way, then `xce-nodeagent doctor --repair`; or"
                    " release the job",
                )
            )
        elif note := verification.note(binding):
            checks.append(Check(name=name, state="note", text=note))
    text = f"{len(live)} live"
    if missing and live:
        text += "; without a binder they cannot be compared with the kernel: see `helpers`"
        return [*checks, Check(name="bindings", state="warning", text=text)]
    return [*checks, Check(name="bindings", state="ok", text=text)]


_REPAIR = (
    "`xce-nodeagent doctor --repair` puts it right now; the agent does so by itself within five"
    " minutes"
)
_CLOSE = (
    "nothing: the job can have no process any more, so the agent closes its binding within five"
    " minutes, and frees what it holds; `xce-nodeagent doctor --repair` does so now"
)
_END = (
    "end these processes (`release --kill` ends those in the job's cgroup); the instances are freed"
    " by themselves then"
)
_AGAIN = "nothing: the agent tries it again by itself"


def verification(found: Verification, now: float, missing: str = "") -> list[Check]:
    """Say what verification has done since the start, and what of it all bindings share.

    `missing`: there is no binder; that is no fault of what they share.
    """
    count = found.count
    text = (
        f"{count.verified} looked at, {count.repaired} put back, {count.reasserted} re-asserted"
        f" (cgroup v1), {count.masked} masked, {count.vanished} without a cgroup,"
        f" {count.failed} failed"
    )
    if count.last:
        ago = max(0.0, now - count.last)
        text += f"; last round {ago:.0f} s ago, {count.cpu:.3f} s of CPU"
    checks = [Check(name="verification", state="ok", text=text)]
    if found.home_fault and not missing:
        checks.append(
            Check(
                name="verification.home",
                state="fault",
                text=found.home_fault,
                remedy="restart xce-nodeagent-jobs if it is not active, then `xce-nodeagent doctor"
                " --repair`",
            )
        )
    return checks


def reloads(watched: Reloads | None) -> list[Check]:
    """Say whether a daemon-reload of systemd is noticed at once."""
    if watched is None:
        text = "no systemd is watched: fences are verified by the timer only, every five minutes"
        return [Check(name="reloads", state="note", text=text)]
    return [Check(name="reloads", state="ok", text=f"systemd is watched; {watched.seen} seen")]


def repairs(round_: Iterable[Found]) -> list[Check]:
    """Say what a repair has done: a line for each binding that was not whole, then the sum."""
    round_ = list(round_)
    checks = []
    for found in round_:
        name = f"repair.{found.key[0]}"
        match found.result:
            case "repaired":
                checks.append(Check(name=name, state="note", text=f"put back: {found.text}"))
            case "cgroup-vanished":
                text = f"its binding is closed: {found.text}"
                checks.append(Check(name=name, state="note", text=text))
            case "masked":
                checks.append(Check(name=name, state="warning", text=found.text))
            case "failed":
                text = f"cannot be put back: {found.text}"
                checks.append(Check(name=name, state="fault", text=text))
    counts = Counter(found.result for found in round_)
    text = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    text = text or "no binding to look at"
    if counts["failed"]:
        remedy = "see what the lines above and `helpers` say, then repair again"
        return [*checks, Check(name="repair", state="fault", text=text, remedy=remedy)]
    return [*checks, Check(name="repair", state="ok", text=text)]


async def strangers(
    live: Iterable[Binding],
    managed: Iterable[Device],
    witness: Helper,
    named: Callable[[int], str] = lambda pid: name_and_owner(pid)[0],
) -> list[Check]:
    """Say who has a managed device open that no job was given: it was opened outside any fence.

    `named` gives a process's name by its pid, "" where there is none any more.
    """
    granted = {str(rule.device) for binding in live for rule in binding.plan.grants}
    try:
        looked: Looked = await witness.call(Look(devices=tuple(sorted(managed)), queues=True))
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
        if seen.what not in granted and seen.how != "path"
    ]
    if looked.queued:
        text = f"{looked.queued} descriptors lie in sockets' queues: of what, nobody can see"
        checks.append(Check(name="witness.queues", state="note", text=text))
    if looked.hidden:
        checks.append(Check(name="witness", state="note", text=_hidden(looked, named)))
    elif not checks:
        text = "nobody has a device open that no job holds"
        checks.append(Check(name="witness", state="ok", text=text))
    return checks


def shared(vigil: Vigil) -> list[Check]:
    """Say who has something open that a job holds, and is outside of it; and if nobody looks."""
    checks = [
        Check(
            name=f"shared.{job}",
            state="warning",
            text=f"{one.comm} (pid {one.pid}, uid {one.uid}) {one.what}, which job {job} holds, and"
            " is not in its cgroup",
            remedy="end it; or, if it is a program that is to have devices open, name it in"
            " [release] residents",
        )
        for (job, _), holders in vigil.shared.items()
        for one in holders
    ]
    checks += [
        Check(
            name=f"absent.{job}",
            state="warning",
            text=f"job {job} is released, and holds back {text}",
            remedy=f"xce-nodeagent release --job {job}",
        )
        for (job, _), text in vigil.absent().items()
    ]
    if vigil.trouble:
        checks.append(
            Check(
                name="vigil",
                state="warning",
                text=f"it cannot be looked who still has what was released: {vigil.trouble}",
                remedy="what waits to be clean stays held back until it can",
            )
        )
    return checks


UNREAD_NAMED = 5
"""Processes that are named of those that cannot be looked into."""


def _hidden(looked: Looked, named: Callable[[int], str]) -> str:
    """Say which processes cannot be looked into, and what that means."""
    one = looked.hidden == 1
    text = f"{looked.hidden} {'process' if one else 'processes'} cannot be looked into"
    if first := [f"{named(pid)} (pid {pid})".lstrip() for pid in looked.unread[:UNREAD_NAMED]]:
        more = looked.hidden - len(first)
        text += f", {', '.join(first)}{f' and {more} more' if more > 0 else ''}"
    return (
        f"{text}: if {'it has' if one else 'one has'} a device open, that is not seen; nothing has"
        " to be done"
    )


def _left(binding: Binding) -> str:
    who: Sequence[str] = [f"{left.comm or 'pid'} {left.pid} {left.what}" for left in binding.left]
    return "; ".join(who) or "it could not be undone yet"
