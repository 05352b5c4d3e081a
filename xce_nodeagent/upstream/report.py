"""A node's report: its inventory and its bindings, as named entries. Pure.

    head                      which report this is: boot, generation, digests, number
    static                    what is the node's own, and its shape's hash
    problems                  what discovery could not find out; only where there is something
    state/INSTANCE            how an instance differs from what is usual; only where it does
    binding/JOB/ATTEMPT       a binding that is live

and, kept once for all nodes that have it, `shape` under its hash. A full report is all entries; a
delta those that changed, and the names of those that are gone, so that its size is that of the
change. Where entries are kept (a store's keys, a body of HTTP, a file) is a sink's business.

`Head.report` is the digest of all other entries. A delta names the digest that it starts from:
a receiver that has another one has missed something, and asks for the whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, structs

from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.inventory import Inventory, Problem
from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.shape import Shape, State, Static, join, split

VERSION = 1
"""Of the entries. A reader passes over fields and entries that it does not know; what an older
reader would misunderstand raises `Head.least`."""

HEAD, STATIC, PROBLEMS = "head", "static", "problems"
STATE, BINDING = "state/", "binding/"

Entries = Mapping[str, bytes]


class Head(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which report this is.

    `agent` is the agent's own id, which outlives its restarts. `number` rises by one with each
    report of an agent. `generation` and `digest` are the inventory's, `report` is the digest of
    all other entries. `least` is the oldest reader's version that understands it. `time` is the
    node's clock in seconds since the epoch, for people: clocks disagree.
    """

    version: int = VERSION
    least: int = 1
    node: str
    agent: str
    boot_id: str
    generation: str
    digest: str
    schema: str = ""
    counters: dict[str, Any] = {}
    report: str = ""
    number: int = 0
    time: float = 0.0
    program: str = ""


class Problems(Struct, frozen=True):
    """What discovery could not find out."""

    problems: tuple[Problem, ...] = ()


class Held(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A binding, as the scheduler needs it: what nobody else can get, and why.

    Nothing of the job's environment, and no path of the node, is in it.
    """

    job: str
    attempt: str = ""
    state: str
    instances: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    ports: dict[str, str] = {}
    uid: int | None = None
    generation: str = ""
    since: float = 0.0
    reason: str = ""
    doubtful: bool = False


class Report(Struct, frozen=True, kw_only=True):
    """All entries of a node, `head` among them, and the shape that it refers to."""

    head: Head
    entries: Entries
    shape: str
    shape_data: bytes


class Delta(Struct, frozen=True, kw_only=True):
    """From one report to the next. `after` is the digest before; empty from nothing at all."""

    after: str
    head: Head
    puts: Entries
    deletes: tuple[str, ...]


def report(
    inventory: Inventory, bindings: Iterable[Binding], *, agent: str, program: str = ""
) -> Report:
    """Make the report of a node; its number and its time are not filled in (`numbered`).

    The same inventory and bindings give the same entries, byte for byte before deflating.
    """
    parts = split(inventory)
    shape_data = packing.pack(parts.shape)
    shape = packing.digest(shape_data)
    entries = {STATIC: packing.pack(structs.replace(parts.static, shape=shape))}
    if inventory.problems:
        entries[PROBLEMS] = packing.pack(Problems(inventory.problems))
    for name, state in parts.states.items():
        entries[f"{STATE}{name}"] = packing.pack(state)
    for binding in bindings:
        entries[f"{BINDING}{binding.job}/{binding.attempt}"] = packing.pack(held(binding))
    head = Head(
        node=inventory.node,
        agent=agent,
        boot_id=inventory.boot_id,
        generation=inventory.generation,
        digest=inventory.digest,
        schema=inventory.schema,
        counters=inventory.counters,
        report=digest(entries),
        program=program,
    )
    return Report(
        head=head,
        entries={HEAD: packing.pack(head), **entries},
        shape=shape,
        shape_data=shape_data,
    )


def numbered(one: Report, number: int, time: float) -> Report:
    """Give the report with its number and its time in the head."""
    head = structs.replace(one.head, number=number, time=time)
    return structs.replace(one, head=head, entries={**one.entries, HEAD: packing.pack(head)})


def held(binding: Binding) -> Held:
    """Give what others may know of a binding."""
    return Held(
        job=binding.job,
        attempt=binding.attempt,
        state=binding.state,
        instances=binding.instances,
        excluded=tuple(sorted({*binding.excluded, *binding.leaving})),
        ports={str(hold.port): hold.name for hold in binding.plan.ports},
        uid=binding.uid,
        generation=binding.generation,
        since=binding.since,
        reason=binding.reason,
        doubtful=binding.doubtful,
    )


def digest(entries: Entries) -> str:
    """Give the digest of all entries but the head."""
    told = sorted(entries.items())
    sums = (f"{name}\0{packing.digest(data)}\n" for name, data in told if name != HEAD)
    return hashlib.sha256("".join(sums).encode()).hexdigest()


def difference(before: Report | None, after: Report) -> Delta:
    """Give what leads from one report to another. The head is always among what is put."""
    old: Entries = before.entries if before else {}
    return Delta(
        after=before.head.report if before else "",
        head=after.head,
        puts={name: data for name, data in after.entries.items() if old.get(name) != data},
        deletes=tuple(sorted(old.keys() - after.entries.keys())),
    )


def applied(entries: Entries, delta: Delta) -> dict[str, bytes]:
    """Give the entries after a delta; the caller has seen to it that they are those of `after`."""
    gone = frozenset(delta.deletes)
    return {**{name: data for name, data in entries.items() if name not in gone}, **delta.puts}


def inventory_of(entries: Entries, shape: Shape) -> Inventory:
    """Put a node's inventory together from its entries. Raise packing.Unreadable, or ValueError."""
    head = packing.unpack(entries[HEAD], Head)
    states = {
        name.removeprefix(STATE): packing.unpack(data, State)
        for name, data in entries.items()
        if name.startswith(STATE)
    }
    problems = Problems()
    if PROBLEMS in entries:
        problems = packing.unpack(entries[PROBLEMS], Problems)
    bare = Inventory(
        source="store",
        node=head.node,
        boot_id=head.boot_id,
        generation=head.generation,
        digest=head.digest,
        counters=head.counters,
        problems=problems.problems,
    )
    return join(shape, packing.unpack(entries[STATIC], Static), states, bare)
