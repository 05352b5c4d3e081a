"""A fleet as a table. It fits a terminal of 80 columns, and shows of a large fleet what counts.

A row for each node where a screen has room for them. Where it has not: nodes that are alike in one
row, and those that somebody should look at. Nothing but a terminal has a height or a width: a pipe
gets every node, each in a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from rich.text import Text

from xce_nodeagent.cli.fleet.grid import Cell, Column, Line, cell, fitted, plain, width
from xce_nodeagent.cli.fleet.order import Group, exceptional, few, groups, shape
from xce_nodeagent.cli.fleet.reason import STYLES, age, reasons, why
from xce_nodeagent.cli.fleet.view import FleetView, NodeView, Summary, Tally, added, counted
from xce_nodeagent.cli.table import rendered

ENDLESS = 1 << 20
"""Columns of what is no terminal."""

_HIDDEN = ("ports",)  # in the numbers at the top, no column
_NAMED = 3  # faults of no node that are told


class Page(Struct, frozen=True, kw_only=True):
    """What a table is written on: columns, and lines; None where it has no end.

    `now` is the time that ages are told by, in seconds since the epoch.
    """

    columns: int
    lines: int | None = None
    now: float
    wide: bool = False
    every: bool = False
    """Every node has a row, and no row is left out."""


def written(view: FleetView, nodes: Sequence[NodeView], page: Page) -> str:
    """Give a fleet as it is printed: colours, and ends of lines, are for a terminal."""
    return printed(table(view, nodes, page), page)


def printed(lines: Iterable[Line], page: Page) -> str:
    """Give lines as they are printed."""
    if page.lines is None:
        return "".join(f"{plain(line)}\n" for line in lines)
    return rendered(styled(lines), at_least=page.columns if page.wide else 0)


def styled(lines: Iterable[Line]) -> Text:
    """Give lines as rich shows them."""
    return Text("\n").join(Text.assemble(*line) for line in lines)


def table(view: FleetView, nodes: Sequence[NodeView], page: Page) -> list[Line]:
    """Give the lines of a fleet; `nodes` are those that are wanted, in their order."""
    head = heading(view, nodes)
    above = _high(head, page)
    if page.every or page.lines is None or len(nodes) + above + 2 < page.lines:
        asked = page.wide or len(nodes) < len(view.nodes)
        told = reasons(nodes, page.now, every=asked, wide=page.wide)
        return [*head, *_rows(nodes, page), *([(), *told] if told else [])]
    room = page.lines - above - 4
    found = groups(nodes)
    if len(found) > max(room // 2, 4):
        found = groups(nodes, by_block=False)
    shown = found[: max(room - 3, 1)]
    lines = [*head, *_group_rows(shown, page)]
    if len(shown) < len(found):
        lines.append(cell(f"and {len(found) - len(shown)} kinds more"))
    ill = exceptional(nodes)
    left = page.lines - above - len(shown) - 1 - 5
    if ill and left > 0:
        lines += [(), *_exceptions(few(ill, left), page)]
        if left < len(ill):
            more = counted(len(ill) - left, "node")
            lines.append(cell(f"and {more} more: --unhealthy, --stale"))
    return [*lines, cell("nodes that are alike are in one row; --all shows each", "dim")]


def _high(lines: Iterable[Line], page: Page) -> int:
    """Give how many lines of the terminal these take."""
    return sum(max(1, -(-width(line) // page.columns)) for line in lines)


def heading(view: FleetView, nodes: Sequence[NodeView]) -> list[Line]:
    """Give the lines above a table: how old it is, and the fleet in numbers."""
    lines = []
    if view.outdated:
        lines.append(cell(f"OUT OF DATE: {view.outdated}", "bold red"))
    lines += _summary(view.summary)
    if len(nodes) < len(view.nodes):
        lines.append(cell(f"shown: {len(nodes)} of {counted(len(view.nodes), 'node')}"))
    lines += [cell(f"in the store: {fault}", "red") for fault in view.faults[:_NAMED]]
    return [*lines, ()]


def _summary(told: Summary) -> list[Line]:
    nodes = told.nodes
    first = [(f"{counted(nodes.total, 'node')}: {nodes.available:,} available", "bold")]
    for count, word, style in (
        (nodes.unavailable, "unavailable", "magenta"),
        (nodes.faulty, "faulty", "bold red"),
        (nodes.two_agents, "claimed by two agents", "bold red"),
        (nodes.unhealthy, "with unhealthy instances", "red"),
    ):
        if count:
            first += [(", ", ""), (f"{count:,} {word}", style)]
    first.append((f"; {counted(told.jobs, 'job')}", ""))
    lines: list[Line] = [tuple(first)]
    wide = max((len(one.type) for one in told.instances), default=0)
    digits = max((len(f"{one.total:,}") for one in told.instances), default=0)
    for one in told.instances:
        parts = [(f"  {one.type:{wide}}  {one.total:{digits},}: {one.free:,} free", "")]
        parts.append((f", {one.held:,} held", ""))
        for count, word, style in (
            (one.unhealthy, "unhealthy", "red"),
            (one.drained, "drained", "yellow"),
            (one.reserved, "reserved", "cyan"),
            (one.divided, "divided", "cyan"),
            (one.away, "out of reach", "magenta"),
        ):
            if count:
                parts += [(", ", ""), (f"{count:,} {word}", style)]
        lines.append(tuple(parts))
    return lines


def _who(nodes: Sequence[NodeView]) -> list[Column]:
    columns = [
        Column("NODE", [cell(node.name) for node in nodes], names=True),
        Column("STATE", [cell(node.state, STYLES[node.state]) for node in nodes]),
    ]
    if any(node.block for node in nodes):
        columns.append(Column("BLOCK", [cell(node.block) for node in nodes], 3, names=True))
    return columns + _by_type([node.instances for node in nodes])


def _rows(nodes: Sequence[NodeView], page: Page) -> list[Line]:
    if not nodes:
        return [cell("no node")]
    what = [cell(shape(node)) for node in nodes]
    short = [cell(shape(node, short=True)) for node in nodes]
    columns = [
        *_who(nodes),
        Column("JOBS", [cell(str(len(node.jobs))) for node in nodes], 4),
        Column("WHAT", what, 1, short),
        Column("CHANGED", [cell(age(node.reported, page.now)) for node in nodes], 5),
    ]
    return fitted(columns, page.columns)


def _exceptions(nodes: Sequence[NodeView], page: Page) -> list[Line]:
    told = [cell(why(node, page.now)) for node in nodes]
    return fitted([*_who(nodes), Column("WHY", told, 1, told)], page.columns)


def _by_type(rows: Sequence[Sequence[Tally]]) -> list[Column]:
    """Make a column for each type, `free/all for jobs`.

    The first stays, the last go first; one with something unhealthy goes after all that is well.
    """
    summed = [{one.type: one for one in added(tallies)} for tallies in rows]
    kinds = added(tally for tallies in rows for tally in tallies)
    shown = [one.type for one in kinds if one.usable and one.type not in _HIDDEN]
    ill = {one.type for one in kinds if one.unhealthy}
    return [
        Column(
            kind.upper(),
            [_free(row.get(kind)) for row in summed],
            0 if at == 0 else 2 if kind in ill else 10 + at,
        )
        for at, kind in enumerate(shown)
    ]


def _free(tally: Tally | None) -> Cell:
    if tally is None or not tally.usable:
        return ()
    told = f"{tally.free}/{tally.usable}"
    return ((told, ""), ("!", "red")) if tally.unhealthy else cell(told)


def _group_rows(alike: Sequence[Group], page: Page) -> list[Line]:
    columns = []
    if any(group.block for group in alike):
        columns.append(Column("BLOCK", [cell(group.block) for group in alike], names=True))
    what = [cell(group.shape) for group in alike]
    short = [cell(group.short) for group in alike]
    columns += [
        Column("NODES", [cell(str(group.nodes)) for group in alike]),
        Column("STATE", [_states(group) for group in alike], 6),
        *_by_type([group.instances for group in alike]),
        Column("JOBS", [cell(str(group.jobs)) for group in alike], 4),
        Column("WHAT, EACH", what, 1, short),
    ]
    return fitted(columns, page.columns)


def _states(group: Group) -> Cell:
    told = [
        part
        for state, count in group.states
        if state != "ok"
        for part in ((", ", ""), (f"{count} {state}", STYLES[state]))
    ]
    return tuple(told[1:]) if told else cell("ok", STYLES["ok"])
