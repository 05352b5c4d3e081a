"""A fleet by its switch blocks: where each node is drawn, and what it looks like. Pure.

Nodes are in rows, in the order of their names; a row's first name is beside it. Nodes that look
alike have one `Look`, which is drawn once: a fleet of 10,000 has a few hundred.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from xce_nodeagent.cli.fleet.view import WORST, NodeState, NodeView, Tally, added, natural
from xce_nodeagent.cli.picture.measure import width

CARD, GAP, EDGE = 8, 2, 4
"""A card's side, between cards, and between them and the node's frame."""
BETWEEN = 5
"""Between nodes."""
NAME = 8.5
"""The size of the names beside rows."""
_BAND = 12  # rows of an element: a page may end after it


class Look(Struct, frozen=True):
    """How a node is drawn: its state, and a letter for each card (view.py)."""

    state: NodeState
    cards: str

    @property
    def across(self) -> int:
        """Cards side by side: two rows of them, and never more than eight."""
        return min(max(-(-len(self.cards) // 2), 2), 8)

    @property
    def width(self) -> int:
        """The width of its frame."""
        return self.across * (CARD + GAP) - GAP + 2 * EDGE

    @property
    def height(self) -> int:
        """The height of its frame."""
        rows = max(-(-len(self.cards) // self.across), 2)
        return rows * (CARD + GAP) - GAP + 2 * EDGE

    def places(self) -> Iterable[tuple[str, int, int]]:
        """Give each card's letter, and where its upper left corner is."""
        for at, letter in enumerate(self.cards):
            down, right = divmod(at, self.across)
            yield letter, EDGE + right * (CARD + GAP), EDGE + down * (CARD + GAP)


class Spot(Struct, frozen=True):
    """A node, and where its frame's upper left corner is."""

    node: NodeView
    look: Look
    x: float
    y: float


class Band(Struct, frozen=True):
    """Rows of a block. `names` are the first of each row, and where their baselines begin."""

    width: float
    height: float
    spots: tuple[Spot, ...]
    names: tuple[tuple[str, float], ...]


class Block(Struct, frozen=True, kw_only=True):
    """A switch block, with its totals. `name` is empty for nodes of which nobody knows."""

    name: str
    nodes: int
    states: tuple[tuple[NodeState, int], ...]
    instances: tuple[Tally, ...]
    jobs: int
    bands: tuple[Band, ...]


def blocks(nodes: Iterable[NodeView]) -> tuple[Block, ...]:
    """Put nodes in their blocks; those of no block are the last."""
    members: dict[str, list[NodeView]] = {}
    for node in nodes:
        members.setdefault(node.block, []).append(node)
    order = sorted(members, key=lambda name: (not name, natural(name)))
    return tuple(_block(name, members[name]) for name in order)


def looks(every: Iterable[Block]) -> dict[Look, str]:
    """Name each look that there is."""
    found: dict[Look, str] = {}
    for block in every:
        for band in block.bands:
            for spot in band.spots:
                found.setdefault(spot.look, f"n{len(found)}")
    return found


def _block(name: str, nodes: list[NodeView]) -> Block:
    nodes = sorted(nodes, key=lambda node: natural(node.name))
    across = 8 if len(nodes) <= 64 else 16 if len(nodes) <= 512 else 24
    rows = [nodes[at : at + across] for at in range(0, len(nodes), across)]
    drawn = [Look(node.state, node.cards) for node in nodes]
    wide, high = max(look.width for look in drawn), max(look.height for look in drawn)
    beside = max(width(row[0].name, NAME) for row in rows) + BETWEEN
    return Block(
        name=name,
        nodes=len(nodes),
        states=tuple(
            (state, count)
            for state in WORST
            if (count := sum(node.state == state for node in nodes))
        ),
        instances=added(tally for node in nodes for tally in node.instances),
        jobs=len({(job.job, job.attempt) for node in nodes for job in node.jobs}),
        bands=tuple(
            _band(rows[at : at + _BAND], beside, wide, high) for at in range(0, len(rows), _BAND)
        ),
    )


def _band(rows: list[list[NodeView]], beside: float, wide: int, high: int) -> Band:
    names, spots = [], []
    for down, row in enumerate(rows):
        y = 1.0 + down * (high + BETWEEN)
        names.append((row[0].name, y + high / 2 + NAME / 3))
        for right, node in enumerate(row):
            spots.append(
                Spot(node, Look(node.state, node.cards), beside + right * (wide + BETWEEN), y)
            )
    return Band(
        width=max(spot.x for spot in spots) + wide + 1,
        height=len(rows) * (high + BETWEEN) - BETWEEN + 2,
        spots=tuple(spots),
        names=tuple(names),
    )
