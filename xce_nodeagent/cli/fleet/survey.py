"""From a fleet as the reader has it to what is shown of it. Pure.

What a shape says is worked out once for all hosts that have it, and a node that did not change is
not looked at again.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from msgspec import Struct, structs

from xce_nodeagent.cli.fleet.block import Block
from xce_nodeagent.cli.fleet.view import (
    WORST,
    FleetView,
    Job,
    NodeState,
    NodeView,
    Tally,
    Wrong,
    added,
    natural,
    summary,
)
from xce_nodeagent.model.name import cleaned, printable
from xce_nodeagent.upstream.claim import Live
from xce_nodeagent.upstream.fleet import Fleet, Node
from xce_nodeagent.upstream.shape import USUAL, Shape, State

_COMPUTING = ("gpu", "accelerator")
_PARTS = ("mig", "mps")

_LONGEST = 400  # letters of anything that a node tells: the rest is rubbish


def text(told: str) -> str:
    """Give what a stranger wrote as a terminal may be shown it, and no more than a few lines."""
    return printable(told if len(told) <= _LONGEST else f"{told[:_LONGEST]}…")


class _Row(Struct, frozen=True):
    """An instance as all hosts of a shape have it; other instances by their places."""

    type: str
    model: str
    overlaps: tuple[int, ...]
    parts: tuple[int, ...]
    cut: bool


class Survey:
    """Makes views of one fleet after the other."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._rows: dict[str, tuple[_Row, ...]] = {}
        self._nodes: dict[str, tuple[Node, NodeView]] = {}

    def view(self, fleet: Fleet, outdated: str = "") -> FleetView:
        """Give what is shown of a fleet. `outdated` says why it may be another by now."""
        known = self._nodes
        self._nodes = {}
        for name, node in fleet.nodes.items():
            before = known.get(name)
            shown = before[1] if before is not None and before[0] is node else self._node(node)
            self._nodes[name] = node, shown
        nodes = tuple(shown for _, shown in self._nodes.values())
        nodes = tuple(sorted(nodes, key=lambda node: natural(node.name)))
        return FleetView(
            cluster=fleet.cluster,
            revision=fleet.revision,
            digest=fleet.digest,
            outdated=text(outdated),
            faults=tuple(map(text, fleet.faults)),
            summary=summary(nodes),
            nodes=nodes,
        )

    def _node(self, node: Node) -> NodeView:
        head, static = node.head, node.static
        states = self._states(node, static.ids if static is not None else ())
        wrong = tuple(
            Wrong(
                id=text(one.id),
                type=one.row.type,
                state=state,
                reason=text(one.why.reason),
            )
            for one in states
            if (state := _kept(one.state))
        )
        return NodeView(
            name=text(node.name),
            block=text(self._block(node.name, static.attributes if static else {})),
            state=_worst(node, wrong),
            available=node.available,
            since=node.since or None,
            faults=tuple(map(text, node.faults)),
            rivals=tuple(_rival(one, head.agent if head else "") for one in node.rivals),
            boot_id=text(head.boot_id) if head else "",
            generation=text(head.generation) if head else "",
            digest=text(head.digest) if head else "",
            reported=head.time or None if head else None,
            program=text(head.program) if head else "",
            instances=(*_tallies(states), *_divisible(node)),
            jobs=tuple(
                Job(
                    job=text(one.job),
                    attempt=text(one.attempt),
                    state=text(one.state),
                    instances=tuple(map(text, one.instances)),
                )
                for one in node.bindings
            ),
            wrong=wrong,
            cards="".join(_card(one, states) for one in states if one.row.type in _COMPUTING),
        )

    def _states(self, node: Node, ids: tuple[str, ...]) -> list[_One]:
        rows = self._rows_of(node)
        if len(rows) != len(ids):  # the reader has told it as a fault
            return []
        held = {one for binding in node.bindings for one in binding.instances}
        taken = held.union(*(binding.excluded for binding in node.bindings))
        found = []
        for row, id_ in zip(rows, ids, strict=True):
            why = node.states.get(id_, USUAL)
            has = id_ in taken or any(ids[at] in held for at in row.overlaps)
            found.append(_One(id_, row, why, _state(row, why, held=has, here=node.available)))
        return found

    def _rows_of(self, node: Node) -> tuple[_Row, ...]:
        if node.shape is None:
            return ()
        if node.shape_hash not in self._rows:
            self._rows[node.shape_hash] = _rows(node.shape)
        return self._rows[node.shape_hash]


class _One(Struct, frozen=True):
    id: str
    row: _Row
    why: State
    state: str


def _rows(shape: Shape) -> tuple[_Row, ...]:
    """Read a shape's rows; those that are held in parts are counted by the reader."""
    divisible = {kind.name for kind in shape.types if kind.divisible}
    parts: dict[int, list[int]] = {}
    slices = set()
    for at, row in enumerate(shape.rows):
        if row.type in _PARTS and (parent := _place(row.parent, len(shape.rows))) is not None:
            parts.setdefault(parent, []).append(at)
            if row.type == "mig":
                slices.add(parent)
    return tuple(
        _Row(
            type="" if row.type in divisible else text(row.type),
            model=text(str(cleaned(row.attributes.get("model", "")))),
            overlaps=tuple(
                place for one in row.overlaps if (place := _place(one, len(shape.rows))) is not None
            ),
            parts=tuple(parts.get(at, ())),
            cut=at in slices,
        )
        for at, row in enumerate(shape.rows)
    )


def _place(reference: str | None, count: int) -> int | None:
    """Give the place that a reference as `#3` names (upstream/shape.py); None where it is none."""
    digits = (reference or "").removeprefix("#")
    if not (digits.isdecimal() and digits.isascii() and len(digits) < 10):
        return None
    return int(digits) if reference != digits and int(digits) < count else None


def _state(row: _Row, why: State, *, held: bool, here: bool) -> str:
    if not why.healthy:
        return "unhealthy"
    if why.drained:
        return "drained"
    if why.reserved or row.cut:
        return "reserved"
    if held:
        return "held"
    return "free" if here else "away"


def _kept(state: str) -> Literal["unhealthy", "drained"] | None:
    return "unhealthy" if state == "unhealthy" else "drained" if state == "drained" else None


def _card(one: _One, states: list[_One]) -> str:
    """Give the letter of a card; one that is cut or shared shows what its parts do."""
    if one.state in ("unhealthy", "drained") or not one.row.parts:
        return one.state[0]
    parts = [states[at].state for at in one.row.parts]
    if all(part == parts[0] for part in parts):
        return parts[0][0]
    return "p" if "held" in parts else "f" if "free" in parts else "u"


def _tallies(states: list[_One]) -> tuple[Tally, ...]:
    counted = Counter((one.row.type, one.row.model, one.state) for one in states if one.row.type)
    return added(
        (
            structs.replace(Tally(type=kind, model=model), **{state: count})
            for (kind, model, state), count in counted.items()
        ),
        by_model=True,
    )


def _divisible(node: Node) -> tuple[Tally, ...]:
    """Count what is held in parts as the reader does: by its parts."""
    kinds = node.shape.types if node.shape is not None else ()
    found = []
    for kind in kinds:
        count = node.totals.get(kind.name) if kind.divisible else None
        if count is None or not count.total:
            continue
        unhealthy = max(0, count.total - count.healthy)
        found.append(
            Tally(
                type=text(kind.name),
                total=count.total,
                free=count.free if node.available else 0,
                held=max(0, count.total - unhealthy - count.free),
                unhealthy=unhealthy,
                away=0 if node.available else count.free,
            )
        )
    return tuple(found)


def _rival(told: Live, agent: str) -> str:
    """Say who claims a name, and how that is told from the `agent` that has it."""
    also = ", which has the same id" if told.agent == agent else ""
    boot = f" (boot {told.boot_id}{also})" if told.boot_id else ""
    return text(f"agent {told.agent}{boot}")


def _worst(node: Node, wrong: tuple[Wrong, ...]) -> NodeState:
    found: set[NodeState] = {one.state for one in wrong}
    if node.faults:
        found.add("faulty")
    if node.rivals:
        found.add("two agents")
    if node.head is None or node.shape is None:
        found.add("unreadable")
    if not node.available:
        found.add("stale")
    return next((state for state in WORST if state in found), "ok")
