"""One instance: keeping it from being granted, and letting it."""

from __future__ import annotations

import click

from xce_nodeagent.cli.session import Session, command, example, pass_session, with_agent, with_json


@command()
@click.argument("instance", metavar="ID")
@click.option("--reason", metavar="TEXT", required=True, help="Why; who looks will read it.")
@with_json
@with_agent()
@pass_session
@example("xce-nodeagent drain 0000:3b:00.0 --reason 'cable is to be changed'")
def drain(session: Session, instance: str, reason: str) -> None:
    """Keep an instance from being granted. Who holds it keeps it."""
    session.call("Drain", {"id": instance, "reason": reason})
    if session.json:
        session.show_json({"id": instance, "drained": True, "reason": reason})


@command()
@click.argument("instance", metavar="ID")
@with_json
@with_agent()
@pass_session
@example("xce-nodeagent undrain 0000:3b:00.0")
def undrain(session: Session, instance: str) -> None:
    """Let an instance be granted again."""
    session.call("Undrain", {"id": instance})
    if session.json:
        session.show_json({"id": instance, "drained": False})
