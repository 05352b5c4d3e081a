"""What is wrong with nodes, in words, and all of one node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from xce_nodeagent.cli.fleet.grid import Line, cell
from xce_nodeagent.cli.fleet.order import exceptional
from xce_nodeagent.cli.fleet.view import Job, NodeState, NodeView, Wrong
from xce_nodeagent.cli.invocation import run_of

STYLES: Mapping[NodeState, str] = {
    "ok": "green", "drained": "yellow", "unhealthy": "red", "faulty": "bold red",
    "stale": "magenta", "two agents": "bold red", "unreadable": "bold red",
}  # fmt: skip

_RENAME = (
    "give one of the two hosts another ([agent] node), or stop its agent;"
    " if this one was booted anew just now, wait until its lease ends"
)
_NAMED = 3  # instances of a node and a reason that are named
_TOLD = 8  # nodes whose reasons are told

_AGES: tuple[tuple[float, float, str], ...] = (
    (120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h"), (float("inf"), 86_400, "d"),
)  # fmt: skip


def age(then: float | None, now: float) -> str:
    """Say how long ago something was; clocks of nodes disagree, and none is ahead of ours here."""
    if then is None:
        return ""
    return f"{lasted(now - then)} ago"


def lasted(seconds: float) -> str:
    """Say how long something takes."""
    seconds = max(0.0, seconds)
    size, word = next(((size, word) for below, size, word in _AGES if seconds < below), (1, "s"))
    return f"{seconds / size:.0f} {word}"


def why(node: NodeView, now: float) -> str:
    """Say what is wrong with a node in a line."""
    first = next((one for one in node.wrong if one.state == "unhealthy"), None)
    told = [*node.complaints, *away(node, now)]
    if first is not None:
        more = sum(one.state == "unhealthy" for one in node.wrong) - 1
        told.append(f"{first.type}: {first.reason or 'unhealthy'}{f', {more} more' * bool(more)}")
    return "; ".join(told)


def away(node: NodeView, now: float) -> tuple[str, ...]:
    """Say for how long there was no sign of life of a node; nothing where there is one."""
    if node.available:
        return ()
    since = f" for {lasted(now - node.since)}" if node.since else ""
    return (f"no sign of life{since}; changed {age(node.reported, now) or 'never'}",)


def reasons(nodes: Iterable[NodeView], now: float, *, every: bool, wide: bool) -> list[Line]:
    """Say what is wrong with nodes, the worst first.

    `every` one of them, or a few; `wide` names each instance, not a few of a reason.
    """
    known = tuple(nodes)
    worst = exceptional(known)
    named = {node.name for node in worst}
    rest = (node for node in known if node.name not in named)  # such as those with drained cards
    ill = [node for node in (*worst, *rest) if node.state != "ok"]
    shown = ill if every else ill[:_TOLD]
    lines = [line for node in shown for line in _reasons(node, now, wide=wide)]
    if len(shown) < len(ill):
        lines.append(cell(f"and {len(ill) - len(shown)} nodes more: --wide tells of all"))
    return lines


def _reasons(node: NodeView, now: float, *, wide: bool) -> Iterator[Line]:
    for complaint in (*node.complaints, *away(node, now)):
        yield ((f"{node.name}: ", ""), (complaint, STYLES[node.state]))
    alike: dict[tuple[str, str, str], list[Wrong]] = defaultdict(list)
    for one in node.wrong:
        alike[one.type, one.state, one.reason].append(one)
    for (kind, state, told), several in alike.items():
        named = several if wide else several[:_NAMED]
        names = ", ".join(one.id for one in named)
        more = f" and {len(several) - len(named)} more" if len(named) < len(several) else ""
        yield (
            (f"{node.name}: {kind} {names}{more}: ", ""),
            (state, "red" if state == "unhealthy" else "yellow"),
            (f": {told}" if told else "", ""),
        )


def detail(node: NodeView, now: float) -> list[Line]:
    """Give all that is known of one node, but its inventory."""
    changed = age(node.reported, now)
    facts = [
        ("block", node.block),
        ("changed", changed and f"{changed}, by its clock"),
        ("agent", node.program),
        *(("fault", fault) for fault in node.faults),
        *(("rival", f"{rival} claims its name, too: {_RENAME}") for rival in node.rivals),
        *(line for job in node.jobs for line in _job(job)),
    ]
    title = ((node.name, "bold"), (": ", ""), (node.state, STYLES[node.state]))
    return [title, *(cell(f"  {name:8} {value}") for name, value in facts if value), ()]


def _job(job: Job) -> Iterator[tuple[str, str]]:
    yield "job", f"{run_of({'job': job.job, 'attempt': job.attempt})}, {job.state}"
    for instance in job.instances:
        yield "", f"  {instance}"
