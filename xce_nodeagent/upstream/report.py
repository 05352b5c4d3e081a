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
from typing import Any, NamedTuple

from msgspec import Struct, structs

from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.inventory import Inventory, Problem
from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.packing import Packed
from xce_nodeagent.upstream.shape import Shape, State, Static, join, split

VERSION = 1
"""Of the entries. A reader passes over fields and entries that it does not know; what an older
reader would misunderstand raises `Head.least`."""

HEAD, STATIC, PROBLEMS = "head", "static", "problems"
STATE, BINDING = "state/", "binding/"

LARGEST_BINDING = 512 << 10
"""Bytes of JSON: one that holds 10,000 ports has no more."""

Entries = Mapping[str, bytes]


class Head(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which report this is.

    `agent` is the agent's own id, which outlives its restarts. `number` rises by one with each
    report since the agent was `started`. `generation` and `digest` are the inventory's, `report` is
    the digest of all other entries. `least` is the oldest reader's version that understands it.
    `started` and `time` are of the node's clock, in seconds since the epoch, for people: clocks
    disagree.
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
    started: float = 0.0
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
    """All entries of a node, `head` among them, and the shape that it refers to by its hash.

    `inventory` and `bindings` are what it was made of.
    """

    head: Head
    entries: Entries
    shape: str
    shape_data: bytes
    inventory: Inventory
    bindings: tuple[Binding, ...]


class Delta(Struct, frozen=True, kw_only=True):
    """From one report to the next. `after` is the digest before; empty from nothing at all."""

    after: str
    head: Head
    puts: Entries
    deletes: tuple[str, ...]


class Series:
    """The reports of an agent, one after the other.

    Of what is the same object as it was in the report before nothing is made again: a binding that
    changes among a thousand costs what one costs. For one thread at a time.
    """

    def __init__(self, *, agent: str, program: str = "", started: float = 0.0) -> None:
        self._agent = agent
        self._program = program
        self._started = started
        self._host: _Host | None = None
        self._held: dict[int, _Bound] = {}

    def next(self, inventory: Inventory, bindings: Iterable[Binding]) -> Report:
        """Make a report; its number and its time are not filled in (`numbered`)."""
        if self._host is None or self._host.inventory is not inventory:
            self._host = _host(inventory)
        host, before = self._host, self._held
        bindings = tuple(bindings)
        # Who was made where another was has its id, so the object is kept with it.
        held = {
            id(one): known
            if (known := before.get(id(one))) and known.binding is one
            else _bound(one)
            for one in bindings
        }
        self._held = held
        entries = {**host.entries, **{one.name: one.entry for one in held.values()}}
        head = Head(
            node=inventory.node,
            agent=self._agent,
            boot_id=inventory.boot_id,
            generation=inventory.generation,
            digest=inventory.digest,
            schema=inventory.schema,
            counters=inventory.counters,
            report=digest_of({name: one.digest for name, one in entries.items()}),
            started=self._started,
            program=self._program,
        )
        return Report(
            head=head,
            entries={HEAD: packing.pack(head), **{n: one.data for n, one in entries.items()}},
            shape=host.shape.digest,
            shape_data=host.shape.data,
            inventory=inventory,
            bindings=bindings,
        )


def report(
    inventory: Inventory, bindings: Iterable[Binding], *, agent: str, program: str = ""
) -> Report:
    """Make the report of a node; its number and its time are not filled in (`numbered`).

    The same inventory and bindings give the same entries, byte for byte before deflating.
    """
    return Series(agent=agent, program=program).next(inventory, bindings)


class _Host(NamedTuple):
    """The entries of an inventory."""

    inventory: Inventory
    shape: Packed
    entries: dict[str, Packed]


class _Bound(NamedTuple):
    """The entry of a binding."""

    binding: Binding
    name: str
    entry: Packed


def _host(inventory: Inventory) -> _Host:
    parts = split(inventory)
    shape = packing.packed(parts.shape)
    entries = {STATIC: packing.packed(structs.replace(parts.static, shape=shape.digest))}
    if inventory.problems:
        entries[PROBLEMS] = packing.packed(Problems(inventory.problems))
    for name, state in parts.states.items():
        entries[f"{STATE}{name}"] = packing.packed(state)
    return _Host(inventory, shape, entries)


def _bound(binding: Binding) -> _Bound:
    name = f"{BINDING}{binding.job}/{binding.attempt}"
    return _Bound(binding, name, packing.packed(held(binding)))


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


def limit(name: str) -> int:
    """Give how many bytes of JSON an entry may have."""
    if name == HEAD or name.startswith(STATE):
        return packing.SMALL
    return LARGEST_BINDING if name.startswith(BINDING) else packing.LARGEST


def digest(entries: Entries) -> str:
    """Give the digest of all entries but the head."""
    return digest_of({n: packing.digest(data) for n, data in entries.items() if n != HEAD})


def digest_of(sums: Mapping[str, str]) -> str:
    """Give the digest of all entries but the head, given the digest of each."""
    lines = (f"{name}\0{one}\n" for name, one in sorted(sums.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def difference(before: Report | None, after: Report) -> Delta:
    """Give what leads from one report to another. The head is always among what is put."""
    old: Entries = before.entries if before else {}
    return Delta(
        after=before.head.report if before else "",
        head=after.head,
        puts={name: data for name, data in after.entries.items() if old.get(name) != data},
        deletes=tuple(sorted(old.keys() - after.entries.keys())),
    )


def inventory_of(entries: Entries, shape: Shape) -> Inventory:
    """Put a node's inventory together from its entries. Raise packing.Unreadable, or ValueError."""
    head = packing.unpack(entries[HEAD], Head, limit(HEAD))
    states = {
        name.removeprefix(STATE): packing.unpack(data, State, limit(name))
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
