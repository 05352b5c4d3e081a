"""The bindings as a person sees them: all of them, or one."""

from __future__ import annotations

import click

from xce_nodeagent.cli.session import Session, command, example, pass_session, with_agent, with_json


@command()
@with_json
@with_agent()
@pass_session
@example("xce-nodeagent jobs")
def jobs(session: Session) -> None:
    """List the bindings: who holds what, since when, and whether it has processes."""
    bindings = session.call("ListBindings", {})["bindings"]
    if session.json:
        session.show_json({"bindings": bindings})
        return
    from xce_nodeagent.cli.table import jobs_table  # noqa: PLC0415  # rich takes its time

    session.show(jobs_table(bindings))


@command()
@click.argument("job", metavar="ID")
@click.option("--attempt", metavar="TOKEN", help="This run of it.")
@with_json
@with_agent()
@pass_session
@example("xce-nodeagent job 17")
def job(session: Session, job: str, attempt: str | None) -> None:
    """Show one binding. Its environment is shown to its user and to who may prepare.

    `last seen` is when somebody last asked for it: a prepare, or a reconcile that named it. A
    restart of the agent sets it back to `since`.
    """
    binding = session.call("GetBinding", {"job": job, "attempt": attempt})["binding"]
    if session.json:
        session.show_json({"binding": binding})
        return
    from xce_nodeagent.cli.table import job_detail  # noqa: PLC0415  # rich takes its time

    session.show(job_detail(binding))
