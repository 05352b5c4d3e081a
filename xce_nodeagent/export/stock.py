"""The stock: how many instances there are, by type and by what each is there for now. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Literal, get_args

from msgspec import Struct

from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.inventory import Inventory

State = Literal[
    "free", "held", "excluded", "quarantined", "reserved", "unhealthy", "drained", "divided"
]

STATES: Final[tuple[State, ...]] = get_args(State)


class Stock(Struct, frozen=True):
    """Counts. In `states` each instance is in one state, so that the states of a type add up.

    The first of these that is so: `reserved` for the host, `quarantined` (released, and somebody
    still has it), `held` by a job, `excluded` because a job holds what overlaps it, `unhealthy`,
    `drained`, `divided` (a card that is cut into slices, and cannot be counted as a whole),
    `free`. Of what is held in parts (ports) the parts are counted. `unfit` has what is unhealthy
    or drained, whoever holds it.
    """

    states: Mapping[tuple[str, State], int]
    unfit: Mapping[tuple[str, Literal["unhealthy", "drained"]], int]


def stock(inventory: Inventory, bindings: Iterable[Binding]) -> Stock:
    """Count the instances of a host; `bindings` are the live ones."""
    held: set[str] = set()
    quarantined: set[str] = set()
    excluded: set[str] = set()
    parts: Counter[State] = Counter()
    for binding in bindings:
        waits = binding.state == "quarantined"
        (quarantined if waits else held).update(binding.instances)
        if not waits:
            excluded.update(binding.excluded, binding.leaving)
        parts["quarantined" if waits else "held"] += len(binding.plan.ports)
    taken = held | quarantined
    cut = {one.parent for one in inventory.instances if one.type == "mig"}
    states: Counter[tuple[str, State]] = Counter()
    unfit: Counter[tuple[str, Literal["unhealthy", "drained"]]] = Counter()
    for kind in {one.type for one in inventory.instances}:
        states.update({(kind, state): 0 for state in STATES})
        unfit.update({(kind, "unhealthy"): 0, (kind, "drained"): 0})
    for one in inventory.instances:
        if one.type in inventory.divisible:
            continue
        unfit[one.type, "unhealthy"] += not one.healthy
        unfit[one.type, "drained"] += one.drained
        state: State = "free"
        if one.reserved:
            state = "reserved"
        elif one.id in quarantined:
            state = "quarantined"
        elif one.id in held:
            state = "held"
        elif one.id in excluded or not taken.isdisjoint(one.overlaps):
            state = "excluded"
        elif not one.healthy:
            state = "unhealthy"
        elif one.drained:
            state = "drained"
        elif one.type == "gpu" and one.id in cut:
            state = "divided"
        states[one.type, state] += 1
    for kind in inventory.divisible:
        counts = inventory.counters.get(kind)
        if counts:
            _parts(states, kind, counts, parts)
            unfit[kind, "unhealthy"] = states[kind, "unhealthy"]
    return Stock(states, unfit)


def _parts(
    states: Counter[tuple[str, State]],
    kind: str,
    counts: Mapping[str, int],
    taken: Mapping[State, int],
) -> None:
    """Count what is held in parts, of which a host has one type."""
    total, sound = counts.get("total", 0), counts.get("healthy", 0)
    states[kind, "reserved"] = counts.get("reserved", 0)
    states[kind, "unhealthy"] = total - sound
    for state, count in taken.items():
        states[kind, state] = count
    states[kind, "free"] = max(0, sound - sum(taken.values()))
