"""What is shown of a fleet: `xce.fleet/v1`, as `fleet --json` prints it. Values only.

Every instance is in one state, and what keeps it from a job goes before who has it, so that the
numbers of a tally add up to its total.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct, structs, to_builtins

SCHEMA = "xce.fleet/v1"

NodeState = Literal["ok", "drained", "unhealthy", "faulty", "stale", "two agents", "unreadable"]
"""`stale`: its lease has ended, nobody keeps what is told of it up to date. `unreadable`: its
inventory cannot be read; `faulty`: something else that the store has of it cannot be believed. `two
agents`: another living agent claims the name; jobs may go there all the same."""

WORST: tuple[NodeState, ...] = (
    "unreadable", "stale", "faulty", "two agents", "unhealthy", "drained", "ok",
)  # fmt: skip
"""Of several states a node shows the first."""

STATES = ("free", "held", "unhealthy", "drained", "reserved", "divided", "away")
"""Of an instance. `away`: free, on a node that is not available."""

FIRST = ("gpu", "mig", "mps", "accelerator", "nic")
"""The types that are shown first, in this order."""


class Tally(Struct, frozen=True, kw_only=True, gc=False):
    """How many instances of a type and model are in which state.

    `reserved`: no job gets it, it is the host's own. `divided`: a card that is cut into slices, and
    jobs get those.
    """

    type: str
    model: str = ""
    total: int = 0
    free: int = 0
    held: int = 0
    unhealthy: int = 0
    drained: int = 0
    reserved: int = 0
    divided: int = 0
    away: int = 0

    @property
    def usable(self) -> int:
        """Those that are there for jobs, whatever they do now."""
        return self.total - self.reserved - self.divided


class Wrong(Struct, frozen=True, kw_only=True):
    """An instance that no job gets, and why."""

    id: str
    type: str
    state: Literal["unhealthy", "drained"]
    reason: str


class Job(Struct, frozen=True, kw_only=True):
    """A binding, and what it holds."""

    job: str
    attempt: str
    state: str
    instances: tuple[str, ...]


class NodeView(Struct, frozen=True, kw_only=True):
    """A node. `reported` is when it last had something to tell, by its own clock, since the epoch.

    `since` is when it was without a sign of life at the latest, by the clock of who reads; null
    while it lives, and where it was looked at only once. `rivals` are other living agents that
    claim its name.

    `cards` has a letter for each card that computes, for the picture: f(ree), h(eld), p(artly
    held), u(nhealthy), d(rained), r(eserved), a(way).
    """

    name: str
    block: str = ""
    state: NodeState = "ok"
    available: bool = True
    since: float | None = None
    faults: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    boot_id: str = ""
    generation: str = ""
    digest: str = ""
    reported: float | None = None
    program: str = ""
    instances: tuple[Tally, ...] = ()
    jobs: tuple[Job, ...] = ()
    wrong: tuple[Wrong, ...] = ()
    cards: str = ""

    @property
    def complaints(self) -> tuple[str, ...]:
        """What is wrong with it as a whole, in words."""
        return (*self.faults, *(f"{rival} claims its name, too" for rival in self.rivals))


class NodeCounts(Struct, frozen=True, kw_only=True):
    """How many nodes there are.

    `faulty` ones have faults, `two_agents` rivals, `unhealthy` ones unhealthy instances.
    """

    total: int
    available: int
    unavailable: int
    faulty: int
    two_agents: int
    unhealthy: int


class Summary(Struct, frozen=True, kw_only=True):
    """A fleet in a few numbers; instances by type, over all models."""

    nodes: NodeCounts
    instances: tuple[Tally, ...]
    jobs: int


class FleetView(Struct, frozen=True, kw_only=True):
    """A fleet. `revision` is the store's, `digest` that of what all nodes reported.

    `outdated` says why this may not be how things are: the store is away. Empty where it is.
    `faults` tell of keys that are of no node. `summary` is of the whole fleet, whichever `nodes`
    were chosen.
    """

    schema: str = SCHEMA
    cluster: str = ""
    revision: int = 0
    digest: str = ""
    outdated: str = ""
    faults: tuple[str, ...] = ()
    summary: Summary
    nodes: tuple[NodeView, ...]


def summary(nodes: Iterable[NodeView]) -> Summary:
    """Count nodes and their instances."""
    every = tuple(nodes)
    available = sum(node.available for node in every)
    return Summary(
        nodes=NodeCounts(
            total=len(every),
            available=available,
            unavailable=len(every) - available,
            faulty=sum(bool(node.faults) for node in every),
            two_agents=sum(bool(node.rivals) for node in every),
            unhealthy=sum(any(one.state == "unhealthy" for one in n.wrong) for n in every),
        ),
        instances=added(tally for node in every for tally in node.instances),
        jobs=len({(job.job, job.attempt) for node in every for job in node.jobs}),
    )


def added(tallies: Iterable[Tally], *, by_model: bool = False) -> tuple[Tally, ...]:
    """Add tallies up by type, or by type and model; the types in the order of `FIRST`."""
    sums: dict[tuple[str, str], list[int]] = {}
    for one in tallies:
        counts = sums.setdefault((one.type, one.model if by_model else ""), [0] * len(STATES))
        for at, state in enumerate(STATES):
            counts[at] += getattr(one, state)
    return tuple(
        Tally(
            type=kind,
            model=model,
            total=sum(counts),
            **dict(zip(STATES, counts, strict=True)),
        )
        for (kind, model), counts in sorted(sums.items(), key=lambda one: rank(*one[0]))
    )


def rank(kind: str, model: str = "") -> tuple[int, str, str]:
    """Give the place of a type among the others."""
    return (FIRST.index(kind) if kind in FIRST else len(FIRST), kind, model)


def told(view: FleetView, nodes: Iterable[NodeView]) -> dict[str, Any]:
    """Give a fleet as it is printed as JSON, of these nodes; `summary` is of all of them."""
    shown = structs.replace(view, nodes=())
    return {**to_builtins(shown), "nodes": list(map(told_of, nodes))}


def told_of(node: NodeView) -> dict[str, Any]:
    """Give a node as it is printed as JSON: without what is for the picture alone."""
    value: dict[str, Any] = to_builtins(node)
    del value["cards"]
    return value


def counted(number: int, word: str) -> str:
    """Say how many there are."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """Give what names are sorted by: numbers in them as numbers, so that n9 goes before n10."""
    return tuple(
        (word, int(number or 0))
        for word, number in re.findall(r"(\D*)(\d{1,18})?", name)
        if word or number
    )
