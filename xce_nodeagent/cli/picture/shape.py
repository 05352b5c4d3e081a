"""What a picture consists of: boxes, texts and lines, with no word of how they are written."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

State = Literal["", "free", "held", "drained", "reserved", "unhealthy"]
Kind = Literal["socket", "numa", "root", "switch", "gpu", "nic", "other", "cell", "hub", "swatch"]


class Text(Struct, frozen=True):
    """A line of text. `y` is its baseline, `x` its start, or its end where `end` is set."""

    x: float
    y: float
    text: str
    size: float = 10
    bold: bool = False
    end: bool = False
    faint: bool = False


class Box(Struct, frozen=True, kw_only=True):
    """A box. Its texts and cells are placed from its own upper left corner.

    `title` is all that there is to say of it, for who points at it. `instance` is the id of the
    instance that it stands for; empty where it is a place.
    """

    kind: Kind
    x: float
    y: float
    width: float
    height: float
    state: State = ""
    texts: tuple[Text, ...] = ()
    cells: tuple[Box, ...] = ()
    title: str = ""
    instance: str = ""


class Wire(Struct, frozen=True):
    """A line from point to point, only across and down. `kind`: pcie, nvlink, xgmi, socket."""

    kind: str
    points: tuple[tuple[float, float], ...]
    bus: bool = False
    """A line that many share; where others meet it there is a dot."""
    weight: int = 1
    """How many links it stands for: more are thicker."""
    title: str = ""


class Picture(Struct, frozen=True, kw_only=True):
    """All of it. `title` and `description` are for who cannot see it."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]
    dots: tuple[tuple[float, float], ...] = ()
    texts: tuple[Text, ...] = ()
    title: str = ""
    description: str = ""
