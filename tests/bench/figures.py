"""Figures: what was measured, beside its floor and its target; as a table and as JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ENOUGH_FOR_P99 = 1000
"""Samples below which a p99 is the luck of ten."""


def p50(samples: Sequence[float]) -> float:
    """Give the median."""
    return statistics.median(samples)


def p99(samples: Sequence[float]) -> float:
    """Give the value that one in a hundred is above."""
    return sorted(samples)[math.ceil(0.99 * len(samples)) - 1]


@dataclass(frozen=True)
class Figure:
    """One measured value. Where there is a floor the target is a ratio to it, else a value."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    target: float | None = None
    samples: int = 1
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Give how many times the floor it is."""
        return self.value / self.floor if self.floor else None

    @property
    def verdict(self) -> str:
        """Say whether it holds, and otherwise by how much it misses."""
        if self.target is None:
            return ""
        judged = self.value if self.ratio is None else self.ratio
        if judged <= self.target:
            return "met"
        return f"missed by {100 * (judged / self.target - 1):.0f} %"

    def document(self) -> dict[str, Any]:
        """Give it as the file has it."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "floor": None if self.floor is None else round(self.floor, 4),
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "target": self.target,
            "samples": self.samples,
            "note": self.note,
        }


def latency(
    name: str,
    product: Sequence[float],
    floor: Sequence[float],
    targets: tuple[float | None, float | None],
    note: str = "",
) -> list[Figure]:
    """Give NAME_p50, and NAME_p99 where both sides have samples enough."""
    found = [
        Figure(f"{name}_p50", p50(product), "ms", p50(floor), targets[0], len(product), note),
    ]
    if min(len(product), len(floor)) >= ENOUGH_FOR_P99:
        tail = Figure(f"{name}_p99", p99(product), "ms", p99(floor), targets[1], len(product), note)
        found.append(tail)
    return found


def write(path: Path, figures: Sequence[Figure]) -> None:
    """Write the list of figures."""
    path.write_text(json.dumps([one.document() for one in figures], indent=1) + "\n", "utf-8")


def show(console: Console, figures: Sequence[Figure], missing: Sequence[str]) -> None:
    """Print the table, and what could not be measured with its reason."""
    table = Table(title="What it costs, beside the same by hand (the floor)", title_justify="left")
    table.add_column("name", no_wrap=True)
    for column in ("product", "floor", "ratio", "target", "n"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for one in figures:
        colour = {"": "", "met": "green"}.get(one.verdict, "red")
        target = "" if one.target is None else f"{one.target:g}"
        table.add_row(
            one.name,
            f"{_short(one.value)} {one.unit}",
            "" if one.floor is None else _short(one.floor),
            "" if one.ratio is None else f"{one.ratio:.2f}",
            target and (f"{target} {one.unit}" if one.ratio is None else f"{target} x"),
            str(one.samples),
            f"[{colour}]{one.verdict}[/]" if colour else one.verdict,
        )
    console.print(table)
    notes: dict[str, list[str]] = {}
    for one in figures:
        if one.note:
            notes.setdefault(one.note, []).append(one.name)
    for note, names in notes.items():
        console.print(f"  {', '.join(names)}: {note}", highlight=False, markup=False)
    for reason in missing:
        console.print(f"  not measured: {reason}", highlight=False, markup=False)


def _short(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"
