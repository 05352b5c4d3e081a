"""Which nodes are shown, in which order, and which are alike. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct

from xce_nodeagent.cli.fleet.view import WORST, NodeState, NodeView, Tally, added, natural


class Wanted(Struct, frozen=True, kw_only=True):
    """What a node must be to be shown: all of what is given here.

    `free` has types and how many instances of each must be free; `names` and `blocks` are globs,
    of which one must fit.
    """

    unhealthy: bool = False
    stale: bool = False
    free: tuple[tuple[str, int], ...] = ()
    names: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Say whether anything is asked for at all."""
        return self != Wanted()


def chosen(nodes: Iterable[NodeView], wanted: Wanted) -> tuple[NodeView, ...]:
    """Give the nodes that are wanted."""
    return tuple(node for node in nodes if _is(node, wanted))


def _is(node: NodeView, wanted: Wanted) -> bool:
    free: Counter[str] = Counter()
    for tally in node.instances:
        free[tally.type] += tally.free
    ill = bool(node.complaints) or any(one.state == "unhealthy" for one in node.wrong)
    return (
        not (wanted.unhealthy and not ill)
        and not (wanted.stale and node.available)
        and all(free[kind] >= count for kind, count in wanted.free)
        and (not wanted.names or any(fnmatchcase(node.name, one) for one in wanted.names))
        and (not wanted.blocks or any(fnmatchcase(node.block, one) for one in wanted.blocks))
    )


def _sum(state: str) -> Callable[[NodeView], Any]:
    """Most first, of what is counted first: its cards, before its NICs."""
    return lambda node: tuple(-getattr(tally, state) for tally in added(node.instances))


KEYS: dict[str, Callable[[NodeView], Any]] = {
    "name": lambda node: natural(node.name),
    "state": lambda node: WORST.index(node.state),
    "block": lambda node: natural(node.block),
    "shape": lambda node: natural(shape(node)),
    "free": _sum("free"),
    "held": _sum("held"),
    "unhealthy": lambda node: -sum(one.state == "unhealthy" for one in node.wrong),
    "jobs": lambda node: -len(node.jobs),
    "changed": lambda node: -(node.reported or 0),
}
"""What nodes can be sorted by; what is most comes first, and of equal ones the name decides."""


def ordered(
    nodes: Iterable[NodeView], key: str = "name", *, reverse: bool = False
) -> tuple[NodeView, ...]:
    """Sort nodes by one of `KEYS`."""
    by_name = sorted(nodes, key=lambda node: natural(node.name))
    return tuple(sorted(by_name, key=KEYS[key], reverse=reverse))


def shape(node: NodeView, *, short: bool = False) -> str:
    """Say what a node has for jobs to compute with: `8 NVIDIA H100 80GB HBM3`."""
    cards = [one for one in node.instances if one.type not in ("nic", "ports") and one.usable]
    if not cards:
        return "no cards" if node.instances else ""
    return ", ".join(f"{one.total} {_kind(one, short=short)}" for one in cards)


def _kind(tally: Tally, *, short: bool) -> str:
    if tally.type in ("mig", "mps") or not tally.model:  # their card has said its model
        return tally.type
    return tally.model.removeprefix("NVIDIA ").removeprefix("AMD ") if short else tally.model


class Group(Struct, frozen=True, kw_only=True):
    """Nodes that are alike: in one block, of one shape."""

    block: str
    shape: str
    short: str
    nodes: int
    states: tuple[tuple[NodeState, int], ...]
    instances: tuple[Tally, ...]
    jobs: int


def groups(nodes: Iterable[NodeView], *, by_block: bool = True) -> tuple[Group, ...]:
    """Put nodes that are alike together, by block and shape or by shape alone."""
    alike: dict[tuple[str, str], list[NodeView]] = {}
    for node in nodes:
        alike.setdefault((node.block if by_block else "", shape(node)), []).append(node)
    return tuple(
        Group(
            block=block,
            shape=what,
            short=shape(members[0], short=True),
            nodes=len(members),
            states=tuple(
                (state, count)
                for state in WORST
                if (count := sum(node.state == state for node in members))
            ),
            instances=added(tally for node in members for tally in node.instances),
            jobs=len({(job.job, job.attempt) for node in members for job in node.jobs}),
        )
        for (block, what), members in sorted(
            alike.items(), key=lambda one: (natural(one[0][0]), natural(one[0][1]))
        )
    )


def exceptional(nodes: Sequence[NodeView]) -> tuple[NodeView, ...]:
    """Give the nodes that somebody should look at, the worst first."""
    return ordered((node for node in nodes if node.state not in ("ok", "drained")), "state")


def few(nodes: Sequence[NodeView], count: int) -> tuple[NodeView, ...]:
    """Give so many of the exceptional nodes, of each state alike, in the order that they have."""
    seen: Counter[str] = Counter()
    rounds = []
    for at, node in enumerate(nodes):
        rounds.append((seen[node.state], at))
        seen[node.state] += 1
    return tuple(nodes[at] for at in sorted(at for _, at in sorted(rounds)[: max(count, 0)]))
