"""A picture as SVG 1.1: one file, with nothing in it that is fetched from anywhere.

States are told by a pattern and a word, never by colour alone: it is read in print as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from xce_nodeagent.cli.picture.layout import layout
from xce_nodeagent.cli.picture.shape import Box, Picture, Text, Wire
from xce_nodeagent.model.name import printable

FONT = "'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', Verdana, sans-serif"
"""None of these is wider than the picture was measured for."""

LIGHT = {
    "paper": "#ffffff", "ink": "#111111", "faint": "#4a4a4a", "line": "#555555", "card": "#ffffff",
    "bar": "#f1f1f1", "socket": "#dfe3e8", "hub": "#e9f2e4", "nvlink": "#3f7a00", "xgmi": "#b00020",
    "held": "#0a4da2", "drained": "#8a5a00", "reserved": "#5b5b5b", "unhealthy": "#b00020",
}  # fmt: skip
DARK = {
    "paper": "#14171a", "ink": "#f2f2f2", "faint": "#b9bec4", "line": "#9aa1a8", "card": "#1d2126",
    "bar": "#262b31", "socket": "#333b44", "hub": "#20301a", "nvlink": "#8fd14f", "xgmi": "#ff8a95",
    "held": "#7db4ff", "drained": "#f0b64a", "reserved": "#b4b4b4", "unhealthy": "#ff8a95",
}  # fmt: skip

_STYLE = """
text {{ font-family: {font}; fill: {ink}; }}
.faint {{ fill: {faint}; }}
.bold {{ font-weight: bold; }}
.end {{ text-anchor: end; }}
.box {{ fill: {card}; stroke: {line}; stroke-width: 1; }}
.gpu > .box {{ stroke: {ink}; stroke-width: 1.8; }}
.numa > .box {{ fill: {socket}; stroke: {ink}; }}
.socket > .box {{ fill: {socket}; stroke: {ink}; stroke-width: 1.8; }}
.root > .box, .switch > .box {{ fill: {bar}; }}
.hub > .box {{ fill: {hub}; stroke: {ink}; }}
.other > .box {{ stroke-dasharray: 5 3; }}
.cell > .box {{ stroke-width: .7; }}
.unhealthy > .box {{ stroke: {unhealthy}; stroke-width: 2; stroke-dasharray: 7 3; }}
.mark {{ stroke: none; }}
.free > .mark {{ fill: none; }}
.held > .mark {{ fill: {held}; }}
.drained > .mark {{ fill: url(#drained); }}
.reserved > .mark {{ fill: url(#reserved); }}
.unhealthy > .mark {{ fill: url(#unhealthy); }}
.wire {{ fill: none; stroke: {line}; stroke-width: 1.2; }}
.wire.nvlink {{ stroke: {nvlink}; stroke-width: 1.8; }}
.wire.xgmi {{ stroke: {xgmi}; stroke-width: 1.8; stroke-dasharray: 6 2; }}
.wire.socket {{ stroke: {ink}; stroke-width: 2.4; }}
.wire.bus {{ stroke-width: 4.5; }}
.dot {{ fill: {ink}; }}
""".strip()

_PATTERNS = """
<pattern id="drained" width="5" height="5" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)">
<rect width="5" height="5" style="fill:{card}"/>
<rect width="2.4" height="5" style="fill:{drained}"/></pattern>
<pattern id="reserved" width="4" height="4" patternUnits="userSpaceOnUse">
<rect width="4" height="4" style="fill:{card}"/>
<circle cx="2" cy="2" r="1.1" style="fill:{reserved}"/></pattern>
<pattern id="unhealthy" width="5" height="5" patternUnits="userSpaceOnUse">
<rect width="5" height="5" style="fill:{card}"/>
<path d="M0 0L5 5M5 0L0 5" style="stroke:{unhealthy};stroke-width:1.3"/>
</pattern>
""".strip()


def page(value: Mapping[str, Any]) -> str:
    """Draw an inventory, as `inventory --json` prints it, as a file of its own."""
    return svg(layout(value))


def svg(picture: Picture) -> str:
    """Write a file of its own: black on white, whoever shows it."""
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + element(picture, LIGHT, own=True)


def style(colours: Mapping[str, str]) -> str:
    """Give the rules that a picture is drawn by."""
    return _STYLE.format(font=FONT, **colours)


def element(picture: Picture, colours: Mapping[str, str], *, own: bool) -> str:
    """Write the element. `own`: it stands alone, with its style and its size, and links nowhere."""
    size = f"{_n(picture.width)} {_n(picture.height)}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img"'
        f' aria-labelledby="picture-title picture-description"'
        + (f' width="{_n(picture.width)}" height="{_n(picture.height)}">' if own else ">"),
        f'<title id="picture-title">{text(picture.title)}</title>',
        f'<desc id="picture-description">{text(picture.description)}</desc>',
    ]
    if own:
        lines.append(f"<style>{style(colours)}</style>")
        fill = colours["paper"]
        lines.append(f'<rect width="100%" height="100%" fill="{fill}"/>')
    lines.append(f"<defs>{_PATTERNS.format(**colours)}</defs>")
    lines += [_wire(wire) for wire in picture.wires]
    lines += [f'<circle class="dot" cx="{_n(x)}" cy="{_n(y)}" r="3.2"/>' for x, y in picture.dots]
    for box in picture.boxes:
        lines += _box(box, own=own)
    lines += [_text(one) for one in picture.texts]
    return "\n".join([*lines, "</svg>\n"])


def text(value: str) -> str:
    """Escape what others chose, for text of XML and HTML. Lines of it stay lines."""
    return escape("\n".join(map(printable, value.split("\n"))))


def attribute(value: str) -> str:
    """Escape what others chose, as a quoted attribute."""
    return quoteattr(printable(value))


def anchor(instance: str) -> str:
    """Give the name of an instance's row, for links; what is no letter is written as its number."""
    return "i-" + re.sub(r"[^A-Za-z0-9.]", lambda match: f"_{ord(match[0]):x}_", instance)


def _box(box: Box, *, own: bool) -> Iterator[str]:
    linked = bool(box.instance) and not own
    name = f" data-id={attribute(box.instance)}" if linked else ""
    if linked:
        yield f'<a href="#{anchor(box.instance)}">'
    classes = f"{box.kind} {box.state}".strip()
    yield f'<g class="{classes}"{name} transform="translate({_n(box.x)} {_n(box.y)})">'
    if box.title:
        yield f"<title>{text(box.title)}</title>"
    round_ = 6 if box.kind == "nic" else 2 if box.kind in ("gpu", "other", "cell") else 0
    corner = f' rx="{round_}"' if round_ else ""
    high, wide = _n(box.height), _n(box.width)
    yield f'<rect class="box" width="{wide}" height="{high}"{corner}/>'
    if box.state:
        mark = box.width if box.kind == "swatch" else 5 if box.kind == "cell" else 8
        size = f'width="{_n(mark - 2)}" height="{_n(box.height - 2)}"'
        yield f'<rect class="mark" x="1" y="1" {size}/>'
    yield from (_text(one) for one in box.texts)
    for cell in box.cells:
        yield from _box(cell, own=own)
    yield "</g>"
    if linked:
        yield "</a>"


def _text(one: Text) -> str:
    names = [name for name in ("bold", "end", "faint") if getattr(one, name)]
    classes = f' class="{" ".join(names)}"' if names else ""
    return (
        f'<text x="{_n(one.x)}" y="{_n(one.y)}" font-size="{_n(one.size)}"{classes}>'
        f"{text(one.text)}</text>"
    )


def _wire(wire: Wire) -> str:
    points = " ".join(f"{_n(x)},{_n(y)}" for x, y in wire.points)
    bus = " bus" if wire.bus else ""
    thick = f' style="stroke-width:{_n(min(1 + wire.weight, 6))}"' if wire.weight > 1 else ""
    line = f'<polyline class="wire {wire.kind}{bus}" points="{points}"{thick}'
    return f"{line}><title>{text(wire.title)}</title></polyline>" if wire.title else f"{line}/>"


def _n(number: float) -> str:
    return f"{number:.1f}".rstrip("0").rstrip(".")
