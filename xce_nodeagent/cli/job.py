"""The bindings as a person sees them: all of them, or one."""

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
@with_json
@with_agent()
@pass_invocation
@example("xce-nodeagent jobs")
def jobs(invocation: Invocation) -> None:
    """List the bindings: who holds what, since when, and whether it has processes."""
    bindings = invocation.call("ListBindings", {})["bindings"]
    if invocation.json:
        invocation.show_json({"bindings": bindings})
        return
    from xce_nodeagent.cli.table import jobs_table  # noqa: PLC0415  # rich takes its time

    invocation.show(jobs_table(bindings))


@command()
@click.argument("job", metavar="ID")
@click.option("--attempt", metavar="TOKEN", help="This run of it.")
@with_json
@with_agent()
@pass_invocation
@example("xce-nodeagent job 17")
def job(invocation: Invocation, job: str, attempt: str | None) -> None:
    """Show one binding. Its environment is shown to its user and to who may prepare.

    `last seen` is when somebody last asked for it: a prepare, or a reconcile that named it. A
    restart of the agent sets it back to `since`.
    """
    binding = invocation.call("GetBinding", {"job": job, "attempt": attempt})["binding"]
    if invocation.json:
        invocation.show_json({"binding": binding})
        return
    from xce_nodeagent.cli.table import job_detail  # noqa: PLC0415  # rich takes its time

    invocation.show(job_detail(binding))
