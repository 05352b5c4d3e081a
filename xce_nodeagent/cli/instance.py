"""One instance: keeping it from being granted, and letting it."""

from __future__ import annotations

import click

from xce_nodeagent.cli.invocation import (
    Invocation,
    command,
    example,
    pass_invocation,
    with_agent,
    with_json,
)


@command()
@click.argument("instance", metavar="ID")
@click.option("--reason", metavar="TEXT", required=True, help="Why; who looks will read it.")
@with_json
@with_agent()
@pass_invocation
@example("xce-nodeagent drain 0000:3b:00.0 --reason 'cable is to be changed'")
def drain(invocation: Invocation, instance: str, reason: str) -> None:
    """Keep an instance from being granted. Who holds it keeps it."""
    invocation.call("Drain", {"id": instance, "reason": reason})
    if invocation.json:
        invocation.show_json({"id": instance, "drained": True, "reason": reason})


@command()
@click.argument("instance", metavar="ID")
@with_json
@with_agent()
@pass_invocation
@example("xce-nodeagent undrain 0000:3b:00.0")
def undrain(invocation: Invocation, instance: str) -> None:
    """Let an instance be granted again."""
    invocation.call("Undrain", {"id": instance})
    if invocation.json:
        invocation.show_json({"id": instance, "drained": False})
