"""A fleet as a page: a picture by switch block, what its signs mean, and what is wrong.

One file that fetches nothing: its policy forbids it, and its one script is named by its hash.
States are told by form, never by colour alone: it is read in grey print as well. Without the
script all is shown; with it, words dim the nodes that they do not fit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime

from xce_nodeagent.cli.fleet.blocks import CARD, NAME, Band, Block, Look, blocks, looks
from xce_nodeagent.cli.fleet.order import exceptional, shape
from xce_nodeagent.cli.fleet.view import FleetView, NodeView, Summary, Tally, counted
from xce_nodeagent.cli.invocation import run_of
from xce_nodeagent.cli.picture.html import hashed
from xce_nodeagent.cli.picture.svg import DARK, FONT, LIGHT, anchor, text

_PAGE = """
:root {{ color-scheme: light dark; {light} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 14px/1.4 system-ui, sans-serif; }}
h1 {{ font-size: 20px; margin: 0; }} h2 {{ font-size: 14px; margin: 0; }}
p {{ margin: 0 0 .4rem; }} .faint {{ color: var(--faint); }}
.late {{ color: var(--unhealthy); font-weight: bold; border: 2px solid; padding: .3rem .6rem; }}
.legend {{ display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .6rem 0; }}
.legend span {{ display: inline-flex; align-items: center; gap: .4rem; font-size: 12px; }}
.blocks {{ display: flex; flex-wrap: wrap; gap: 1.2rem 1.6rem; align-items: flex-start;
  margin: 0 0 1.2rem; }}
.block {{ max-width: 100%; overflow-x: auto; }}
.block p {{ font-size: 12px; max-width: 34rem; }}
svg {{ display: block; }} .block svg + svg {{ margin-top: 5px; }}
.name {{ font: {name}px {font}; fill: var(--faint); }}
.defs {{ position: absolute; width: 0; height: 0; }}
.frame {{ fill: var(--card); stroke: var(--line); stroke-width: 1; }}
.unhealthy {{ stroke: var(--unhealthy); stroke-width: 2.2; }}
.stale {{ stroke: var(--ink); stroke-dasharray: 3 2; fill: var(--bar); }}
.strike {{ fill: none; stroke: var(--ink); stroke-width: 1; }}
.two, .faulty, .unreadable {{ stroke: var(--unhealthy); stroke-width: 2.2;
  stroke-dasharray: 2 1.5; }}
.sign {{ font: bold 17px {font}; text-anchor: middle; fill: var(--unhealthy);
  stroke: var(--card); stroke-width: 3; paint-order: stroke; }}
.f {{ fill: none; stroke: var(--faint); stroke-width: 1; }}
.h {{ fill: var(--held); }}
.u {{ fill: none; stroke: var(--unhealthy); stroke-width: 2; }}
.d {{ fill: none; stroke: var(--drained); stroke-width: 2; }}
.r {{ fill: var(--reserved); }}
.a {{ fill: none; stroke: var(--faint); stroke-width: 1; stroke-dasharray: 1.5 1.5; }}
use.dim {{ opacity: .15; }} a use {{ cursor: pointer; }}
form {{ margin: 0 0 .8rem; }}
input {{ font: inherit; padding: .3rem .5rem; width: 24rem; max-width: 100%; color: inherit;
  background: var(--card); border: 1px solid var(--line); }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: 13px; }}
th, td {{ text-align: left; vertical-align: top; padding: .2rem .6rem; overflow-wrap: anywhere;
  border-bottom: 1px solid var(--bar); }}
th {{ background: var(--socket); white-space: nowrap; }}
tr:target td {{ background: var(--bar); box-shadow: inset 0 2px var(--held); }}
td.worse {{ color: var(--unhealthy); font-weight: bold; white-space: nowrap; }}
[hidden] {{ display: none; }}
@page {{ size: A4 landscape; margin: 10mm; }}
@media print {{
  body {{ padding: 0; font-size: 11px; }} form {{ display: none; }}
  .block {{ overflow: visible; }}
  .block.small {{ break-inside: avoid; }} svg {{ break-inside: avoid; }}
  .block svg {{ max-width: 100%; height: auto; }}
  h2, .block p {{ break-after: avoid; }}
  .table {{ overflow: visible; }} thead {{ display: table-header-group; }}
  tr {{ break-inside: avoid; }} table {{ font-size: 9px; }}
  * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
}}
""".strip()

_SCRIPT = """
"use strict";
const form = document.querySelector("form"), input = document.querySelector("input");
const drawn = [...document.querySelectorAll(".block use")].map(
  use => [use, use.textContent.toLowerCase()]);
const rows = [...document.querySelectorAll("tbody tr")];
form.hidden = false;
form.addEventListener("submit", event => event.preventDefault());
input.addEventListener("input", () => {
  const words = input.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let shown = 0;
  for (const [use, told] of drawn) {
    const fits = words.every(word => told.includes(word));
    use.classList.toggle("dim", !fits);
    shown += fits;
  }
  for (const row of rows) {
    const told = row.textContent.toLowerCase();
    row.hidden = !words.every(word => told.includes(word));
  }
  document.querySelector("output").value = words.length ? `${shown} of ${drawn.length} nodes` : "";
});
""".strip()

_CARDS = (
    ("f", "free"), ("h", "held by a job"), ("p", "held in part"), ("u", "unhealthy"),
    ("d", "drained"), ("r", "not for jobs"), ("a", "out of reach"),
)  # fmt: skip
_NODES = (
    (Look("ok", "ff"), "a node"),
    (Look("unhealthy", "fu"), "with something unhealthy"),
    (Look("stale", "aa"), "no sign of life"),
    (Look("two agents", "ff"), "two agents claim it"),
    (Look("faulty", "ff"), "what is told of it cannot be believed"),
    (Look("unreadable", ""), "what is told of it cannot be read"),
)
_TOLD = 4  # jobs, and reasons, that a node's title tells
_HEADER = ("Node", "Block", "State", "What", "Why")


def page(view: FleetView, nodes: Iterable[NodeView], now: float) -> str:
    """Write the page of these nodes; `now` is when they were like this, since the epoch."""
    shown = tuple(nodes)
    every = blocks(shown)
    names = looks(every)
    legend = [look for look, _ in _NODES if look not in names]
    names |= {look: f"l{at}" for at, look in enumerate(legend)}
    rules = _PAGE.format(light=_variables(LIGHT), dark=_variables(DARK), font=FONT, name=NAME)
    when = datetime.fromtimestamp(now).astimezone().isoformat(" ", "seconds")
    title = f"Fleet: {counted(len(shown), 'node')}"
    late = f'<p class="late">Out of date: {text(view.outdated)}</p>\n' if view.outdated else ""
    drawn = "\n".join(line for block in every for line in _block(block, names))
    defs = "\n".join(_look(look, name) for look, name in names.items())
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src '{hashed(_SCRIPT)}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{rules}
</style>
</head>
<body>
<svg class="defs" aria-hidden="true"><defs>
{defs}
</defs></svg>
<main>
<h1>{title}</h1>
{late}<p>{text(_summary(view.summary))}</p>
<p class="faint">{text(when)}, revision {view.revision} of the store {text(view.cluster)}</p>
{_legend(names)}
<form hidden><label>Find <input type="search" placeholder="words, such as: h100 unhealthy"></label>
<output></output></form>
<div class="blocks">
{drawn}
</div>
{_wrong(shown)}
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _variables(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


def _summary(told: Summary) -> str:
    nodes = told.nodes
    parts = [
        f"{counted(nodes.total, 'node')}: {nodes.available:,} available",
        f"{nodes.unavailable:,} unavailable",
        f"{nodes.faulty:,} faulty",
        f"{nodes.unhealthy:,} with unhealthy instances; {counted(told.jobs, 'job')}",
    ]
    return f"{', '.join(parts)}. {_tallies(told.instances)}"


def _tallies(tallies: Iterable[Tally]) -> str:
    """Say of each type how many are free of those that are for jobs."""
    return ", ".join(
        f"{one.type} {one.free:,}/{one.usable:,} free" for one in tallies if one.usable
    )


def _legend(names: dict[Look, str]) -> str:
    lines = ['<div class="legend" aria-label="What the signs mean">']
    size = f'width="{CARD + 2}" height="{CARD + 2}" viewBox="-1 -1 {CARD + 2} {CARD + 2}"'
    for letter, meaning in _CARDS:
        card = _cards(letter, [(0, 0)])
        lines.append(f'<span><svg {size} aria-hidden="true">{card}</svg>{meaning}</span>')
    for look, meaning in _NODES:
        box = f'width="{look.width + 2}" height="{look.height + 2}"'
        use = f'<use href="#{names[look]}" x="1" y="1"/>'
        lines.append(f'<span><svg {box} aria-hidden="true">{use}</svg>{meaning}</span>')
    return "\n".join([*lines, "</div>"])


def _look(look: Look, name: str) -> str:
    """Draw a node's frame and its cards, those of a state with one path."""
    kind = look.state.partition(" ")[0]
    size = f'width="{look.width}" height="{look.height}"'
    parts = [f'<g id="{name}"><rect class="frame {kind}" {size} rx="2"/>']
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for letter, x, y in look.places():
        places[letter].append((x, y))
    parts += [_cards(letter, where) for letter, where in places.items()]
    if look.state == "stale":
        parts.append(f'<path class="strike" d="M0 {look.height}L{look.width} 0"/>')
    if sign := {"two": "2", "faulty": "!", "unreadable": "?"}.get(kind):
        middle = f'x="{look.width / 2:g}" y="{look.height / 2 + 6:g}"'
        parts.append(f'<text class="sign" {middle}>{sign}</text>')
    return "".join([*parts, "</g>"])


def _cards(letter: str, places: Iterable[tuple[int, int]]) -> str:
    """Draw cards of one state: each state has a form of its own, so that grey tells them."""
    s = CARD
    square = f"h{s}v{s}h-{s}z"
    if letter == "p":  # half of it is filled
        where = list(places)
        half = "".join(f"M{x} {y}v{s}h{s}z" for x, y in where)
        return f'{_cards("f", where)}<path class="h" d="{half}"/>'
    form = {
        "h": "M{x} {y}" + square,
        "u": f"M{{x}} {{y}}l{s} {s}m0-{s}l-{s} {s}",
        "d": f"M{{x}} {{y}}m{s} 0l-{s} {s}m0-{s / 2:g}l{s / 2:g}-{s / 2:g}"
        f"m{s / 2:g} {s / 2:g}l-{s / 2:g} {s / 2:g}",
        "r": f"M{{x}} {{y}}m{s / 4:g} {s / 4:g}h{s / 2:g}v{s / 2:g}h-{s / 2:g}z",
    }.get(letter, "M{x} {y}m.5 .5" + f"h{s - 1}v{s - 1}h-{s - 1}z")
    path = "".join(form.format(x=x, y=y) for x, y in places)
    return f'<path class="{letter}" d="{path}"/>'


def _block(block: Block, names: dict[Look, str]) -> Iterator[str]:
    small = " small" if len(block.bands) == 1 else ""
    yield f'<section class="block{small}">'
    if block.name:
        yield f"<h2>{text(block.name)}</h2>"
    states = ", ".join(f"{count} {state}" for state, count in block.states)
    about = f"{counted(block.nodes, 'node')} ({states}); {counted(block.jobs, 'job')}"
    numbers = _tallies(block.instances)
    yield f"<p>{text(about)}{f'<br>{text(numbers)}' if numbers else ''}</p>"
    for band in block.bands:
        yield from _band(band, names, f"block {block.name}: {about}; {numbers}")
    yield "</section>"


def _band(band: Band, names: dict[Look, str], about: str) -> Iterator[str]:
    size = f'width="{band.width:.0f}" height="{band.height:.0f}"'
    view = f'viewBox="0 0 {band.width:.0f} {band.height:.0f}"'
    yield f'<svg {size} {view} role="group"><desc>{text(about)}</desc>'
    for name, y in band.names:
        yield f'<text class="name" x="0" y="{y:.1f}">{text(name)}</text>'
    for spot in band.spots:
        use = f'<use href="#{names[spot.look]}" x="{spot.x:.0f}" y="{spot.y:.0f}">'
        use += f"<title>{text(_title(spot.node))}</title></use>"
        if spot.node.state in ("ok", "drained"):
            yield use
        else:
            yield f'<a href="#{anchor(spot.node.name)}">{use}</a>'
    yield "</svg>"


def _title(node: NodeView) -> str:
    """Say all that there is room for of a node, for who points at it."""
    lines = [f"{node.name}: {node.state}", shape(node)]
    lines += [_tallies(node.instances)]
    if node.jobs:
        runs = [run_of({"job": one.job, "attempt": one.attempt}) for one in node.jobs[:_TOLD]]
        more = len(node.jobs) - len(runs)
        lines.append(f"{counted(len(node.jobs), 'job')}: {', '.join(runs)}{' …' if more else ''}")
    lines += [f"{one.id} {one.state}: {one.reason}" for one in node.wrong[:_TOLD]]
    lines += node.complaints[:_TOLD]
    return "\n".join(filter(None, lines))


def _wrong(nodes: Iterable[NodeView]) -> str:
    """Tell what is wrong, in a table: each node's faults, and the reasons of its instances."""
    rows = [line for node in exceptional(tuple(nodes)) for line in _rows(node)]
    if not rows:
        return "<p>No node is unhealthy, and all are there.</p>"
    head = "".join(f'<th scope="col">{name}</th>' for name in _HEADER)
    return "\n".join([
        '<h2>What is wrong</h2>\n<div class="table"><table>',
        f"<thead><tr>{head}</tr></thead>\n<tbody>",
        *rows,
        "</tbody>\n</table></div>",
    ])  # fmt: skip


def _rows(node: NodeView) -> Iterator[str]:
    told = [("the node", one) for one in node.complaints]
    if not node.available:
        told.insert(0, ("the node", "no sign of life of its agent"))
    told += [(f"{one.type} {one.id}", f"{one.state}: {one.reason}") for one in node.wrong]
    for at, (what, why) in enumerate(told):
        name = f' id="{anchor(node.name)}"' if not at else ""
        cells = f"<td>{text(node.name)}</td><td>{text(node.block)}</td>"
        cells += f'<td class="worse">{node.state}</td><td>{text(what)}</td><td>{text(why)}</td>'
        yield f"<tr{name}>{cells}</tr>"
