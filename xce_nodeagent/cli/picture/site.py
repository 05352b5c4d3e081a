"""Which place is within which: sockets, NUMA nodes, PCIe roots and switches, and what is there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from xce_nodeagent.cli.picture.shape import Kind
from xce_nodeagent.model.distance import Layout, Site
from xce_nodeagent.model.instance import Instance

_MANY = 6
"""So many roots that have a single device each are drawn as one."""


class Place(Struct, kw_only=True):
    """A place, what is within it, and the instances that are there and in none of these."""

    kind: Kind
    lines: tuple[str, ...]
    title: str = ""
    within: tuple[Place, ...] = ()
    devices: tuple[Instance, ...] = ()
    has_cpus: bool = False


def places(
    topology: Mapping[str, Any], instances: Sequence[Instance], linked: Collection[str]
) -> list[Place]:
    """Give the NUMA nodes, each with all that is in it; below sockets, where one has several.

    An instance within another (`parent`) is drawn in that one. `linked` are the ids of cards that
    have links of their own. What is near no node that the kernel tells CPUs of comes first.
    """
    known = {one.id: one for one in instances}
    layout = Layout(topology, known)
    at: dict[int, list[tuple[Site, Instance]]] = defaultdict(list)
    nodes: list[Mapping[str, Any]] = list(topology.get("numa_nodes", ()))
    for one in instances:
        if one.parent in known:
            continue
        site = layout.site(one.id)
        numa = site.numa
        if numa < 0 and len(nodes) == 1 and site.path:
            numa = nodes[0]["id"]
        at[numa].append((site, one))
    found = []
    by_package: dict[int, list[Place]] = defaultdict(list)
    for node in nodes:
        here = at.pop(node["id"], [])
        by_package[layout.package(node["id"])].append(_numa(node, here, linked))
    several = any(len(all_) > 1 for package, all_ in by_package.items() if package >= 0)
    for package, all_ in sorted(by_package.items()):
        if package >= 0 and several:
            name = f"Socket {package}"
            socket = Place(
                kind="socket", lines=(name,), title=name, within=tuple(all_), has_cpus=True
            )
            found.append(socket)
        else:
            found += [_of_socket(one, package) for one in all_]
    nowhere = at.pop(-1, None)
    found += [_told(numa, here, linked) for numa, here in sorted(at.items())]
    if nowhere is not None:
        found.insert(0, _nowhere(nowhere, linked, topology, alone=not found))
    return found


def _numa(
    node: Mapping[str, Any], here: list[tuple[Site, Instance]], linked: Collection[str]
) -> Place:
    within, devices = _below(here, 0, linked)
    name = f"NUMA node {node['id']}"
    return Place(
        kind="numa",
        lines=(name, f"CPUs {node['cpus']}"),
        title=f"{name}\nCPUs {node['cpus']}\ndistances {node.get('distances', 'not told')}",
        within=within,
        devices=devices,
        has_cpus=True,
    )


def _of_socket(place: Place, package: int) -> Place:
    if package >= 0:
        place.lines = (place.lines[0], f"Socket {package} · {place.lines[1]}")
    return place


def _told(numa: int, here: list[tuple[Site, Instance]], linked: Collection[str]) -> Place:
    """Make a NUMA node of which the instances tell, and the kernel does not."""
    within, devices = _below(here, 0, linked)
    name = f"NUMA node {numa}"
    return Place(
        kind="numa", lines=(name,), title=name, within=within, devices=devices, has_cpus=True
    )


def _nowhere(
    here: list[tuple[Site, Instance]],
    linked: Collection[str],
    topology: Mapping[str, Any],
    *,
    alone: bool,
) -> Place:
    """Make the place of what is near no NUMA node: the whole host, where there is no other."""
    within, devices = _below(here, 0, linked)
    cpus = ",".join(str(one["cpus"]) for one in topology.get("packages", ()))
    lines: tuple[str, ...] = ("Near no NUMA node",)
    if alone:
        lines = ("The host", f"CPUs {cpus}") if cpus else ("The host",)
    return Place(kind="numa", lines=lines, title="\n".join(lines), within=within, devices=devices)


def _below(
    here: Iterable[tuple[Site, Instance]], depth: int, linked: Collection[str]
) -> tuple[tuple[Place, ...], tuple[Instance, ...]]:
    """Part what is in a place by the next step of its way: the root, then each switch."""
    steps: dict[str, list[tuple[Site, Instance]]] = defaultdict(list)
    devices = []
    for site, instance in here:
        way = ((site.path[0],) if site.path else ()) + tuple(site.switches)
        if depth < len(way):
            steps[way[depth]].append((site, instance))
        else:
            devices.append(instance)
    found = []
    for step, inside in sorted(steps.items(), key=lambda one: (len(one[0]), one[0])):
        within, own = _below(inside, depth + 1, linked)
        kind: Kind = "root" if depth == 0 else "switch"
        name = f"PCIe root {step.removeprefix('pci')}" if depth == 0 else f"PCIe switch {step}"
        found.append(Place(kind=kind, lines=(name,), title=name, within=within, devices=own))
    if depth == 0:
        found = _merged(found, linked)
    return tuple(found), tuple(devices)


def _merged(roots: list[Place], linked: Collection[str]) -> list[Place]:
    """Draw many roots that have one device each as one place."""
    single = [
        root
        for root in roots
        if not root.within and len(root.devices) == 1 and root.devices[0].id not in linked
    ]
    if len(single) <= _MANY:
        return roots
    together = Place(
        kind="root",
        lines=(f"{len(single)} PCIe roots, one device each",),
        title="\n".join(root.title for root in single),
        devices=tuple(root.devices[0] for root in single),
    )
    return [root for root in roots if root not in single] + [together]
