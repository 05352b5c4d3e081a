"""Lines of parts, each with a style, and columns of them. Pure, and quick: a pipe gets 10,000 rows.

A part is a text and a style as rich names them; only a terminal is shown the style.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, structs
from rich.cells import cell_len, set_cell_size

Part = tuple[str, str]
Line = tuple[Part, ...]
Cell = tuple[Part, ...]

_GAP = 2
_LEAST = 16  # columns: what is cut shorter tells nothing


class Column(Struct, frozen=True):
    """A column of a table.

    Where there is no room, those with the highest `drop` go first; one with 0 stays. `short` has
    the same in fewer words, for the one that is shortened before any goes. `names` are cut in
    their middle before that: they differ at their ends.
    """

    title: str
    cells: Sequence[Cell]
    drop: int = 0
    short: Sequence[Cell] = ()
    names: bool = False


def cell(text: str, style: str = "") -> Cell:
    """Give a cell, or a line, of one part."""
    return ((text, style),)


def plain(line: Line) -> str:
    """Give a line without its styles."""
    return "".join(text for text, _ in line)


def width(line: Line) -> int:
    """Give how many columns of a terminal a line takes."""
    return sum(len(text) if text.isascii() else cell_len(text) for text, _ in line)


def fitted(columns: Sequence[Column], room: int) -> list[Line]:
    """Give the lines of a table, its header first.

    Names keep two fifths of it, what has `short` is shortened, then other columns go, until the
    rest fits.
    """
    kept = list(columns)
    if _width(kept) > room:
        most = max(_LEAST, room * 2 // 5)
        kept = [_named(one, most) if one.names else one for one in kept]
    while (over := _width(kept) - room) > 0:
        at = next((at for at, one in enumerate(kept) if one.short), None)
        if at is not None and (short := _shortened(kept[at], over)) is not None:
            kept[at] = short
            break
        last = max(kept, key=lambda one: one.drop)
        if not last.drop:
            break
        kept.remove(last)
    return _lines(kept)


def _shortened(column: Column, over: int) -> Column | None:
    """Give a column that is so much narrower; None where it would tell nothing."""
    room = _wide(column) - over
    if room < min(max(map(width, column.short)), _LEAST):
        return None
    cells = [_cut(one, room) for one in column.short]
    return structs.replace(column, cells=cells, short=())


def _cut(one: Cell, room: int) -> Cell:
    text = plain(one)
    if cell_len(text) <= room:
        return one
    return cell(set_cell_size(text, room - 1).rstrip() + "…", one[0][1])


def _named(column: Column, room: int) -> Column:
    return structs.replace(column, cells=[_cut_within(one, room) for one in column.cells])


def _cut_within(one: Cell, room: int) -> Cell:
    """Cut a text in its middle, so that both its ends are seen."""
    text = plain(one)
    if cell_len(text) <= room:
        return one
    first = set_cell_size(text, room // 2).rstrip()
    last = set_cell_size(text[::-1], room - 1 - room // 2)[::-1].lstrip()
    return cell(f"{first}…{last}", one[0][1])


def _wide(column: Column) -> int:
    return max(cell_len(column.title), max(map(width, column.cells), default=0))


def _width(columns: Iterable[Column]) -> int:
    return sum(_wide(one) + _GAP for one in columns) - _GAP


def _lines(columns: Sequence[Column]) -> list[Line]:
    wide = [_wide(one) for one in columns]
    header = [cell(one.title, "bold") for one in columns]
    rows = zip(*(one.cells for one in columns), strict=True)
    return [_line(row, wide) for row in (header, *rows)]


def _line(row: Sequence[Cell], wide: Sequence[int]) -> Line:
    parts: list[Part] = []
    for one, room in zip(row, wide, strict=True):
        parts += one
        parts.append((" " * (room - width(one) + _GAP), ""))
    while parts and not parts[-1][0].strip():
        parts.pop()
    return tuple(parts)
