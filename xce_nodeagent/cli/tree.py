"""The inventory as a tree: NUMA node, PCIe switch, devices, and what a device is cut into."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from rich.text import Text
from rich.tree import Tree

from xce_nodeagent.cli.table import about, holders, problems, rendered, slices_of, state

_BEFORE = 24  # columns before an id: four levels, and its type


def inventory_tree(inventory: dict[str, Any]) -> str:
    """Show which instances are near each other."""
    parts: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    slices = slices_of(inventory["instances"])
    known = {instance["id"] for instance in inventory["instances"]}
    for instance in inventory["instances"]:
        parts[instance["parent"] if instance["parent"] in known else None].append(instance)
    places: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for instance in parts[None]:
        facts = instance["attributes"]
        numa = facts.get("numa_node", -1)
        place = "near no CPU in particular" if numa == -1 else f"NUMA node {numa}"
        switch = facts.get("pcie_switch") or facts.get("pcie_root") or ""
        places[place][switch].append(instance)
    root = Tree(Text(f"{inventory['node']} ({inventory['source']})", style="bold"))
    for place in sorted(places):
        near = root.add(Text(place))
        for switch, instances in sorted(places[place].items()):
            below = near.add(Text(f"PCIe {switch}")) if switch else near
            for instance in instances:
                _add(below, instance, parts, slices)
    # An id is never broken: a narrower terminal breaks the line itself, and it is still one word.
    longest = max((len(one) for one in known), default=0)
    return rendered(root, *problems(inventory), at_least=longest + _BEFORE)


def _add(
    tree: Tree,
    instance: dict[str, Any],
    parts: dict[str | None, list[dict[str, Any]]],
    slices: Counter[str],
) -> None:
    what = about(instance, slices[instance["id"]])
    words = [Text(instance["type"]), Text(instance["id"], style="bold"), Text(what)]
    if instance["drained"] or instance["reserved"] or not instance["healthy"]:
        words.append(state(instance))
    if instance["held_by"]:
        words.append(Text("held by ") + holders(instance))
    branch = tree.add(Text(" ").join(word for word in words if word.plain))
    for part in parts.get(instance["id"], ()):
        _add(branch, part, parts, slices)
