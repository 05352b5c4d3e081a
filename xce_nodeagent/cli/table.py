"""Tables for people. They fit a terminal of 80 columns, and colour only a terminal.

Nothing but a terminal has a width: in a pipe or a file every line is whole. An id is there to be
copied, so no line is broken in one; what does not fit beside it goes below it.
"""

from __future__ import annotations

import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from xce_nodeagent.cli.invocation import run_of
from xce_nodeagent.cli.width import folded, room

_ENDLESS = 1 << 20  # columns of what is no terminal
_NAMED = 3  # instances of one reason that are named; the others are in the table
GAP, _INDENT = "  ", "    "

Row = Sequence[Text]


def columns() -> int:
    """Say how many columns there are to write in."""
    return Console().width if _is_terminal() else _ENDLESS


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def rendered(*parts: RenderableType, at_least: int = 0) -> str:
    """Give what the parts look like on this stdout; a line of text goes on at a word's end."""
    if not parts:
        return ""
    # A file of our own: a console writes to its file even while it captures. Its encoding says
    # what lines a tree is drawn with.
    paper = io.TextIOWrapper(io.BytesIO(), getattr(sys.stdout, "encoding", None) or "utf-8")
    console = Console(
        file=paper,
        force_terminal=_is_terminal(),
        highlight=False,
        width=max(columns(), at_least),
    )
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def whole(grid: Text) -> str:
    """Give what a grid looks like: its lines are no text that could go on at a word's end."""
    return rendered(grid, at_least=max(map(cell_len, grid.plain.split("\n"))))


def _cells(cell: Text) -> int:
    return cell.cell_len


def _longest(texts: Iterable[str]) -> int:
    """Give the width of the longest word: no line is narrower than that."""
    return max((cell_len(word) for text in texts for word in text.split()), default=0)


def in_columns(
    header: Sequence[str], rows: Sequence[Row], below: Sequence[Sequence[Text]] = ()
) -> Text:
    """Put cells in columns; `below` has lines that follow each row."""
    titles = [Text(title, style="bold") for title in header]
    widths = [max(map(_cells, column)) for column in zip(titles, *rows, strict=True)]
    lines = []
    for row, more in zip((titles, *rows), ((), *(below or [()] * len(rows))), strict=True):
        line = Text()
        for cell, width in zip(row, widths, strict=True):
            line.append_text(cell).append(" " * (width - cell.cell_len) + GAP)
        lines += [line, *(Text(_INDENT).append_text(one) for one in more)]
    return Text("\n").join(lines)


def _width(header: Sequence[str], rows: Sequence[Row]) -> int:
    titles = [Text(title) for title in header]
    cells: list[int] = [max(map(_cells, column)) for column in zip(titles, *rows, strict=True)]
    return sum(cells) + len(GAP) * (len(cells) - 1)


def inventory_table(inventory: dict[str, Any]) -> str:
    """Show instances with their state and holders, then what is wrong."""
    sources = {"agent": "the agent", "store": "its agent, from the store"}
    source = sources.get(inventory["source"], "this command, not the agent")
    title = Text(f"{inventory['node']}, as seen by {source}", style="bold")
    generation = Text(f"generation {inventory['generation']}")
    found = inventory["instances"]
    grid = _instances(found, columns()) if found else Text("no instances")
    at_least = _longest([grid.plain, generation.plain])
    return (
        rendered(title, generation, at_least=at_least)
        + whole(grid)
        + rendered(*problems(inventory), at_least=at_least)
    )


def _instances(instances: Sequence[dict[str, Any]], room: int) -> Text:
    """Lay the instances out: all of it, else without what is empty, else with WHAT shortened.

    If that is still too wide, WHAT is below each.
    """
    slices = slices_of(instances)
    header = ["ID", "TYPE", "NUMA", "WHAT", "STATE", "HELD BY"]
    rows = [
        [
            Text(one["id"]),
            Text(one["type"]),
            Text(str(one["attributes"].get("numa_node", ""))),
            Text(about(one, slices[one["id"]])),
            state(one),
            holders(one),
        ]
        for one in instances
    ]
    if _width(header, rows) <= room:
        return in_columns(header, rows)
    for at in (5, 2):  # who holds it, and its NUMA node
        if all(row[at].plain in ("", "?") for row in rows):
            del header[at]
            for row in rows:
                del row[at]
    what = header.index("WHAT")
    short = [
        [*row[:what], Text(about(one, slices[one["id"]], short=True)), *row[what + 1 :]]
        for row, one in zip(rows, instances, strict=True)
    ]
    for fitting in (rows, short):
        if _width(header, fitting) <= room:
            return in_columns(header, fitting)
    below = [[row[what]] if row[what].plain else [] for row in rows]
    return in_columns(
        header[:what] + header[what + 1 :], [[*r[:what], *r[what + 1 :]] for r in rows], below
    )


def slices_of(instances: Iterable[dict[str, Any]]) -> Counter[str]:
    """Count the MIG slices that each card is cut into."""
    return Counter(one["parent"] for one in instances if one["type"] == "mig" and one["parent"])


def problems(inventory: dict[str, Any]) -> Iterable[RenderableType]:
    """Say what is wrong: why an instance is not granted, and what discovery could not find out.

    What many have in common is said once.
    """
    alike: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for instance in inventory["instances"]:
        if instance["reason"] and (instance["drained"] or not instance["healthy"]):
            alike.setdefault((state(instance).plain, instance["reason"]), []).append(instance)
        if instance["reserved"]:
            alike.setdefault(("", instance["reserved"]), []).append(instance)
    for (word, why), instances in alike.items():
        names, many = _names(instances), len(instances) > 1
        if word:
            yield Text.assemble(f"{names}: ", state(instances[0]), f": {why}")
        else:
            whose = "the host's own" if instances[0]["type"] == "nic" else "not for jobs"
            yield Text(f"{names} {'are' if many else 'is'} {whose}: {why}")
    for problem in inventory["problems"]:
        told = problem["state"].replace("_", " ")
        yield Text(f"{problem['provider']}: {told}: {problem['reason']}")


def _names(instances: Sequence[dict[str, Any]]) -> str:
    shown = [one["id"] for one in instances[:_NAMED]]
    more = len(instances) - _NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def state(instance: dict[str, Any]) -> Text:
    """Say in a word whether an instance can be granted."""
    if not instance["healthy"]:
        return Text("unhealthy", style="red")
    if instance["drained"]:
        return Text("drained", style="yellow")
    if instance["reserved"]:
        return Text("host's" if instance["type"] == "nic" else "no job", style="cyan")
    return Text("ok", style="green")


def holders(instance: dict[str, Any]) -> Text:
    """Say who holds an instance; `?` where nobody who knows was asked."""
    held = instance["held_by"]
    if held is None:
        return Text("?")
    shown = [run_of(holder) for holder in held[:3]]
    return Text(", ".join(shown) + (f" and {len(held) - 3} more" if len(held) > 3 else ""))


def about(instance: dict[str, Any], slices: int = 0, *, short: bool = False) -> str:
    """Say in a few words what an instance is; `short` leaves away what its name says as well."""
    facts = instance["attributes"]
    model, profile, netdev = (facts.get(name) for name in ("model", "mig_profile", "netdev"))
    if short and (profile or netdev):
        model = None
    elif short and model:
        model = str(model).removeprefix("NVIDIA ")
        if slices:
            model = f"{re.split('[ -]', model)[0]} …"
    words = [model, profile, netdev]
    if speed := facts.get("speed_mbps"):
        words.append(f"{speed / 1000:g}G" if short else f"{speed / 1000:g} Gbit/s")
    if (memory := facts.get("memory_bytes")) and not short:
        words.append(f"{memory / 2**30:.0f} GiB")
    words += [None if short and facts.get("state") == "up" else facts.get("state")]
    words.append(facts.get("port_range"))
    if slices:
        words.append(f"({slices} slice{'s' if slices > 1 else ''})")
    return " ".join(str(word) for word in words if word not in (None, ""))


def jobs_table(bindings: list[dict[str, Any]]) -> str:
    """Show bindings, a line for each; in a terminal, what each holds one below the other."""
    if not bindings:
        return "no job holds anything\n"
    header = ["JOB", "STATE", "SINCE", "PROCS", "HOLDS"]
    rows = [
        [
            Text(run_of(binding)),
            _standing(binding),
            Text(_when(binding["since"])[:16]),  # to the minute: a UUID must fit beside it
            Text({True: "yes", False: "none", None: "?"}[binding["populated"]]),
        ]
        for binding in bindings
    ]
    held = [[Text(one) for one in _held(binding) or ["nothing"]] for binding in bindings]
    room = columns()
    if room == _ENDLESS:
        grid = in_columns(
            header, [[*r, Text(", ").join(h)] for r, h in zip(rows, held, strict=True)]
        )
    else:
        lines: list[Row] = []
        for row, all_held in zip(rows, held, strict=True):
            lines.append([*row, all_held[0]])
            lines += [[*([Text()] * 4), one] for one in all_held[1:]]
        grid = (
            in_columns(header, lines)
            if _width(header, lines) <= room
            else in_columns(header[:4], rows, held)
        )
    faults = [
        Text.assemble(f"{run_of(b)}: ", _standing(b), f": {b['fault']}")
        for b in bindings
        if b.get("fault")
    ]
    notes = [
        Text(f"{run_of(one)} {'is held back' if _waits(one) else 'is not alone'}: {who}")
        for one in bindings
        for who in _who(one)
    ]
    return whole(grid) + rendered(*faults, *notes)


def _standing(binding: dict[str, Any]) -> Text:
    """Say in a word where a binding stands; one whose fence is not whole is unhealthy."""
    if binding.get("healthy", True):
        return Text(binding["state"])
    return Text("unhealthy", style="red")


def job_detail(binding: dict[str, Any]) -> str:
    """Show all of one binding."""
    facts = [
        ("job", binding["job"]),
        ("attempt", binding["attempt"] or "none given"),
        ("user", "not given" if binding["uid"] is None else str(binding["uid"])),
        ("state", binding["state"] + (f": {binding['reason']}" if binding["reason"] else "")),
        *((("unhealthy", binding["fault"]),) if binding.get("fault") else ()),
        ("since", _when(binding["since"])),
        ("last seen", _when(binding["last_seen"])),
        ("processes", {True: "yes", False: "none", None: "unknown"}[binding["populated"]]),
        ("enforcement", binding["enforcement"]),
        *((f"cgroup {kind}", path) for kind, path in binding["cgroup"].items()),
        *(("holds", held) for held in _held(binding)),
        *(("left" if _waits(binding) else "shared with", who) for who in _who(binding)),
        *(("environment", f"{name}={value}") for name, value in sorted(binding["env"].items())),
    ]
    lines = []
    for number, (name, text) in enumerate(facts):
        same = number and facts[number - 1][0] == name
        lines.append(folded(f"{'' if same else name:12} {text}", 13, room()))
    return "\n".join(lines) + "\n"


def _held(binding: dict[str, Any]) -> list[str]:
    ports = [
        f"port {port['port']}{' as ' + port['name'] if port['name'] else ''}"
        for port in binding["ports"]
    ]
    return [*binding["instances"], *ports]


def _waits(binding: dict[str, Any]) -> bool:
    return bool(binding["state"] == "quarantined")


def _who(binding: dict[str, Any]) -> list[str]:
    return [
        f"{one['comm'] or 'somebody'}{' (pid ' + str(one['pid']) + ')' if one['pid'] > 0 else ''}"
        f" {one['what']}"
        for one in binding.get("holders", ())
    ]


def _when(seconds: float) -> str:
    """Give a time as this host's clock shows it; `--json` has it in seconds since the epoch."""
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")  # noqa: DTZ006  # local
