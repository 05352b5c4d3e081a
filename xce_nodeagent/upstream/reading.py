"""From a node's entries to what a reader knows of it. Pure; whatever they are, nothing raises.

Anybody who may write to the store could have put anything there. What cannot be believed is a
fault of its node, in words; what can be read of the node is shown all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.fleet import Count, Node
from xce_nodeagent.upstream.form import Form
from xce_nodeagent.upstream.report import (
    BINDING,
    HEAD,
    PROBLEMS,
    STATE,
    STATIC,
    VERSION,
    Entries,
    Head,
    Held,
    Problems,
    limit,
)
from xce_nodeagent.upstream.shape import USUAL, State, Static

T = TypeVar("T")

MOST_FAULTS = 8
"""Faults of a node that are told; the rest are counted."""

MOST_CONFLICTS = 64
"""Bindings of a node that are told to hold what another one holds."""
_LONGEST = 200  # characters of a fault
_MOST_SHARED = 8 << 20  # bytes of JSON
_MOST = 1 << 63  # of anything that is counted


class Shared:
    """Gives one object for values that are equal: thousands of idle hosts have the same amounts."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], Any] = {}
        self._size = 0

    def one(self, what: str, value: T) -> T:
        """Give the value, or the equal one that was given before for the same thing."""
        told = what, msgspec.json.encode(value)
        known: T | None = self._known.get(told)
        if known is not None:
            return known
        self._size += len(told[1])
        if self._size > _MOST_SHARED:
            self._known.clear()  # rubbish, or a fleet that has moved on
            self._size = len(told[1])
        self._known[told] = value
        return value


def read(
    name: str, entries: Entries, forms: Callable[[str], Form | str], shared: Shared | None = None
) -> Node:
    """Read a node, all but its liveness.

    `forms` gives a shape by its hash, or says in words why there is none.
    """
    reading = _Reading(name, entries)
    shared = shared or Shared()
    head = reading.head()
    form: Form | None = None
    static = None
    if head is not None or HEAD not in entries:
        static = reading.static()
    if static is not None:
        told = forms(static.shape)
        if isinstance(told, str):
            reading.fault(told)
        elif not len(told.types) == len(static.ids) == len(static.own):
            reading.fault(
                f"static: {len(static.ids)} instances, but its shape has {len(told.types)}"
            )
        elif len(set(static.ids)) < len(static.ids):
            reading.fault("static: two instances have one id")
        else:
            form = told
    bindings = tuple(reading.bindings()) if reading.understood else ()
    states = dict(reading.states()) if reading.understood else {}
    reading.problems()
    if head is not None:
        head = structs.replace(head, counters=shared.one("counters", head.counters))
    totals: Mapping[str, Count] = {}
    if form is not None and static is not None:
        reading.held_twice(bindings, static.ids, form)
        counters = head.counters if head else {}
        totals = shared.one("totals", _totals(form, static.ids, states, bindings, counters))
    return Node(
        name=name,
        head=head,
        faults=reading.told(),
        bindings=bindings,
        totals=totals,
        states=states,
        entries=entries,
        shape_hash=static.shape if static is not None else "",
        shape=form.shape if form is not None else None,
    )


class _Reading:
    """One node, while it is read."""

    def __init__(self, name: str, entries: Entries) -> None:
        self._name = name
        self._entries = entries
        self._faults: list[str] = []
        self.understood = True

    def fault(self, text: str) -> None:
        self._faults.append(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")

    def told(self) -> tuple[str, ...]:
        """Give the faults in an order that does not depend on when they came."""
        every = sorted(set(self._faults))
        more = len(every) - MOST_FAULTS
        return (*every[:MOST_FAULTS], f"and {more} more faults") if more > 0 else tuple(every)

    def head(self) -> Head | None:
        if HEAD not in self._entries:
            self.fault("there is no head: no report of this node is whole")
            return None
        head = self._unpack(HEAD, Head)
        if head is None:
            return None
        if head.least > VERSION:
            self.understood = False
            self.fault(
                f"its report needs a reader of version {head.least}; this one has {VERSION}:"
                " update this program"
            )
        if head.node != self._name:
            self.fault(f"head: it is of node {head.node[:80]!r}")
        boot, _, number = head.generation.rpartition(":")
        if boot != head.boot_id or not (number.isdecimal() and len(number) < 19):
            self.fault(f"head: {head.generation[:80]!r} is no generation of boot {head.boot_id!r}")
        if head.number < 0:
            self.fault(f"head: number {head.number} is negative")
        for kind, counter in head.counters.items():
            amounts = counter.values() if isinstance(counter, dict) else (counter,)
            if not all(type(one) in (int, float) and 0 <= one < _MOST for one in amounts):
                self.fault(f"head: the counter of {kind[:40]!r} is no amount")
                head = structs.replace(head, counters={})
                break
        return head

    def static(self) -> Static | None:
        if not self.understood:
            return None
        if STATIC not in self._entries:
            self.fault("there is nothing static: its instances are not known")
            return None
        return self._unpack(STATIC, Static)

    def problems(self) -> None:
        if PROBLEMS in self._entries and self.understood:
            self._unpack(PROBLEMS, Problems)

    def states(self) -> Iterator[tuple[str, State]]:
        for name in sorted(self._entries):
            if name.startswith(STATE) and (state := self._unpack(name, State)) is not None:
                yield name.removeprefix(STATE), state

    def bindings(self) -> Iterator[Held]:
        for name in sorted(self._entries):
            if name.startswith(BINDING) and (held := self._unpack(name, Held)) is not None:
                if name != f"{BINDING}{held.job}/{held.attempt}":
                    self.fault(f"{name}: it is of job {held.job[:80]!r}")
                yield held

    def held_twice(self, bindings: tuple[Held, ...], ids: tuple[str, ...], form: Form) -> None:
        """Tell of instances, or of overlapping ones, that two bindings hold."""
        if len(bindings) < 2:
            return
        places = {one: at for at, one in enumerate(ids)}
        holder: dict[str, Held] = {}
        conflicts = 0
        for binding in bindings:
            instances = [
                one
                for one in dict.fromkeys(binding.instances)
                if (at := places.get(one)) is None or form.types[at] not in form.divisible
            ]
            # One for each binding. What is held already is found before anything that overlaps is
            # looked at, so each instance's overlaps are followed once.
            taken = next(filter(holder.__contains__, instances), None) or next(
                (
                    ids[other]
                    for one in instances
                    if (at := places.get(one)) is not None
                    for other in form.overlaps[at]
                    if ids[other] in holder
                ),
                None,
            )
            if taken is not None:
                self.fault(
                    f"{taken} is held by job {holder[taken].job!r} and by job {binding.job!r}"
                )
                conflicts += 1
                if conflicts == MOST_CONFLICTS:
                    return
            holder.update((one, binding) for one in binding.instances)

    def _unpack(self, name: str, kind: type[T]) -> T | None:
        try:
            return packing.unpack(self._entries[name], kind, limit(name))
        except packing.Unreadable as error:
            self.fault(f"{name}: {error}")
            return None


def _totals(
    form: Form,
    ids: tuple[str, ...],
    states: Mapping[str, State],
    bindings: tuple[Held, ...],
    counters: Mapping[str, object],
) -> dict[str, Count]:
    gone = taken(bindings, ids, form)
    found: dict[str, list[int]] = {}
    for at, kind in enumerate(form.types):
        if kind in form.divisible:
            continue
        count = found.setdefault(kind, [0, 0, 0, 0, 0, 0])
        state = states.get(ids[at], USUAL)
        if state.reserved:
            count[5] += 1
            continue
        away = ids[at] in gone
        count[0] += 1
        count[1] += state.healthy
        count[2] += state.healthy and not away and not state.drained and at not in form.cut
        count[3] += away
        count[4] += state.drained
    totals = {kind: Count(*count) for kind, count in found.items()}
    parts = sum(len(binding.ports) for binding in bindings)
    for kind in form.divisible:
        counter = counters.get(kind)
        if isinstance(counter, dict):
            total, sound = _amount(counter, "total"), _amount(counter, "healthy")
            totals[kind] = Count(total, sound, max(0, sound - parts), parts)
    return totals


def _amount(counter: Mapping[object, object], name: str) -> int:
    value = counter.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def taken(bindings: Iterable[Held], ids: Sequence[str], form: Form) -> frozenset[str]:
    """Give the ids of a host of a form that bindings take; see `unavailable`."""
    overlaps = ([ids[at] for at in places] for places in form.overlaps)
    return _taken(bindings, zip(ids, overlaps, strict=True))


def unavailable(node: Node, inventory: Inventory, given: Collection[str] = ()) -> frozenset[str]:
    """Give the ids that are held or quarantined, or overlap that now or when it was bound.

    `given` is held, too, by bindings that are not in the report yet.
    """
    return _taken(node.bindings, ((one.id, one.overlaps) for one in inventory.instances), given)


def _taken(
    bindings: Iterable[Held],
    instances: Iterable[tuple[str, Collection[str]]],
    given: Collection[str] = (),
) -> frozenset[str]:
    """Give what is taken of instances, which come with what they overlap."""
    held, excluded = set(given), set[str]()
    for binding in bindings:
        held.update(binding.instances)
        excluded.update(binding.excluded)
    if not held and not excluded:
        return frozenset()
    return frozenset(
        one
        for one, overlaps in instances
        if one in held or one in excluded or not held.isdisjoint(overlaps)
    )
