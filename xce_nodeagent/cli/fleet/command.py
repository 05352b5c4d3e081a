"""The command `fleet`: what a whole fleet has, from the store that its agents report to."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

from xce_nodeagent.cli.invocation import (
    Invocation,
    command,
    example,
    pass_invocation,
    tell,
    with_json,
)
from xce_nodeagent.cli.width import room
from xce_nodeagent.errors import BadRequest
from xce_nodeagent.model.name import cleaned

if TYPE_CHECKING:
    from collections.abc import Callable

    from xce_nodeagent.cli.fleet.order import Wanted
    from xce_nodeagent.cli.fleet.settings import Settings
    from xce_nodeagent.cli.fleet.store import Followed, Store
    from xce_nodeagent.cli.fleet.table import Page
    from xce_nodeagent.cli.fleet.view import FleetView, NodeView

SECONDS = 20.0
"""How long to wait for the store unless told otherwise: as long as a reader of 10,000 nodes may
take to start."""

_SORTS = ("name", "state", "block", "shape", "free", "held", "unhealthy", "jobs", "changed")
_GLOB = frozenset("*?[")


def _free(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, int]]:
    found = []
    for value in values:
        kind, _sign, count = value.partition("=")
        if not kind or not (count.isdecimal() and count.isascii() and 0 < len(count) < 10):
            raise click.BadParameter(f"{value!r}: expected a type and a number, as in gpu=8")
        found.append((kind, int(count)))
    return found


def _deadline(_: click.Context, __: click.Parameter, value: float) -> float:
    if not 0 < value < 86400:  # NaN as well
        raise click.BadParameter(f"{value:g}: expected up to a day, in seconds")
    return value


@command()
@click.argument("names", metavar="[NODE]...", nargs=-1)
@click.option("--config", metavar="FILE", help="The configuration; XCE_NODEAGENT_CONFIG likewise.")
@click.option(
    "--endpoint", "endpoints", metavar="URL", multiple=True, help="A member of the store."
)
@click.option("--sort", type=click.Choice(_SORTS), help="What comes first; most first, or worst.")
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option(
    "--unhealthy", is_flag=True, help="Only nodes with something unhealthy, faults or rivals."
)
@click.option("--stale", is_flag=True, help="Only nodes that give no sign of life.")
@click.option(
    "--free",
    metavar="TYPE=N",
    multiple=True,
    callback=_free,
    help="Only nodes that have so many free; may be repeated.",
)
@click.option("--block", "blocks", metavar="GLOB", multiple=True, help="Only these switch blocks.")
@click.option("--all", "every", is_flag=True, help="A row for each node, however many there are.")
@click.option("--wide", is_flag=True, help="All reasons, and lines as long as they are.")
@click.option("--html", metavar="FILE", help="Draw a picture of it by switch block, as a page.")
@click.option("--watch", is_flag=True, help="Go on, and show what changes.")
@click.option("--forget", is_flag=True, help="Delete nodes that are gone for ever from the store.")
@click.option("--forget-shapes", is_flag=True, help="Delete what no node's report needs any more.")
@click.option("--yes", is_flag=True, help="Do not ask whether to delete.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of what --json prints.")
@click.option(
    "--deadline",
    type=float,
    metavar="SECONDS",
    default=SECONDS,
    callback=_deadline,
    help=f"How long to wait for the store; else {SECONDS:g}.",
)
@with_json
@pass_invocation
@example(
    "xce-nodeagent fleet",
    "xce-nodeagent fleet --free gpu=8 --sort block",
    "xce-nodeagent fleet --unhealthy --wide",
    "xce-nodeagent fleet 'rack7-*' --watch",
    "xce-nodeagent fleet rack7-n03",
    "xce-nodeagent fleet --html fleet.html",
    "xce-nodeagent fleet --json | jq '.nodes[] | select(.state != \"ok\") | .name'",
    "xce-nodeagent fleet --forget rack7-n03",
    "xce-nodeagent fleet --forget-shapes",
)
def fleet(  # noqa: PLR0917  # click gives them by name
    invocation: Invocation,
    names: tuple[str, ...],
    config: str | None,
    endpoints: tuple[str, ...],
    sort: str | None,
    free: list[tuple[str, int]],
    blocks: tuple[str, ...],
    html: str | None,
    deadline: float,
    *,
    reverse: bool,
    unhealthy: bool,
    stale: bool,
    every: bool,
    wide: bool,
    watch: bool,
    forget: bool,
    forget_shapes: bool,
    yes: bool,
    schema: bool,
) -> None:
    """Show all nodes that report to the store: what is free, who has what, what is wrong.

    Reads the store of [upstream.etcd], or of --endpoint. GPU 3/8 is three free of eight that are
    for jobs; `!` says that some of the others are unhealthy. A NODE is shown in full; one with *
    or ? in it chooses nodes. More nodes than the terminal has lines for are shown by switch block
    and shape, with those that somebody should look at; a pipe gets a line for each.

    \b
    STATE       ok, or the worst of:
    drained     some of its instances are
    unhealthy   some of its instances are
    two agents  another living agent claims its name; jobs may go there all the same
    faulty      the store has something of it that cannot be believed
    stale       its agent gives no sign of life
    unreadable  what it has cannot be read

    --watch shows what changes as it does, until interrupted; in a pipe a line for each node that
    changed, with --json a line of JSON for each change, the first with every node.

    --forget deletes all that the store has of a NODE, which must have no living agent. What hosts
    of one kind have in common is kept once for all of them, and stays when the last is updated or
    forgotten (3 kB for each kind): --forget-shapes deletes what none has any more.
    """  # noqa: D301  # \b keeps click from filling the lines
    if schema:
        from xce_nodeagent.cli.fleet.schema import schema as described  # noqa: PLC0415  # rarely

        invocation.show_json(described())
        return
    if html is not None and (watch or invocation.json):
        raise click.UsageError("--html is for one picture: without --watch and --json")
    if forget and (watch or html is not None or not names):
        raise click.UsageError("--forget is for NODEs, and shows nothing")
    if forget_shapes and (forget or watch or html is not None or names):
        raise click.UsageError("--forget-shapes is for the whole store, and shows nothing")
    from xce_nodeagent.cli.fleet import store as stores  # noqa: PLC0415  # only this command needs it
    from xce_nodeagent.cli.fleet.order import Wanted  # noqa: PLC0415  # the same
    from xce_nodeagent.cli.fleet.settings import settings as configured  # noqa: PLC0415  # the same

    globs = tuple(name for name in names if _GLOB & set(name))
    full = tuple(name for name in names if name not in globs)
    if full and watch:
        globs, full = names, ()
    wanted = Wanted(unhealthy=unhealthy, stale=stale, free=tuple(free), names=globs, blocks=blocks)
    settings = configured(os.environ, config, endpoints)
    if forget:
        if globs:
            raise click.UsageError("--forget takes names of nodes, no patterns")
        _forget(invocation, settings, full, deadline, yes=yes)
        return
    if forget_shapes:
        _forget_shapes(invocation, settings, deadline, yes=yes)
        return
    page = _page(every=every or bool(wanted) or sort is not None, wide=wide)
    choose = _chooser(wanted, sort or "name", reverse=reverse)
    if watch:
        with stores.followed(settings, deadline) as store:
            _watch(invocation, store, choose, page)
        return
    found = stores.look(settings, deadline)
    if full:
        _nodes(invocation, found, full, page())
    else:
        view = found.view()
        _tell_unknown(view, wanted)
        _show(invocation, view, choose(view), html, page())


def _tell_unknown(view: FleetView, wanted: Wanted) -> None:
    """Say which types nobody has: it may be a slip, and is not if all of them are gone now."""
    there = [one.type for one in view.summary.instances]
    for kind, _ in wanted.free:
        if kind not in there:
            tell(f"--free {kind}: no node has that type; there are {', '.join(there) or 'none'}")


def _chooser(
    wanted: Wanted, sort: str, *, reverse: bool
) -> Callable[[FleetView], tuple[NodeView, ...]]:
    from xce_nodeagent.cli.fleet.order import chosen, ordered  # noqa: PLC0415  # this alone

    return lambda view: ordered(chosen(view.nodes, wanted), sort, reverse=reverse)


def _page(*, every: bool, wide: bool) -> Callable[[], Page]:
    """Give what makes the page of this moment: a terminal may change its size."""
    from xce_nodeagent.cli.fleet.table import ENDLESS, Page  # noqa: PLC0415  # rich takes its time

    def now() -> Page:
        columns = room()
        return Page(
            columns=ENDLESS if wide or columns is None else columns,
            lines=None if columns is None else shutil.get_terminal_size().lines,
            now=time.time(),
            wide=wide,
            every=every,
        )

    return now


def _show(
    invocation: Invocation,
    view: FleetView,
    chosen: tuple[NodeView, ...],
    html: str | None,
    page: Page,
) -> None:
    if invocation.json:
        from xce_nodeagent.cli.fleet.view import told  # noqa: PLC0415  # only where it is asked for

        invocation.show_json(told(view, chosen))
    elif html is not None:
        from xce_nodeagent.cli.fleet.page import page as drawn  # noqa: PLC0415  # the same
        from xce_nodeagent.cli.inventory import put  # noqa: PLC0415  # the same

        put(invocation, "--html", html, drawn(view, chosen, page.now))
    else:
        from xce_nodeagent.cli.fleet.table import written  # noqa: PLC0415  # rich takes its time

        invocation.show(written(view, chosen, page))


def _nodes(invocation: Invocation, store: Store, names: tuple[str, ...], page: Page) -> None:
    view = store.view()
    known = {node.name: node for node in view.nodes}
    for name in names:
        if name not in known:
            raise BadRequest(
                f"NODE {name!r}: the store has no such node; `fleet` lists those that it has",
                node=name,
            )
    if invocation.json:
        from xce_nodeagent.cli.fleet.view import told  # noqa: PLC0415  # only where it is asked for

        value = told(view, [known[name] for name in names])
        for node in value["nodes"]:
            node["inventory"] = store.inventory(node["name"])
        invocation.show_json(value)
        return
    from xce_nodeagent.cli.fleet.reason import detail  # noqa: PLC0415  # rich takes its time
    from xce_nodeagent.cli.fleet.table import printed  # noqa: PLC0415  # the same
    from xce_nodeagent.cli.table import inventory_table  # noqa: PLC0415  # the same

    texts = []
    for name in names:
        texts.append(printed(detail(known[name], page.now), page))
        found = store.inventory(name)
        texts.append(
            "its inventory cannot be put together\n"
            if found is None
            else inventory_table(cleaned(found))
        )
    invocation.show("".join(texts))


def _watch(
    invocation: Invocation,
    store: Followed,
    chosen: Callable[[FleetView], tuple[NodeView, ...]],
    page: Callable[[], Page],
) -> None:
    from xce_nodeagent.cli.fleet import follow  # noqa: PLC0415  # rich takes its time

    every = follow.views(store, store.survey)
    if page().lines is None or invocation.json:
        follow.tell(every, chosen, invocation.show, as_json=invocation.json)
    else:
        follow.draw(every, chosen, page)


def _forget(
    invocation: Invocation,
    settings: Settings,
    names: tuple[str, ...],
    deadline: float,
    *,
    yes: bool,
) -> None:
    if not yes and not _confirmed(f"Delete all that the store has of {', '.join(names)}?"):
        return
    from xce_nodeagent.cli.fleet.forget import forget  # noqa: PLC0415  # rarely

    done = forget(settings, names, deadline)
    if invocation.json:
        invocation.show_json({"forgotten": done})
    else:
        invocation.show("\n".join(f"{name}: {count} keys deleted" for name, count in done.items()))


def _forget_shapes(
    invocation: Invocation, settings: Settings, deadline: float, *, yes: bool
) -> None:
    from xce_nodeagent.cli.fleet.forget import shapes  # noqa: PLC0415  # rarely
    from xce_nodeagent.cli.fleet.view import counted  # noqa: PLC0415  # the same

    if not yes:
        found = shapes(settings, deadline, dry_run=True)
        what = f"{counted(len(found.shapes), 'shape')} of {found.bytes:,} bytes that no node has"
        if found.shapes and not _confirmed(f"Delete {what}?"):
            return
    done = shapes(settings, deadline, dry_run=False)
    if invocation.json:
        invocation.show_json({"shapes": list(done.shapes), "bytes": done.bytes})
    else:
        invocation.show(f"{counted(len(done.shapes), 'shape')} deleted, {done.bytes:,} bytes")


def _confirmed(question: str) -> bool:
    try:
        if click.confirm(question, err=True):
            return True
    except click.Abort:
        if sys.stdin.isatty():
            raise
        tell("")  # behind the question
        raise BadRequest(
            "nobody is there to be asked, and nothing was deleted: add --yes"
        ) from None
    tell("nothing was deleted")
    return False
