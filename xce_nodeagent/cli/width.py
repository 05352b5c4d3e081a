"""The width of a terminal. Nothing else has one: in a pipe or a file every line is whole."""

from __future__ import annotations

import re
import shutil
import sys

NARROWEST = 40
"""Columns of a terminal for which lines are not made any shorter."""


def room() -> int | None:
    """Say how many columns there are to write in; None where lines have no end."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return max(NARROWEST, shutil.get_terminal_size().columns)


def folded(line: str, indent: int, width: int | None) -> str:
    """Let a line go on below itself after `indent` columns: at a word's end, or after a comma."""
    if width is None or len(line) <= width:
        return line
    lines, rest = [], line
    while len(rest) > width:
        breaks = [at.end() for at in re.finditer(r"[ ,]", rest) if indent < at.end()]
        if not breaks:
            break
        end = max((at for at in breaks if at <= width), default=breaks[0])
        lines.append(rest[:end].rstrip())
        rest = " " * indent + rest[end:]
    return "\n".join([*lines, rest] if rest.strip() else lines)
