"""How wide a text is, before anybody draws it.

The widths are those of DejaVu Sans, in thousandths of its size: of the fonts that the writers ask
for none is wider, so what fits here fits there.
"""

from __future__ import annotations

import unicodedata

_REGULAR = (
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337,
    636, 636, 636, 636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531,
    1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863, 748, 787,
    603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500,
    500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612,
    635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838,
)  # fmt: skip
_BOLD = (
    348, 456, 521, 838, 696, 1002, 872, 306, 457, 457, 523, 838, 380, 415, 380, 365,
    696, 696, 696, 696, 696, 696, 696, 696, 696, 696, 400, 400, 838, 838, 838, 580,
    1000, 774, 762, 734, 830, 683, 683, 821, 837, 372, 372, 775, 637, 995, 837, 850,
    733, 850, 770, 720, 682, 812, 774, 1103, 771, 724, 725, 457, 365, 457, 838, 500,
    500, 675, 716, 593, 716, 678, 435, 716, 712, 343, 343, 665, 343, 1042, 712, 687,
    716, 716, 493, 595, 478, 712, 652, 924, 645, 652, 582, 712, 365, 712, 838,
)  # fmt: skip
_OTHER = 1100  # letters of other alphabets and signs; the widest that are usual
_NARROW = {"·": 380, "–": 500, "×": 838, "…": 1000}


def width(text: str, size: float, *, bold: bool = False) -> float:
    """Give the width of a text, in the units of its size."""
    table = _BOLD if bold else _REGULAR
    return sum(_advance(char, table) for char in text) * size / 1000


def _advance(char: str, table: tuple[int, ...]) -> int:
    place = ord(char) - 32
    if 0 <= place < len(table):
        return table[place]
    if char in _NARROW:
        return _NARROW[char]
    return 2000 if unicodedata.east_asian_width(char) in "WF" else _OTHER


def fitted(text: str, size: float, room: float, *, bold: bool = False) -> str:
    """Give a text that fits; what is left out in its middle is `…`. Both ends tell the most."""
    if width(text, size, bold=bold) <= room:
        return text
    for kept in range(len(text) - 1, 0, -1):
        short = f"{text[: (kept + 1) // 2]}…{text[len(text) - kept // 2 :]}"
        if width(short, size, bold=bold) <= room:
            return short
    return "…" if width("…", size, bold=bold) <= room else ""


def wrapped(text: str, size: float, room: float) -> list[str]:
    """Give the lines of a text that goes on below itself; a word that is too long is cut."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if width(longer, size) <= room:
            line = longer
            continue
        if line:
            lines.append(line)
        line = fitted(word, size, room)
    return [*lines, line] if line else lines
