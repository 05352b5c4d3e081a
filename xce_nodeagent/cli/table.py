"""Tables for people. They fit the terminal, 80 columns included, and colour only a terminal.

Nothing is cut off: an id is there to be copied, so a long cell goes on in the next line.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

_WIDE = 110  # columns from which on there is room to say what a device is


def rendered(*parts: RenderableType) -> str:
    """Give what the parts look like on this stdout."""
    console = Console(highlight=False)
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def inventory_table(inventory: dict[str, Any]) -> str:
    """Show instances with their state and holders, then what is wrong."""
    wide = Console().width >= _WIDE
    table = _table("ID", "TYPE", "NUMA", *(["WHAT"] if wide else []), "STATE", "HELD BY")
    for instance in inventory["instances"]:
        numa = instance["attributes"].get("numa_node")
        table.add_row(
            Text(instance["id"]),
            Text(instance["type"]),
            Text("" if numa is None else str(numa)),
            *([Text(about(instance))] if wide else []),
            state(instance),
            holders(instance),
        )
    source = "the agent" if inventory["source"] == "agent" else "this command, not the agent"
    parts: list[RenderableType] = [
        Text(f"{inventory['node']}, as seen by {source}", style="bold"),
        Text(f"generation {inventory['generation']}"),
        table,
    ]
    return rendered(*parts, *problems(inventory))


def problems(inventory: dict[str, Any]) -> Iterable[RenderableType]:
    """Say what is wrong: why an instance is not granted, and what discovery could not find out."""
    for instance in inventory["instances"]:
        if instance["reason"] and (instance["drained"] or not instance["healthy"]):
            yield Text.assemble(f"{instance['id']}: ", state(instance), f": {instance['reason']}")
    for problem in inventory["problems"]:
        told = problem["state"].replace("_", " ")
        yield Text(f"{problem['provider']}: {told}: {problem['reason']}")


def state(instance: dict[str, Any]) -> Text:
    """Say in a word whether an instance can be granted."""
    if not instance["healthy"]:
        return Text("unhealthy", style="red")
    return Text("drained", style="yellow") if instance["drained"] else Text("ok", style="green")


def holders(instance: dict[str, Any]) -> Text:
    """Say who holds an instance; `?` where nobody who knows was asked."""
    held = instance["held_by"]
    if held is None:
        return Text("?")
    shown = [_run_of(holder) for holder in held[:3]]
    return Text(", ".join(shown) + (f" and {len(held) - 3} more" if len(held) > 3 else ""))


def about(instance: dict[str, Any]) -> str:
    """Say in a few words what an instance is."""
    facts = instance["attributes"]
    words = [facts.get("model"), facts.get("mig_profile"), facts.get("netdev")]
    if speed := facts.get("speed_mbps"):
        words.append(f"{speed / 1000:g} Gbit/s")
    if memory := facts.get("memory_bytes"):
        words.append(f"{memory / 2**30:.0f} GiB")
    words += [facts.get("state"), facts.get("port_range")]
    return " ".join(str(word) for word in words if word not in (None, ""))


def jobs_table(bindings: list[dict[str, Any]]) -> str:
    """Show bindings, a line for each."""
    if not bindings:
        return "no job holds anything\n"
    table = _table("JOB", "STATE", "SINCE", "PROCS", "HOLDS")
    for binding in bindings:
        populated = {True: "yes", False: "none", None: "?"}[binding["populated"]]
        table.add_row(
            Text(_run_of(binding)),
            Text(binding["state"]),
            Text(_when(binding["since"])[:16]),  # to the minute: a UUID must fit beside it
            Text(populated),
            Text("\n".join(_held(binding)) or "nothing"),
        )
    return rendered(table)


def job_detail(binding: dict[str, Any]) -> str:
    """Show all of one binding."""
    facts = [
        ("job", binding["job"]),
        ("attempt", binding["attempt"] or "none given"),
        ("user", "unknown" if binding["uid"] is None else str(binding["uid"])),
        ("state", binding["state"] + (f": {binding['reason']}" if binding["reason"] else "")),
        ("since", _when(binding["since"])),
        ("last seen", _when(binding["last_seen"])),
        ("processes", {True: "yes", False: "none", None: "unknown"}[binding["populated"]]),
        ("enforcement", binding["enforcement"]),
        *((f"cgroup {kind}", path) for kind, path in binding["cgroup"].items()),
        *(("holds", held) for held in _held(binding)),
        *(("environment", f"{name}={value}") for name, value in binding["env"].items()),
    ]
    lines = []
    for number, (name, text) in enumerate(facts):
        same = number and facts[number - 1][0] == name
        lines.append(f"{'' if same else name:12} {text}")
    return "\n".join(lines) + "\n"


def _held(binding: dict[str, Any]) -> list[str]:
    ports = [
        f"port {port['port']}{' as ' + port['name'] if port['name'] else ''}"
        for port in binding["ports"]
    ]
    return [*binding["instances"], *ports]


def _run_of(ref: dict[str, Any]) -> str:
    return f"{ref['job']}:{ref['attempt']}" if ref["attempt"] else str(ref["job"])


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
