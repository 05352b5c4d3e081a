"""The lane between two rows of cards, with the links that go past PCI. Pure.

A bus has a box in the gutter at the left and runs from there across the lane; cards meet it from
above and from below. A pair of cards has a line of its own; pairs with as many links share a label.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, structs

from xce_nodeagent.cli.picture.cable import Bus, Pair
from xce_nodeagent.cli.picture.measure import fitted
from xce_nodeagent.cli.picture.shape import Box, Text, Wire

GUTTER = 150
_HUB, _HIGH, _BETWEEN = 136, 32, 8
_TRACK, _PAD, _APART = 8, 14, 4
_NAMES = {"nvlink": "NVLink", "xgmi": "XGMI"}


class Card(Struct, frozen=True):
    """Where the box of a card is, and on which side of the lane."""

    x: float
    width: float
    side: Literal["top", "bottom"]


class Lane(Struct):
    """What is in a lane, from its upper edge down."""

    boxes: list[Box]
    wires: list[Wire]
    dots: list[tuple[float, float]]
    height: float


class _Row(Struct):
    """A bus, or the pairs of one kind and count."""

    kind: str
    name: str
    about: str
    title: str
    bus: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()

    def cards(self) -> set[str]:
        return {*self.bus, *(p.one for p in self.pairs), *(p.other for p in self.pairs)}


def lane(
    buses: Sequence[Bus], pairs: Sequence[Pair], cards: Mapping[str, Card], left: float
) -> Lane:
    """Lay out the links; `left` is where the gutter begins."""
    rows = [row for row in _rows(buses, pairs) if row.cards() <= cards.keys()]
    rows.sort(key=lambda row: (_side(row, cards), row.kind, row.name, row.about))
    laying = _Laying(cards, rows, left)
    for row in rows:
        laying.pairs(row) if row.pairs else laying.bus(row)
    return laying.done()


def _rows(buses: Sequence[Bus], pairs: Sequence[Pair]) -> list[_Row]:
    rows = [_Row(bus.kind, bus.name, bus.about, bus.title, bus=bus.cards) for bus in buses]
    alike: dict[tuple[str, int], list[Pair]] = defaultdict(list)
    for pair in pairs:
        alike[pair.kind, pair.count].append(pair)
    for (kind, count), group in sorted(alike.items()):
        name = _NAMES.get(kind, kind)
        about = f"{count} link{'s' if count > 1 else ''} a pair"
        told = "\n".join(f"{pair.one} – {pair.other}" for pair in group)
        rows.append(_Row(kind, name, about, f"{name}, {about}\n{told}", pairs=tuple(group)))
    return rows


def _side(row: _Row, cards: Mapping[str, Card]) -> int:
    """Order rows so that few lines cross: what is above only comes first, what is below last."""
    sides = {cards[card].side for card in row.cards()}
    return {frozenset({"top"}): 0, frozenset({"bottom"}): 2}.get(frozenset(sides), 1)


class _Ports:
    """Where on its edge a card's next link begins. No two lines run in one place."""

    def __init__(self, cards: Mapping[str, Card], rows: Sequence[_Row]) -> None:
        self._cards = cards
        self._left: dict[str, int] = defaultdict(int)
        self._all: dict[str, int] = defaultdict(int)
        for row in rows:
            ends = [*row.bus, *(e for pair in row.pairs for e in (pair.one, pair.other))]
            for card in ends:
                self._all[card] += 1
        self._used: list[float] = []

    def next(self, card: str) -> float:
        box = self._cards[card]
        self._left[card] += 1
        x = box.x + box.width * self._left[card] / (self._all[card] + 1)
        x += _APART if box.side == "bottom" else -_APART
        while any(abs(x - used) < _APART - 1 for used in self._used):
            x += _APART - 1
        x = min(x, box.x + box.width - 1)
        self._used.append(x)
        return x


def _hub(row: _Row, left: float, y: float, height: float) -> Box:
    room = _HUB - 12
    return Box(
        kind="hub",
        x=left,
        y=y,
        width=_HUB,
        height=height,
        texts=(
            Text(6, 13, fitted(row.name, 10.5, room, bold=True), 10.5, bold=True),
            Text(6, 26, fitted(row.about, 9, room), 9),
        ),
        title=row.title,
    )


class _Laying:
    """Rows one below the other, then the lines to the cards."""

    def __init__(self, cards: Mapping[str, Card], rows: Sequence[_Row], left: float) -> None:
        self._cards, self._ports, self._left = cards, _Ports(cards, rows), left
        self._found = Lane([], [], [], 0)
        self._ends: list[tuple[Wire, str]] = []  # where a line to a card begins
        self._y: float = _PAD

    def bus(self, row: _Row) -> None:
        at = self._y + _HIGH / 2
        self._found.boxes.append(_hub(row, self._left, self._y, _HIGH))
        points = [(self._ports.next(card), card) for card in row.bus]
        across = ((self._left + _HUB, at), (max(points)[0], at))
        self._found.wires.append(Wire(row.kind, across, bus=True, title=row.title))
        self._ends += [(Wire(row.kind, ((x, at),)), card) for x, card in points]
        self._found.dots += [(x, at) for x, _ in points]
        self._y += _HIGH + _BETWEEN

    def pairs(self, row: _Row) -> None:
        """Give each pair a line across; those that do not meet may share one height."""
        found = []
        for pair in row.pairs:
            one, other = self._ports.next(pair.one), self._ports.next(pair.other)
            found.append((min(one, other), max(one, other), pair, one, other))
        ends: list[float] = []
        for start, end, pair, one, other in sorted(found):
            track = next((n for n, last in enumerate(ends) if last + _TRACK < start), len(ends))
            ends[track : track + 1] = [end]
            at = self._y + _TRACK / 2 + track * _TRACK
            told = f"{pair.one} – {pair.other}: {row.about}"
            self._found.wires.append(
                Wire(row.kind, ((start, at), (end, at)), weight=pair.count, title=told)
            )
            for card, x in ((pair.one, one), (pair.other, other)):
                self._ends.append((Wire(row.kind, ((x, at),), weight=pair.count), card))
        high = max(_HIGH, len(ends) * _TRACK)
        self._found.boxes.append(_hub(row, self._left, self._y, high))
        self._y += high + _BETWEEN

    def done(self) -> Lane:
        self._found.height = self._y + _PAD - (_BETWEEN if self._ends else 0)
        for wire, card in self._ends:
            (x, y), top = wire.points[0], self._cards[card].side == "top"
            points = ((x, 0.0 if top else self._found.height), (x, y))
            self._found.wires.append(structs.replace(wire, points=points))
        return self._found
