"""A band: places side by side, each a bar above all that is in it. Pure.

Below a place's bar hang the places within it, then its own instances in columns, along a line that
is theirs alone. Cards with links are the last of their column, and all end where the band ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct, structs

from xce_nodeagent.cli.picture.caption import WIDE
from xce_nodeagent.cli.picture.measure import fitted
from xce_nodeagent.cli.picture.shape import Box, Text, Wire
from xce_nodeagent.cli.picture.site import Place
from xce_nodeagent.model.instance import Instance

_SPINE = 12  # a column's own line, left of its boxes
_GAP, _BETWEEN, _DROP = 12, 6, 12  # between places; boxes of a column; bars
_ROWS, _MANY = 4, 16  # boxes of a column; of more than so many, twice as many
_STUB = 14  # where a line meets a box, from its upper edge


class Band(Struct):
    """What is in a band, from its upper left corner. `last` is the bar of its last socket."""

    boxes: list[Box]
    wires: list[Wire]
    width: float
    height: float
    last: Box | None = None


def width(places: Sequence[Place], linked: Collection[str]) -> float:
    """Give the width of a band of places."""
    return sum(_wide(place, linked) for place in places) + _GAP * max(len(places) - 1, 0)


def band(
    places: Sequence[Place],
    linked: Collection[str],
    drawn: Callable[[Instance], Box],
    *,
    turned: bool = False,
) -> Band:
    """Lay out places side by side. `drawn` makes the box of an instance, at the origin.

    `turned`: with the bars at the bottom. The boxes themselves stay upright.
    """
    laying = _Laying(linked, drawn, turned=turned)
    laying.top = max((_deep(place) for place in places), default=0)
    laying.height = laying.top + max((laying.high(place) for place in places), default=0)
    x, before = 0.0, None
    for place in places:
        laying.place(place, x, 0)
        if before is not None and before.has_cpus and place.has_cpus:
            y = _bar_height(place) / 2
            laying.wires.append(Wire("socket", ((x - _GAP, y), (x, y))))
        x += _wide(place, linked) + _GAP
        before = place
    found = Band(laying.boxes, laying.wires, max(x - _GAP, 0), laying.height)
    if before is not None and before.has_cpus:
        bars = [box for box in laying.boxes if box.y == 0 and not box.instance]
        found.last = max(bars, key=lambda box: box.x)
    return _upside_down(found) if turned else found


def _upside_down(band: Band) -> Band:
    def turned(box: Box) -> Box:
        return structs.replace(box, y=band.height - box.y - box.height)

    return Band(
        [turned(box) for box in band.boxes],
        [
            structs.replace(wire, points=tuple((x, band.height - y) for x, y in wire.points))
            for wire in band.wires
        ],
        band.width,
        band.height,
        band.last and turned(band.last),
    )


def columns(devices: Sequence[Instance], linked: Collection[str]) -> list[list[Instance]]:
    """Put the instances of one place in columns: a card with links ends its own."""
    cards = [one for one in devices if one.id in linked]
    rest = [one for one in devices if one.id not in linked]
    rows = _ROWS if len(rest) <= _MANY else 2 * _ROWS
    per = min(-(-len(rest) // len(cards)), rows - 1) if cards else 0
    found = [[*rest[at * per : (at + 1) * per], card] for at, card in enumerate(cards)]
    rest = rest[len(cards) * per :]
    if rest:
        many = -(-len(rest) // rows)
        each = -(-len(rest) // many)
        found += [rest[at : at + each] for at in range(0, len(rest), each)]
    return found


def _bar_height(place: Place) -> float:
    return 22 + 13 * (len(place.lines) - 1)


def _wide(place: Place, linked: Collection[str]) -> float:
    parts = [_wide(one, linked) for one in place.within]
    parts += [_SPINE + WIDE] * len(columns(place.devices, linked))
    return max(sum(parts) + _GAP * (len(parts) - 1), _SPINE + WIDE)


def _deep(place: Place) -> float:
    """Give how far the bars of a place go down; its instances begin below."""
    below = max((_deep(one) for one in place.within), default=0)
    return _bar_height(place) + _DROP + below


class _Laying:
    """Places are put one after the other; `top` is where instances begin."""

    def __init__(
        self, linked: Collection[str], drawn: Callable[[Instance], Box], *, turned: bool
    ) -> None:
        self._linked, self._drawn, self._turned = linked, drawn, turned
        self.boxes: list[Box] = []
        self.wires: list[Wire] = []
        self.top = self.height = 0.0

    def high(self, place: Place) -> float:
        """Give the height of the tallest column of a place."""
        own = (
            sum(self._drawn(one).height + _BETWEEN for one in column) - _BETWEEN
            for column in columns(place.devices, self._linked)
        )
        return max((*own, *map(self.high, place.within)), default=0)

    def place(self, place: Place, x: float, y: float) -> None:
        wide, high = _wide(place, self._linked), _bar_height(place)
        self.boxes.append(_bar(place, x, y, wide, high))
        for one in place.within:
            within = _wide(one, self._linked)
            middle = x + within / 2
            self.wires.append(Wire("pcie", ((middle, y + high), (middle, y + high + _DROP))))
            self.place(one, x, y + high + _DROP)
            x += within + _GAP
        for column in columns(place.devices, self._linked):
            self._column(column, x, y + high)
            x += _SPINE + WIDE + _GAP

    def _column(self, column: Sequence[Instance], x: float, above: float) -> None:
        ends = column[-1].id in self._linked
        if self._turned:  # what is read from top to bottom stays so
            column = [*column[:-1][::-1], column[-1]] if ends else column[::-1]
        boxes = [self._drawn(one) for one in column]
        y = self.top
        if ends:
            y = self.height - sum(box.height + _BETWEEN for box in boxes) + _BETWEEN
        spine, stub = x + _SPINE / 2, 0.0
        for box in boxes:
            self.boxes.append(structs.replace(box, x=x + _SPINE, y=y))
            stub = y + _STUB
            self.wires.append(Wire("pcie", ((spine, stub), (x + _SPINE, stub))))
            y += box.height + _BETWEEN
        self.wires.append(Wire("pcie", ((spine, above), (spine, stub))))


def _bar(place: Place, x: float, y: float, wide: float, high: float) -> Box:
    strong = place.kind in ("socket", "numa")
    size = 11 if strong else 9.5
    texts = [
        Text(
            8,
            15 + 13 * at,
            fitted(line, size if not at else 9.5, wide - 16, bold=strong and not at),
            size if not at else 9.5,
            bold=strong and not at,
        )
        for at, line in enumerate(place.lines)
    ]
    return Box(
        kind=place.kind, x=x, y=y, width=wide, height=high, texts=tuple(texts), title=place.title
    )
