"""A fleet that is watched: drawn anew at a terminal, told change by change to everybody else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Protocol

from msgspec import to_builtins
from rich.console import Console
from rich.live import Live

from xce_nodeagent.cli.fleet.news import news
from xce_nodeagent.cli.fleet.order import shape
from xce_nodeagent.cli.fleet.survey import Survey
from xce_nodeagent.cli.fleet.table import Page, styled, table
from xce_nodeagent.cli.fleet.view import FleetView, NodeView, added, counted, told_of
from xce_nodeagent.upstream.fleet import Fleet

CHANGE = "xce.fleet.change/v1"

SPACING = 0.25
"""Seconds between two pictures, or two lots of changes, at least."""

_AGING = 10.0  # seconds after which ages are told anew


class Source(Protocol):
    """Where a fleet comes from."""

    def next(self, after: tuple[Fleet, str] | None, seconds: float) -> tuple[Fleet, str]:
        """Give the fleet, and why it is out of date or ``.

        Waits, for `seconds` at most, until it is another than `after`.
        """
        ...


Chosen = Callable[[FleetView], tuple[NodeView, ...]]
"""Gives the nodes that are wanted, in their order."""


def views(source: Source, survey: Survey) -> Iterator[FleetView]:
    """Give the fleet each time that it is another, and now and then when it is not."""
    before: tuple[Fleet, str] | None = None
    while True:
        before = source.next(before, _AGING)
        yield survey.view(*before)
        time.sleep(SPACING)


def draw(every: Iterator[FleetView], chosen: Chosen, page: Callable[[], Page]) -> None:
    """Draw each view over the one before it, on a screen of its own, until interrupted."""
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        for view in every:
            live.update(styled(table(view, chosen(view), page())), refresh=True)


def tell(
    every: Iterator[FleetView], chosen: Chosen, show: Callable[[str], None], *, as_json: bool
) -> None:
    """Tell of each change: a line of JSON, or a line of text for each node that changed."""
    known: dict[str, NodeView] | None = None
    outdated = ""
    for view in every:
        nodes = {node.name: node for node in chosen(view)}
        changed, gone = difference(known or {}, nodes)
        if known is not None and not changed and not gone and view.outdated == outdated:
            continue
        if as_json:
            show(json.dumps(change(view, changed, gone), separators=(",", ":")))
        else:
            now = datetime.now().astimezone().isoformat(" ", "seconds")
            for line in lines(view, changed, gone, known, before=outdated):
                show(f"{now} {line}")
        known, outdated = nodes, view.outdated


def difference(
    before: Mapping[str, NodeView], after: Mapping[str, NodeView]
) -> tuple[list[NodeView], list[str]]:
    """Give the nodes that are new or different, and the names of those that are gone."""
    changed = [node for name, node in after.items() if before.get(name) != node]
    return changed, [name for name in before if name not in after]


def change(view: FleetView, changed: list[NodeView], gone: list[str]) -> dict[str, Any]:
    """Give a change as it is printed as JSON; from nothing, it has every node."""
    return {
        "schema": CHANGE,
        "cluster": view.cluster,
        "revision": view.revision,
        "digest": view.digest,
        "outdated": view.outdated,
        "summary": to_builtins(view.summary),
        "nodes": list(map(told_of, changed)),
        "gone": gone,
    }


def lines(
    view: FleetView,
    changed: list[NodeView],
    gone: list[str],
    known: Mapping[str, NodeView] | None,
    *,
    before: str,
) -> Iterator[str]:
    """Give a change as lines. `known` are the nodes before it: at the start None, told in one."""
    if view.outdated != before:
        yield f"OUT OF DATE: {view.outdated}" if view.outdated else "up to date again"
    if known is None:
        nodes = view.summary.nodes
        yield f"{counted(nodes.total, 'node')}: {nodes.available:,} available; what changes is told"
        return
    for node in changed:
        free = " ".join(f"{one.type} {one.free}/{one.usable}" for one in added(node.instances))
        jobs = counted(len(node.jobs), "job")
        told = news(known.get(node.name), node)
        yield f"{node.name} {node.state}: {told}; now {free}; {jobs}; {shape(node)}"
    for name in gone:
        yield f"{name} is gone"
