"""Which node gets a job, and which of its instances: a choice over a fleet. Pure.

A node comes into question when it is available, when nothing of it is doubted, and when it has
enough that is free. Of those the one is taken that has the fewest left over, of the types that are
asked for first, then of all others, so that whole nodes stay for larger jobs and cards are not
taken up by who needs none; of equal ones the first by name. On that node placement chooses, by the
same rules as the node's own agent (`placement.choose`).

The same fleet and the same request give the same assignment, on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec import Struct, structs

from xce_nodeagent import placement
from xce_nodeagent.errors import AgentError, NeverFits, NoFitNow, NotReady, Unhealthy
from xce_nodeagent.model.request import Request, render
from xce_nodeagent.upstream.fleet import Count, Fleet, Node
from xce_nodeagent.upstream.form import form_of
from xce_nodeagent.upstream.reading import unavailable

AWAY = "no sign of life"
DOUBTED = "its report cannot be believed"

_NONE = Count()


class Assignment(Struct, frozen=True, kw_only=True):
    """A job's place, as `Prepare` takes it.

    `generation` is the node's when it reported: the agent there refuses with `stale` where one of
    the instances has changed since.
    """

    node: str
    instances: tuple[str, ...]
    generation: str


class Fits(Struct, frozen=True, kw_only=True):
    """The nodes that come into question, the best first, and how many others do not, by why.

    `never`: not one of the nodes could ever have so many, whatever it is doing now.
    """

    nodes: tuple[Node, ...]
    reasons: Mapping[str, int]
    never: bool


def fits(
    fleet: Fleet, request: Request, *, given: Mapping[str, Collection[str]] | None = None
) -> Fits:
    """Give the nodes that have as many as a request counts free; `given` as for `assign`."""
    counts = tuple(sorted(request.counts().items()))
    found: list[tuple[int, int, str, Node]] = []
    reasons: Counter[str] = Counter()
    never = True
    cut: dict[int, int] = {}
    for node in fleet.nodes.values():
        if given and node.name in given:
            node = _without(node, given[node.name])  # noqa: PLW2901  # as it is by now
        short = [kind for kind, count in counts if node.totals.get(kind, _NONE).free < count]
        if node.eligible and not short:
            asked = sum(node.totals[kind].free - count for kind, count in counts)
            found.append((asked, _beside(node, dict(counts)), node.name, node))
            never = False
            continue
        too_small = next((k for k, count in counts if _most(node, k, cut) < count), "")
        never = never and bool(too_small) and not node.faults
        if not node.available:
            reasons[AWAY] += 1
        elif node.faults:
            reasons[DOUBTED] += 1
        elif too_small:
            reasons[f"{too_small}: it has not so many"] += 1
        else:
            reasons[f"{short[0]}: not so many are free"] += 1
    ordered = sorted(found, key=lambda one: one[:3])
    told = dict(sorted(reasons.items()))
    return Fits(nodes=tuple(node for *_, node in ordered), reasons=told, never=never)


def assign(
    fleet: Fleet, request: Request, *, given: Mapping[str, Collection[str]] | None = None
) -> Assignment:
    """Choose a node and instances on it.

    `given` is what the caller has given away itself and does not see in the fleet yet, by node.
    Raise NoFitNow where no node has it free (`reasons` counts why), NeverFits where none ever
    could, BadRequest for what is not counted by instance.
    """
    possible = fits(fleet, request, given=given)
    reasons = Counter(possible.reasons)
    for node in possible.nodes:
        inventory = node.inventory
        if inventory is None or node.head is None:
            reasons[DOUBTED] += 1
            continue
        taken = unavailable(node, inventory, (given or {}).get(node.name, ()))
        try:
            choice = placement.choose(inventory, request, unavailable=taken)
        except (NoFitNow, NeverFits, NotReady, Unhealthy):
            # Types that are made of the same silicon.
            reasons["what is free cannot be had together"] += 1
            continue
        return Assignment(
            node=node.name, instances=choice.instances, generation=node.head.generation
        )
    raise _refusal(fleet, request, reasons, never=possible.never)


def _refusal(
    fleet: Fleet, request: Request, reasons: Mapping[str, int], *, never: bool
) -> AgentError:
    text = render(request)
    if not fleet.nodes:
        return NoFitNow(f"request {text}: there are no nodes in the store", reasons={})
    told = "; ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
    if never:
        return NeverFits(
            f"request {text}: none of {len(fleet.nodes)} nodes has so much: {told}",
            reasons=dict(reasons),
        )
    return NoFitNow(
        f"request {text}: none of {len(fleet.nodes)} nodes has it free now: {told}",
        reasons=dict(reasons),
    )


def _without(node: Node, given: Collection[str]) -> Node:
    """Give a node with fewer free: without what was given away since it reported."""
    inventory = node.inventory
    if inventory is None:
        return node
    before, after = unavailable(node, inventory), unavailable(node, inventory, given)
    sliced = {one.parent for one in inventory.instances if one.type == "mig"}
    gone = Counter(
        one.type
        for one in inventory.instances
        if one.id in after
        and one.id not in before
        and one.id not in sliced
        and one.healthy
        and not (one.drained or one.reserved)
    )
    totals = {
        kind: structs.replace(count, free=count.free - gone[kind], held=count.held + gone[kind])
        for kind, count in node.totals.items()
    }
    return structs.replace(node, totals=totals)


def _beside(node: Node, asked: Mapping[str, int]) -> int:
    """Count what is free of other types, as far as it is counted by instance."""
    divisible = {one.name for one in node.shape.types if one.divisible} if node.shape else set()
    return sum(
        count.free
        for kind, count in node.totals.items()
        if kind not in asked and kind not in divisible
    )


def _most(node: Node, kind: str, cut: dict[int, int]) -> int:
    """Give how many a count could ever get; `cut` remembers of a shape its cards with slices."""
    total = node.totals.get(kind, _NONE).total
    if kind != "gpu" or node.shape is None:
        return total
    if id(node.shape) not in cut:
        cut[id(node.shape)] = len(form_of(node.shape).cut)
    return total - cut[id(node.shape)]
