"""The inventory as a tree: sockets, NUMA nodes, each PCIe switch on the way, devices and parts."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from msgspec import convert
from rich.text import Text
from rich.tree import Tree

from xce_nodeagent.cli.picture.cable import cables
from xce_nodeagent.cli.picture.site import Place, places
from xce_nodeagent.cli.table import (
    about,
    columns,
    holders,
    problems,
    rendered,
    slices_of,
    state,
)
from xce_nodeagent.model.environment import ranges
from xce_nodeagent.model.inventory import Inventory

_STEP = 4  # columns of each level
_WIDE = 120  # columns in which a part's own name fits beside its card's
_TYPE = 12  # columns of a type, with the space behind it


def inventory_tree(inventory: dict[str, Any]) -> str:
    """Show which instances are near each other, and what links join cards beside PCI."""
    value = convert(inventory, Inventory)
    told = {one["id"]: one for one in inventory["instances"]}
    drawing = _Drawing(told, inventory["topology"].get("rails", {}).get("gpus", {}))
    root = Tree(Text(f"{inventory['node']} ({inventory['source']})", style="bold"))
    # Each place as it is: only a picture draws many roots as one.
    for place in places(value.topology, value.instances, told):
        drawing.place(root, place)
    for line in _links(value):
        root.add(Text(line))
    # An id is never broken: a narrower terminal breaks the line itself, and it is still one word.
    return rendered(root, *problems(inventory), at_least=drawing.widest)


class _Drawing:
    """Branches for places and instances; `widest` is what the longest id needs."""

    def __init__(self, told: dict[str, dict[str, Any]], rails: dict[str, int]) -> None:
        self._told, self._rails = told, rails
        self._slices = slices_of(list(told.values()))
        self._parts: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for one in told.values():
            if one["parent"] in told:
                self._parts[one["parent"]].append(one)
        self.widest = 0

    def place(self, tree: Tree, place: Place, depth: int = 1) -> None:
        """Add a place, with all that is in it."""
        branch = tree.add(Text(", ".join(place.lines)))
        for one in place.devices:
            self._instance(branch, self._told[one.id], depth + 1, frozenset())
        for within in place.within:
            self.place(branch, within, depth + 1)

    def _instance(self, tree: Tree, one: dict[str, Any], depth: int, above: frozenset[str]) -> None:
        what = about(one, self._slices[one["id"]], short=bool(above) and columns() < _WIDE)
        words = [Text(one["type"]), Text(one["id"], style="bold"), Text(what)]
        rail = one["attributes"].get("rail", self._rails.get(one["id"]))
        if rail is not None:
            words.append(Text(f"rail {rail}"))
        if one["drained"] or one["reserved"] or not one["healthy"]:
            words.append(state(one))
        if one["held_by"]:
            words.append(Text("held by ") + holders(one))
        self.widest = max(self.widest, _STEP * depth + _TYPE + len(one["id"]))
        branch = tree.add(Text(" ").join(word for word in words if word.plain))
        for part in self._parts[one["id"]]:
            if part["id"] not in above:
                self._instance(branch, part, depth + 1, above | {one["id"]})


def _links(inventory: Inventory) -> list[str]:
    """Say which cards are joined beside PCI, and how; pairs with as many links in one line."""
    indexes = {one.id: one.number("index") for one in inventory.instances}
    buses, pairs = cables(inventory.topology.get("links", ()), inventory.instances)
    found = []
    for bus in buses:
        numbers = [indexes[card] for card in bus.cards]
        cards = ranges(numbers) if min(numbers) >= 0 else ", ".join(bus.cards)
        found.append(f"{bus.name}, {bus.about}: GPU {cards}")
    alike: dict[tuple[str, int], list[str]] = defaultdict(list)
    for pair in pairs:
        numbers = [indexes[pair.one], indexes[pair.other]]
        ends = list(map(str, numbers)) if min(numbers) >= 0 else [pair.one, pair.other]
        alike[pair.kind, pair.count].append("-".join(ends))
    for (kind, count), every in sorted(alike.items()):
        name = {"nvlink": "NVLink", "xgmi": "XGMI"}.get(kind, kind)
        many = f"{count} link{'s' if count > 1 else ''}"
        found.append(f"{name}, {many} a pair: GPU {', '.join(every)}")
    return found
