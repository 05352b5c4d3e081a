"""A picture as a page: with a table of the instances, light or dark, and readable in print.

The page fetches nothing: its policy forbids it, and its one script is named by its hash. Without
the script it shows all the same; with it a word filters the table and the picture, and what is
pointed at is told in full.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from msgspec import convert

from xce_nodeagent.cli.picture.caption import holders_in_full, reason, state, summary
from xce_nodeagent.cli.picture.layout import layout
from xce_nodeagent.cli.picture.svg import DARK, LIGHT, anchor, attribute, element, style, text
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory

_PAGE = """
:root {{ color-scheme: light dark; {light} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 14px/1.4 {font}; }}
figure {{ margin: 0 0 1rem; overflow-x: auto; }}
figure svg {{ display: block; width: 100%; height: auto;
  min-width: {least}px; max-width: {most}px; }}
figure a {{ cursor: pointer; }}
figure a:hover > g > .box, figure a:focus > g > .box, .lit > .box {{ stroke: var(--held);
  stroke-width: 3; }}
.dim {{ opacity: .18; }}
form {{ margin: 0 0 .5rem; }}
input {{ font: inherit; padding: .3rem .5rem; width: 24rem; max-width: 100%; color: inherit;
  background: var(--card); border: 1px solid var(--line); }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: 13px; }}
th, td {{ text-align: left; vertical-align: top; padding: .25rem .6rem; overflow-wrap: anywhere;
  border-bottom: 1px solid var(--bar); }}
th {{ background: var(--socket); white-space: nowrap; }}
td:nth-child(-n+5) {{ white-space: nowrap; }}
tr:target td, tr.lit td {{ background: var(--bar); box-shadow: inset 0 2px var(--held); }}
td.unhealthy {{ color: var(--unhealthy); font-weight: bold; }}
td.drained {{ color: var(--drained); font-weight: bold; }}
td.held {{ color: var(--held); }}
aside {{ position: fixed; right: 1rem; bottom: 1rem; max-width: 30rem; max-height: 60vh;
  overflow: auto; padding: .6rem .9rem; white-space: pre-line; overflow-wrap: anywhere;
  font-size: 12px; background: var(--card); border: 1px solid var(--ink); }}
[hidden] {{ display: none; }}
@page {{ size: A4 landscape; margin: 10mm; }}
@media print {{
  body {{ padding: 0; }} form, aside {{ display: none; }}
  figure {{ overflow: visible; break-after: page; margin: 0; }}
  figure svg {{ min-width: 0; max-width: 100%; max-height: 188mm; }}
  .table {{ overflow: visible; }} thead {{ display: table-header-group; }}
  tr {{ break-inside: avoid; }} table {{ font-size: 9px; }} td {{ white-space: normal !important; }}
  * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
}}
""".strip()

_SCRIPT = """
"use strict";
const input = document.querySelector("input"), told = document.querySelector("aside");
const rows = [...document.querySelectorAll("tbody tr")];
const boxes = new Map([...document.querySelectorAll("[data-id]")].map(b => [b.dataset.id, b]));
document.querySelector("form").hidden = false;
document.querySelector("form").addEventListener("submit", event => event.preventDefault());
input.addEventListener("input", () => {
  const words = input.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let shown = 0;
  const kept = new Set();
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
    if (!row.hidden) { shown += 1; kept.add(row.dataset.of); kept.add(row.dataset.within); }
  }
  for (const [id, box] of boxes) box.classList.toggle("dim", !kept.has(id));
  document.querySelector("output").value = words.length ? `${shown} of ${rows.length}` : "";
});
function light(id, on) {
  const box = boxes.get(id), row = rows.find(one => one.dataset.of === id);
  if (box) box.classList.toggle("lit", on);
  if (row) row.classList.toggle("lit", on);
  const title = on && box && [...box.children].find(one => one.tagName === "title");
  told.textContent = title ? title.textContent : "";
  told.hidden = !title;
}
for (const [id, box] of boxes) {
  const link = box.closest("a");
  for (const name of ["pointerenter", "focus"]) link.addEventListener(name, () => light(id, true));
  for (const name of ["pointerleave", "blur"]) link.addEventListener(name, () => light(id, false));
}
for (const row of rows) {
  row.addEventListener("pointerenter", () => light(row.dataset.of, true));
  row.addEventListener("pointerleave", () => light(row.dataset.of, false));
}
""".strip()

_HEADER = ("Instance", "Type", "NUMA", "Place on PCI", "State", "Held by", "What it is", "Why")


def page(value: Mapping[str, Any]) -> str:
    """Write the page of an inventory, as `inventory --json` prints it."""
    picture = layout(value)
    inventory = convert(value, Inventory)
    named = {name: f"var(--{name})" for name in LIGHT}
    rules = _PAGE.format(
        light=_variables(LIGHT),
        dark=_variables(DARK),
        font="system-ui, sans-serif",
        least=round(picture.width * 0.8),
        most=round(picture.width * 1.5),
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in _HEADER)
    rows = "\n".join(_row(one) for one in inventory.instances)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src '{hashed(_SCRIPT)}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(picture.title)}</title>
<style>
{rules}
{style(named)}
</style>
</head>
<body>
<main>
<figure>
{element(picture, named, own=False)}</figure>
<form hidden><label>Filter <input type="search" placeholder="words, such as: gpu unhealthy"></label>
<output></output></form>
<div class="table"><table>
<caption hidden>{text(picture.description)}</caption>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
<aside aria-live="polite" hidden></aside>
</main>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def hashed(script: str) -> str:
    """Name a script as a Content-Security-Policy allows it (W3C CSP3, 2.3.1)."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


def _row(one: Instance) -> str:
    shown = state(one)
    known = "" if shown == "free" and one.held_by is None else shown
    cells = (
        one.id,
        one.type,
        one.text("numa_node"),
        one.text("pci_address"),
        known,
        holders_in_full(one),
        summary(one),
        reason(one),
    )
    marked = "".join(
        f'<td class="{known}">{text(cell)}</td>' if at == 4 and known else f"<td>{text(cell)}</td>"
        for at, cell in enumerate(cells)
    )
    within = f" data-within={attribute(one.parent)}" if one.parent else ""
    return f'<tr id="{anchor(one.id)}" data-of={attribute(one.id)}{within}>{marked}</tr>'
