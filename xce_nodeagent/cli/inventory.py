"""The inventory: from the agent, or looked up by the command itself."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click
import msgspec

from xce_nodeagent.cli.invocation import (
    LOOKING_SECONDS,
    Invocation,
    command,
    example,
    pass_invocation,
    with_agent,
    with_json,
)
from xce_nodeagent.cli.profile import with_simulate
from xce_nodeagent.cli.target import replace
from xce_nodeagent.errors import BadRequest
from xce_nodeagent.model import name


@command()
@click.option("--table", is_flag=True, help="A table (default).")
@click.option("--tree", is_flag=True, help="NUMA node, PCIe switch, devices.")
@click.option("--matrix", is_flag=True, help="How far cards and NICs are from each other.")
@click.option("--svg", metavar="FILE", help="Draw a picture of the node.")
@click.option("--html", metavar="FILE", help="The picture as a page, with a table to filter.")
@click.option("--local", is_flag=True, help="Look by this command itself, without the agent.")
@click.option("--sysroot", metavar="DIR", help="Look at a recorded machine's sys, proc and dev.")
@with_simulate()
@click.option("--record", metavar="DIR", help="Write what this command reads, for --sysroot.")
@click.option("--anonymize", is_flag=True, help="Record without serials, addresses and names.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of what --json prints.")
@with_json
@with_agent(LOOKING_SECONDS)
@pass_invocation
@example(
    "xce-nodeagent inventory --tree",
    "xce-nodeagent inventory --html node.html",
    "xce-nodeagent inventory --record /tmp/node --anonymize",
    "xce-nodeagent inventory --sysroot /tmp/node --svg node.svg",
)
def inventory(
    invocation: Invocation,
    *,
    table: bool,
    tree: bool,
    matrix: bool,
    svg: str | None,
    html: str | None,
    local: bool,
    sysroot: str | None,
    simulate: str,
    record: str | None,
    anonymize: bool,
    schema: bool,
) -> None:
    """Show this host's instances, and who holds them.

    Asks the agent. Looks by itself only with --local, --sysroot or --simulate, or where there is
    no socket at all; `source` in the answer says which. Who holds what, only the agent knows.

    A FILE that is there is replaced as a whole; `-` is stdout. --record writes to a new or empty
    folder, which --sysroot reads, what this command would look at, and nothing outside of it;
    without --anonymize also the files in which the site declares instances.
    """
    if table + tree + (matrix or invocation.json) + (svg is not None) + (html is not None) > 1:
        raise click.UsageError("give one of --table, --tree, --matrix, --svg, --html and --json")
    if schema:
        from xce_nodeagent.model.schema import schema as described  # noqa: PLC0415  # rarely

        invocation.show_json(described())
        return
    if sysroot is not None:
        expect_machine(sysroot)
    if anonymize and record is None:
        raise click.UsageError("--anonymize is for --record DIR")
    if record is not None:
        if table or tree or matrix or svg or html or simulate:
            raise click.UsageError("--record shows nothing and records no simulated machine")
        _record(invocation, record, sysroot, anonymize=anonymize)
        return
    if local or sysroot is not None or simulate or not invocation.has_socket():
        found = _look(sysroot, simulate)
        found = found if invocation.json else name.cleaned(found)
    else:
        found = invocation.call("GetInventory", {})
    if matrix:
        _show_matrix(invocation, found)
    elif invocation.json:
        invocation.show_json(found)
    elif svg is not None:
        from xce_nodeagent.cli.picture.svg import page as drawn  # noqa: PLC0415  # the same

        put(invocation, "--svg", svg, drawn(found))
    elif html is not None:
        from xce_nodeagent.cli.picture.html import page  # noqa: PLC0415  # the same

        put(invocation, "--html", html, page(found))
    elif tree:
        from xce_nodeagent.cli.tree import inventory_tree  # noqa: PLC0415  # rich takes its time

        invocation.show(inventory_tree(found))
    else:
        from xce_nodeagent.cli.table import inventory_table  # noqa: PLC0415  # the same

        invocation.show(inventory_table(found))


def _show_matrix(invocation: Invocation, found: dict[str, Any]) -> None:
    from xce_nodeagent.cli import matrix  # noqa: PLC0415  # rich takes its time
    from xce_nodeagent.cli.table import columns  # noqa: PLC0415  # the same

    chart = matrix.chart(found)
    if invocation.json:
        invocation.show_json(chart)
    else:
        invocation.show(matrix.matrix(found, chart, columns()))


def _look(sysroot: str | None, simulate: str) -> dict[str, Any]:
    from xce_nodeagent.cli.local import look  # noqa: PLC0415  # discovery's libraries take time

    value: dict[str, Any] = msgspec.to_builtins(look(sysroot, simulate))
    return value


def _record(invocation: Invocation, folder: str, sysroot: str | None, *, anonymize: bool) -> None:
    from xce_nodeagent.cli import record  # noqa: PLC0415  # the same

    done = record.record(folder, sysroot, anonymize=anonymize)
    if invocation.json:
        invocation.show_json(done)
        return
    lines = [
        f"{folder}: {done['files']} files, {done['links']} links and {done['folders']} folders",
        f"look at it: xce-nodeagent inventory --sysroot {shlex.quote(folder)}",
    ]
    if not anonymize:
        lines.append("it has serial numbers, addresses and names in it; --anonymize replaces them")
    invocation.show("\n".join(map(name.printable, lines)))


def put(invocation: Invocation, option: str, file: str, text: str) -> None:
    """Write to a file, or to stdout for `-`. A file that is there is replaced as a whole."""
    if file == "-":
        invocation.show(text)
        return
    try:
        replace(file, text)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadRequest(f"{option} {file!r}: {why}; name a file that can be written") from error


def expect_machine(sysroot: str) -> None:
    """Raise BadRequest where a folder has nothing of a machine in it."""
    parts = ("sys", "proc", "dev")
    if not (sysroot and any(os.path.isdir(f"{sysroot}/{part}") for part in parts)):
        raise BadRequest(f"--sysroot {sysroot!r}: expected a folder with sys, proc and dev in it")
