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
from xce_nodeagent.upstream.form import Form, form_of
from xce_nodeagent.upstream.packing import Unreadable
from xce_nodeagent.upstream.reading import taken
from xce_nodeagent.upstream.shape import USUAL, Shape, State

_COMPUTING = ("gpu", "accelerator")
_PARTS = ("mig", "mps")

_LONGEST = 400  # letters of anything that a node tells: the rest is rubbish


def text(told: str) -> str:
    """Give what a stranger wrote as a terminal may be shown it, and no more than a few lines."""
    return printable(told if len(told) <= _LONGEST else f"{told[:_LONGEST]}…")


class _Kind(Struct, frozen=True):
    """A shape as all its hosts are shown: of each row its type, its model and its parts."""

    form: Form
    types: tuple[str, ...]
    """Empty for what is held in parts: the reader counts that."""
    models: tuple[str, ...]
    parts: tuple[tuple[int, ...], ...]


class Survey:
    """Makes views of one fleet after the other."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._kinds: dict[str, _Kind | None] = {}
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
                type=one.type,
                state=state,
                reason=text(one.reason),
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
            cards="".join(_card(one, states) for one in states if one.type in _COMPUTING),
        )

    def _states(self, node: Node, ids: tuple[str, ...]) -> list[_One]:
        kind = self._kind(node)
        if kind is None or len(kind.types) != len(ids):  # the reader has told it as a fault
            return []
        held = taken(node.bindings, ids, kind.form)
        found = []
        for at, id_ in enumerate(ids):
            why = node.states.get(id_, USUAL)
            state = _state(why, cut=at in kind.form.cut, held=id_ in held, here=node.available)
            found.append(
                _One(id_, kind.types[at], kind.models[at], kind.parts[at], why.reason, state)
            )
        return found

    def _kind(self, node: Node) -> _Kind | None:
        if node.shape is None:
            return None
        if node.shape_hash not in self._kinds:
            self._kinds[node.shape_hash] = _kind_of(node.shape)
        return self._kinds[node.shape_hash]


class _One(Struct, frozen=True):
    """An instance of a node; `parts` are the places of its own."""

    id: str
    type: str
    model: str
    parts: tuple[int, ...]
    reason: str
    state: str


def _kind_of(shape: Shape) -> _Kind | None:
    try:
        form = form_of(shape)
    except Unreadable:  # which the reader has told as a fault
        return None
    parts: dict[int | None, list[int]] = {}
    for at, parent in enumerate(form.parents):
        if form.types[at] in _PARTS:
            parts.setdefault(parent, []).append(at)
    return _Kind(
        form=form,
        types=tuple("" if one in form.divisible else text(one) for one in form.types),
        models=tuple(text(str(cleaned(row.attributes.get("model", "")))) for row in shape.rows),
        parts=tuple(tuple(parts.get(at, ())) for at in range(len(shape.rows))),
    )


def _state(why: State, *, cut: bool, held: bool, here: bool) -> str:
    if not why.healthy:
        return "unhealthy"
    if why.drained:
        return "drained"
    if why.reserved:
        return "reserved"
    if cut:
        return "divided"
    if held:
        return "held"
    return "free" if here else "away"


def _kept(state: str) -> Literal["unhealthy", "drained"] | None:
    return "unhealthy" if state == "unhealthy" else "drained" if state == "drained" else None


def _card(one: _One, states: list[_One]) -> str:
    """Give the letter of a card; one that is cut or shared shows what its parts do."""
    if one.state in ("unhealthy", "drained") or not one.parts:
        return "r" if one.state == "divided" else one.state[0]  # d is for what is drained
    parts = [states[at].state for at in one.parts]
    if all(part == parts[0] for part in parts):
        return parts[0][0]
    return "p" if "held" in parts else "f" if "free" in parts else "u"


def _tallies(states: list[_One]) -> tuple[Tally, ...]:
    counted = Counter((one.type, one.model, one.state) for one in states if one.type)
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
    if told.agent == agent and told.boot_id:
        host = f"host {told.host}" if told.host else "a host"
        return text(f"boot {told.boot_id} of {host} with the same agent id")
    return text(told.who())


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
