"""The layout of a picture: an inventory becomes boxes and lines. Pure.

Two sockets stand as on a board: one at the top, one at the bottom upside down, their cards facing
each other over a lane that has the links. So every line runs across free ground, down or along, and
none goes through a box.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any, Literal

from msgspec import convert, structs

from xce_nodeagent.cli.picture.band import Band, band, width
from xce_nodeagent.cli.picture.cable import cables
from xce_nodeagent.cli.picture.caption import device
from xce_nodeagent.cli.picture.foot import described, foot, head, numbered
from xce_nodeagent.cli.picture.lane import GUTTER, Card, lane
from xce_nodeagent.cli.picture.shape import Box, Picture, Text, Wire
from xce_nodeagent.cli.picture.site import Place, places
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory

MARGIN = 24
_ONE_BAND = 960
"""Up to this width all places stand side by side, where no links join their cards."""
_SHEET = 1400
"""Of what is wider, words are hard to read on a sheet of paper."""
_LEAST = 640  # a picture is wide enough for its words


def layout(value: Mapping[str, Any]) -> Picture:
    """Lay out an inventory, as `inventory --json` prints it."""
    inventory = convert(value, Inventory)
    instances = inventory.instances
    buses, pairs = cables(inventory.topology.get("links", ()), instances)
    linked = {card for bus in buses for card in bus.cards}
    linked |= {end for pair in pairs for end in (pair.one, pair.other)}
    notes = numbered(instances)
    parts = _parts(instances)
    rails = inventory.topology.get("rails", {}).get("gpus", {})
    boxes = {
        one.id: device(one, parts.get(one.id, ()), notes, rails.get(one.id, -1))
        for one in instances
    }
    top, bottom = _banded(places(inventory.topology, instances, linked), linked)
    upper = band(top, linked, lambda one: boxes[one.id])
    lower = band(bottom, linked, lambda one: boxes[one.id], turned=True)
    left = MARGIN + (GUTTER if linked else 0)
    inner = max(upper.width, lower.width, _LEAST - left)
    cards = _cards(upper, "top", left, linked) | _cards(lower, "bottom", left, linked)
    between = lane(buses, pairs, cards, MARGIN)
    if not (cards or lower.boxes):
        between.height = 0
    across = left - MARGIN + inner
    above = head(inventory, MARGIN, across)
    drawn = _Drawn()
    drawn.add(above, 0, 0)
    y = above.height
    drawn.add(upper, left, y)
    drawn.add(between, 0, y + upper.height)
    drawn.add(lower, left, y + upper.height + between.height)
    y += upper.height + between.height + lower.height
    beside = MARGIN
    if (wire := _between_sockets(upper, lower, above.height, y)) is not None:
        drawn.wires.append(
            structs.replace(wire, points=tuple((left + a, b) for a, b in wire.points))
        )
        beside += 12
    below = foot(inventory, notes, sorted({wire.kind for wire in drawn.wires}), MARGIN, across)
    drawn.add(below, 0, y + MARGIN / 2)
    return Picture(
        width=left + inner + beside,
        height=y + MARGIN / 2 + below.height + MARGIN / 2,
        boxes=tuple(drawn.boxes),
        wires=tuple(drawn.wires),
        dots=tuple(drawn.dots),
        texts=tuple(drawn.texts),
        title=f"{inventory.node}: inventory",
        description=described(inventory),
    )


def _parts(instances: Sequence[Instance]) -> dict[str, list[Instance]]:
    """Give what each instance is cut into, slices of slices among them."""
    known = {one.id: one for one in instances}
    found: dict[str, list[Instance]] = {}
    for one in instances:
        above, seen = one, {one.id}
        while above.parent in known and above.parent not in seen:
            above = known[above.parent]
            seen.add(above.id)
        if above is not one:
            found.setdefault(above.id, []).append(one)
    return found


def _banded(found: Sequence[Place], linked: Collection[str]) -> tuple[list[Place], list[Place]]:
    """Part the places: those of the first sockets at the top, the others at the bottom."""
    wide = width(found, linked)
    if len(found) == 1 and wide > _SHEET and len(found[0].within) > 1:
        return _folded(found[0], linked)
    if len(found) < 2 or (not linked and wide <= _ONE_BAND):
        return list(found), []
    sockets = [place for place in found if place.has_cpus]
    half = -(-len(sockets) // 2)
    top, bottom = sockets[:half], sockets[half:]
    # What is near no socket goes where there is more room.
    for place in (place for place in found if not place.has_cpus):
        narrow = top if width(top, linked) <= width(bottom, linked) or not bottom else bottom
        narrow.insert(0, place)
    return top, bottom


def _folded(place: Place, linked: Collection[str]) -> tuple[list[Place], list[Place]]:
    """Draw one place as two, because a sheet of paper has an end."""
    half = min(
        range(1, len(place.within)),
        key=lambda at: max(width(place.within[:at], linked), width(place.within[at:], linked)),
    )
    first, second = copy(place), copy(place)
    first.within, second.within = place.within[:half], place.within[half:]
    first.devices = ()
    second.lines = (f"{place.lines[0]}, further on", *place.lines[1:])
    second.has_cpus = False
    return [first], [second]


def _cards(
    part: Band, side: Literal["top", "bottom"], left: float, linked: Collection[str]
) -> dict[str, Card]:
    return {
        box.instance: Card(left + box.x, box.width, side)
        for box in part.boxes
        if box.instance in linked
    }


def _between_sockets(upper: Band, lower: Band, top: float, bottom: float) -> Wire | None:
    """Join the last socket of both bands along the right edge, where nothing else is."""
    if upper.last is None or lower.last is None:
        return None
    edge = max(upper.width, lower.width) + 12
    start, end = (
        (box.x + box.width, at + box.y + box.height / 2)
        for box, at in ((upper.last, top), (lower.last, bottom - lower.height))
    )
    return Wire("socket", (start, (edge, start[1]), (edge, end[1]), end))


class _Drawn:
    """What there is so far, each where it stands in the picture."""

    def __init__(self) -> None:
        self.boxes: list[Box] = []
        self.wires: list[Wire] = []
        self.texts: list[Text] = []
        self.dots: list[tuple[float, float]] = []

    def add(self, part: Any, x: float, y: float) -> None:
        """Add all that is in a part, moved to where the part begins."""
        self.boxes += [structs.replace(one, x=one.x + x, y=one.y + y) for one in part.boxes]
        self.wires += [
            structs.replace(one, points=tuple((a + x, b + y) for a, b in one.points))
            for one in part.wires
        ]
        self.texts += [
            structs.replace(one, x=one.x + x, y=one.y + y) for one in getattr(part, "texts", ())
        ]
        self.dots += [(a + x, b + y) for a, b in getattr(part, "dots", ())]
