"""A fleet as a table. It fits a terminal of 80 columns, and shows of a large fleet what counts.

A row for each node where a screen has room for them. Where it has not: nodes that are alike in one
row, and those that somebody should look at. Nothing but a terminal has a height or a width: a pipe
gets every node, each in a line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text

from xce_nodeagent.cli.fleet.order import Group, exceptional, groups, shape
from xce_nodeagent.cli.fleet.view import (
    FleetView,
    NodeState,
    NodeView,
    Summary,
    Tally,
    Wrong,
    added,
)
from xce_nodeagent.cli.session import run_of
from xce_nodeagent.cli.table import in_columns

STYLES: dict[NodeState, str] = {
    "ok": "green", "drained": "yellow", "unhealthy": "red", "faulty": "bold red",
    "stale": "magenta", "two agents": "bold red", "unreadable": "bold red",
}  # fmt: skip
_HIDDEN = ("ports",)  # in the numbers at the top, no column
_NAMED = 3  # instances of a node and a reason that are named
_REASONS = 8  # nodes whose reasons are told
_LEAST_WHAT = 16  # columns: a model that is cut shorter tells nothing
_GAP = 2


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


class _Column(Struct, frozen=True):
    title: str
    cells: list[Text]
    drop: int = 0
    """Where there is no room the columns of the highest number go first; 0 stays."""
    short: tuple[Text, ...] = ()
    """The same in fewer words."""


def table(view: FleetView, nodes: Sequence[NodeView], page: Page) -> list[Text]:
    """Give the lines of a fleet; `nodes` are those that are wanted, in their order."""
    head = heading(view, nodes)
    if page.every or page.lines is None or len(nodes) + len(head) + 2 < page.lines:
        return [*head, *_rows(nodes, page), *reasons(nodes, page)]
    room = page.lines - len(head) - 4
    found = groups(nodes)
    if len(found) > max(room // 2, 4):
        found = groups(nodes, by_block=False)
    lines = [*head, *_group_rows(found, page)]
    ill = exceptional(nodes)
    if ill:
        shown = ill[: max(page.lines - len(lines) - 5, 5)]
        lines += [Text(), *_exceptions(shown, page)]
        if len(shown) < len(ill):
            lines.append(Text(f"and {_nodes(len(ill) - len(shown))} more: --unhealthy, --stale"))
    lines.append(Text("nodes that are alike are in one row; --all shows each", style="dim"))
    return lines


def heading(view: FleetView, nodes: Sequence[NodeView]) -> list[Text]:
    """Give the lines above a table: how old it is, and the fleet in numbers."""
    lines = []
    if view.outdated:
        lines.append(Text(f"OUT OF DATE: {view.outdated}", style="bold red"))
    lines += _summary(view.summary)
    if len(nodes) < len(view.nodes):
        lines.append(Text(f"shown: {len(nodes)} of {_nodes(len(view.nodes))}"))
    lines += [Text(f"in the store: {fault}", style="red") for fault in view.faults[:_NAMED]]
    return [*lines, Text()]


def _summary(told: Summary) -> list[Text]:
    nodes = told.nodes
    first = Text(f"{_nodes(nodes.total)}: {nodes.available} available", style="bold")
    for count, word, style in (
        (nodes.unavailable, "unavailable", "magenta"),
        (nodes.faulty, "faulty", "bold red"),
        (nodes.unhealthy, "with unhealthy instances", "red"),
    ):
        if count:
            first.append(", ").append(f"{count} {word}", style=style)
    jobs = f"{told.jobs} job{'' if told.jobs == 1 else 's'}"
    first.append(f"; {jobs}")
    lines = [first]
    width = max((len(one.type) for one in told.instances), default=0)
    digits = max((len(str(one.total)) for one in told.instances), default=0)
    for one in told.instances:
        line = Text(f"  {one.type:{width}}  {one.total:{digits}}: {one.free} free, {one.held} held")
        for state, style in (
            ("unhealthy", "red"), ("drained", "yellow"), ("reserved", "cyan"), ("away", "magenta"),
        ):  # fmt: skip
            if count := getattr(one, state):
                word = "out of reach" if state == "away" else state
                line.append(", ").append(f"{count} {word}", style=style)
        lines.append(line)
    return lines


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def _rows(nodes: Sequence[NodeView], page: Page) -> list[Text]:
    if not nodes:
        return [Text("no node")]
    columns = [
        _Column("NODE", [Text(node.name) for node in nodes]),
        _Column("STATE", [Text(node.state, style=STYLES[node.state]) for node in nodes]),
    ]
    if any(node.block for node in nodes):
        columns.append(_Column("BLOCK", [Text(node.block) for node in nodes], 3))
    columns += _by_type([node.instances for node in nodes])
    columns += [
        _Column("JOBS", [Text(str(len(node.jobs)), justify="right") for node in nodes], 4),
        _Column(
            "WHAT",
            [Text(shape(node)) for node in nodes],
            1,
            tuple(Text(shape(node, short=True)) for node in nodes),
        ),
        _Column("CHANGED", [Text(age(node.reported, page.now)) for node in nodes], 5),
    ]
    return _fitted(columns, page)


def _exceptions(nodes: Sequence[NodeView], page: Page) -> list[Text]:
    columns = [
        _Column("NODE", [Text(node.name) for node in nodes]),
        _Column("STATE", [Text(node.state, style=STYLES[node.state]) for node in nodes]),
    ]
    if any(node.block for node in nodes):
        columns.append(_Column("BLOCK", [Text(node.block) for node in nodes], 3))
    why = [Text(_why(node, page.now)) for node in nodes]
    columns += [*_by_type([node.instances for node in nodes]), _Column("WHY", why, 1, tuple(why))]
    return _fitted(columns, page)


def _why(node: NodeView, now: float) -> str:
    """Say what is wrong with a node in a line; the whole of it is told where it has a row."""
    first = next((one for one in node.wrong if one.state == "unhealthy"), None)
    told = [*node.faults]
    if not node.available:
        told.append(f"no sign of life; its last change was {age(node.reported, now) or 'never'}")
    if first is not None:
        more = sum(one.state == "unhealthy" for one in node.wrong) - 1
        told.append(f"{first.type}: {first.reason or 'unhealthy'}{f', {more} more' * bool(more)}")
    return "; ".join(told)


def _by_type(rows: Sequence[Sequence[Tally]]) -> list[_Column]:
    """Make a column for each type, `free/all for jobs`; the first stays, the last go first."""
    summed = [{one.type: one for one in added(tallies)} for tallies in rows]
    kinds = added(tally for tallies in rows for tally in tallies)
    shown = [one.type for one in kinds if one.usable and one.type not in _HIDDEN]
    return [
        _Column(kind.upper(), [_free(row.get(kind)) for row in summed], 10 + at if at else 0)
        for at, kind in enumerate(shown)
    ]


def _free(tally: Tally | None) -> Text:
    if tally is None or not tally.usable:
        return Text()
    text = Text(f"{tally.free}/{tally.usable}")
    if tally.unhealthy:
        text.append("!", style="red")
    return text


def _group_rows(found: Iterable[Group], page: Page) -> list[Text]:
    alike = list(found)
    columns = []
    if any(group.block for group in alike):
        columns.append(_Column("BLOCK", [Text(group.block) for group in alike]))
    columns += [
        _Column("NODES", [Text(str(group.nodes)) for group in alike]),
        _Column("STATE", [_states(group) for group in alike]),
        *_by_type([group.instances for group in alike]),
        _Column("JOBS", [Text(str(group.jobs)) for group in alike], 4),
        _Column(
            "WHAT, EACH",
            [Text(group.shape) for group in alike],
            1,
            tuple(Text(group.short) for group in alike),
        ),
    ]
    return _fitted(columns, page)


def _states(group: Group) -> Text:
    told = [
        Text(f"{count} {state}", style=STYLES[state])
        for state, count in group.states
        if state != "ok"
    ]
    return Text(", ").join(told) if told else Text("ok", style=STYLES["ok"])


def _fitted(columns: list[_Column], page: Page) -> list[Text]:
    """Let columns go until the others fit; the one that says what a node is, is shortened."""
    kept = list(columns)
    while _width(kept) > page.columns:
        what = next((at for at, one in enumerate(kept) if one.drop == 1), None)
        if what is not None:
            full = kept[what]
            short = kept[what] = _Column(full.title, list(full.short), 1, full.short)
            room = _wide(short) - (_width(kept) - page.columns)
            if room >= min(_wide(short), _LEAST_WHAT):
                kept[what] = _Column(full.title, [_cut(cell, room) for cell in short.cells], 1)
                break
            kept[what] = full
        last = max(kept, key=lambda one: one.drop)
        if not last.drop:
            break
        kept.remove(last)
    rows = list(zip(*(one.cells for one in kept), strict=True))
    grid = in_columns([one.title for one in kept], rows)
    return [_stripped(line) for line in grid.split("\n")]


def _stripped(line: Text) -> Text:
    line.rstrip()
    return line


def _wide(column: _Column) -> int:
    return max(cell_len(column.title), *(cell.cell_len for cell in column.cells))


def _width(columns: Sequence[_Column]) -> int:
    return sum(map(_wide, columns)) + _GAP * (len(columns) - 1)


def _cut(cell: Text, room: int) -> Text:
    if cell.cell_len > room:
        cell = cell.copy()
        cell.truncate(room, overflow="ellipsis")
    return cell


def reasons(nodes: Iterable[NodeView], page: Page) -> list[Text]:
    """Say what is wrong with nodes, the worst first; what many have in common is said once."""
    ill = [node for node in exceptional(tuple(nodes)) if node.faults or node.wrong]
    shown = ill if page.wide or page.every else ill[:_REASONS]
    lines = [line for node in shown for line in _reasons(node, wide=page.wide)]
    if len(shown) < len(ill):
        lines.append(Text(f"and {_nodes(len(ill) - len(shown))} more: --wide tells of all"))
    return [Text(), *lines] if lines else []


def _reasons(node: NodeView, *, wide: bool) -> Iterable[Text]:
    style = STYLES[node.state]
    for fault in node.faults:
        yield Text.assemble(f"{node.name}: ", (fault, style))
    alike: dict[tuple[str, str, str], list[Wrong]] = defaultdict(list)
    for one in node.wrong:
        alike[one.type, one.state, one.reason].append(one)
    for (kind, state, why), several in alike.items():
        named = several if wide else several[:_NAMED]
        names = ", ".join(one.id for one in named)
        more = f" and {len(several) - len(named)} more" if len(named) < len(several) else ""
        yield Text.assemble(
            f"{node.name}: {kind} {names}{more}: ",
            (state, "red" if state == "unhealthy" else "yellow"),
            f": {why}" if why else "",
        )


_AGES: tuple[tuple[float, float, str], ...] = (
    (120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h"), (float("inf"), 86_400, "d"),
)  # fmt: skip


def age(then: float | None, now: float) -> str:
    """Say how long ago something was; clocks of nodes disagree, and none is ahead of ours here."""
    if then is None:
        return ""
    seconds = max(0.0, now - then)
    size, word = next((size, word) for below, size, word in _AGES if seconds < below)
    return f"{seconds / size:.0f} {word} ago"


def detail(node: NodeView, inventory: Callable[[], str], page: Page) -> list[Text | str]:
    """Give all of one node. `inventory` gives the table of its instances, empty for none."""
    title = Text.assemble((node.name, "bold"), ": ", (node.state, STYLES[node.state]))
    changed = age(node.reported, page.now)
    facts = [
        ("block", node.block),
        ("changed", changed and f"{changed}, by its clock"),
        ("agent", node.program),
    ]
    lines: list[Text | str] = [title]
    lines += [f"  {name:8} {value}" for name, value in facts if value]
    lines += [Text(f"  fault    {fault}", style="red") for fault in node.faults]
    for job in node.jobs:
        holds = ", ".join(job.instances) or "nothing"
        lines.append(f"  job      {run_of({'job': job.job, 'attempt': job.attempt})}"
                     f" {job.state}: {holds}")  # fmt: skip
    if told := inventory():
        lines += ["", told.rstrip("\n")]
    return lines
