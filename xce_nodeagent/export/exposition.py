"""Prometheus' text format 0.0.4: metrics with their samples, and how they are written.

Names, units and suffixes follow Prometheus' conventions; what a name means, the caller says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from xce_nodeagent.model.histogram import BOUNDS, Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["gauge", "counter", "histogram"]
Labels = Mapping[str, str]
Value = float | int | Histogram

_LE: Final = (*(f'le="{bound}"' for bound in BOUNDS), 'le="+Inf"')


class Metric(Struct, frozen=True):
    """A metric, and its samples; those of a histogram are Histograms."""

    name: str
    help: str
    samples: Sequence[tuple[Labels, Value]]
    kind: Kind = "gauge"


def expose(metrics: Iterable[Metric]) -> str:
    """Give the exposition. A metric without samples has no line."""
    return "".join(line for metric in metrics if metric.samples for line in _lines(metric))


def _lines(metric: Metric) -> Iterator[str]:
    name = metric.name
    yield f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n"
    for labels, value in metric.samples:
        inside = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
        if not isinstance(value, Histogram):
            yield f"{name}{{{inside}}} {value}\n" if inside else f"{name} {value}\n"
            continue
        before = f"{inside}," if inside else ""
        counts = value.cumulative()
        for le, count in zip(_LE, counts, strict=True):
            yield f"{name}_bucket{{{before}{le}}} {count}\n"
        own = f"{{{inside}}}" if inside else ""
        yield f"{name}_sum{own} {value.sum}\n{name}_count{own} {counts[-1]}\n"


def escaped(text: str) -> str:
    """Escape a label's value: backslash, quote and newline, and nothing else.

    What is no character (half of a surrogate pair) cannot be written as UTF-8.
    """
    text = text.encode("utf-8", "replace").decode()
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
