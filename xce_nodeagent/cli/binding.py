"""A binding: prepare, release, join, reconcile."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from xce_nodeagent.cli.invocation import (
    Invocation,
    command,
    example,
    pass_invocation,
    run_of,
    tell,
    with_agent,
    with_json,
)
from xce_nodeagent.errors import BadRequest

_FORMATS = click.Choice(["env", "shell", "json"])
_UID = click.IntRange(0, 2**32 - 2)  # model.wire.Uid says why
_PID = click.IntRange(1, 2**22)  # model.wire.Pid
_job = click.option("--job", metavar="ID", required=True, help="The job's id.")
_attempt = click.option("--attempt", metavar="TOKEN", help="The caller's token for this run of it.")
_instance = click.option(
    "--instance",
    "instances",
    metavar="ID",
    multiple=True,
    help="An instance by its id; may be repeated.",
)


@command()
@_job
@_attempt
@_instance
@click.option("--request", metavar="TEXT", help="Let the agent select, as 'rusage[gpu=2:nic=1]'.")
@click.option("--add", is_flag=True, help="Grow the job's binding.")
@click.option("--cgroup", metavar="PATH", help="Bind this cgroup instead of a new one.")
@click.option("--pid", type=_PID, help="Bind the cgroup of this process.")
@click.option("--adopt", is_flag=True, help="The cgroup may have processes already.")
@click.option("--uid", type=_UID, help="The job's user.")
@click.option("--generation", metavar="BOOT:N", help="The inventory that was chosen from.")
@click.option("--ports", metavar="[NAME=]COUNT", multiple=True, help="Let the agent choose ports.")
@click.option("--port", metavar="[NAME=]VALUE", multiple=True, help="This port.")
@click.option("--format", "style", type=_FORMATS, help="env unless said otherwise.")
@with_json
@with_agent()
@pass_invocation
@example("xce-nodeagent prepare --job 17 --request 'rusage[gpu=2]' --ports http=1")
def prepare(
    invocation: Invocation,
    /,
    *,
    instances: tuple[str, ...],
    ports: tuple[str, ...],
    port: tuple[str, ...],
    style: str | None,
    add: bool,
    adopt: bool,
    **asked: Any,
) -> None:
    """Bind instances to a job, and print its environment.

    With --format, `env` gives NAME=VALUE lines, `shell` export lines to evaluate, `json` the
    whole answer. The same call again gives the same answer.
    """
    if invocation.json and style not in (None, "json"):
        raise click.UsageError(f"give --json or --format {style}, not both")
    invocation.json = invocation.json or style == "json"
    answer = invocation.call("Prepare", {
        **asked,
        "instances": instances or None,
        "ports": port_asks(ports, port) or None,
        "add": add or None,
        "adopt": adopt or None,
    })  # fmt: skip
    if invocation.json:
        invocation.show_json(answer)
    else:
        invocation.show(environment(answer["env"], style or "env"))


def port_asks(ports: Sequence[str], port: Sequence[str]) -> list[dict[str, Any]]:
    """Read `--ports [NAME=]COUNT` and `--port [NAME=]VALUE`."""
    asks: list[dict[str, Any]] = []
    for option, field, texts in (("--ports", "count", ports), ("--port", "port", port)):
        for text in texts:
            name, named, number = text.rpartition("=")
            # Longer than the agent's own check and the wire's integers could be asked to judge.
            if not number.isascii() or not number.isdecimal() or len(number) > 9:
                raise BadRequest(f"{option} {text!r}: expected [NAME=]NUMBER, such as http=1")
            asks.append({"name": name, field: int(number)} if named else {field: int(number)})
    return asks


def environment(variables: dict[str, str], style: str) -> str:
    """Write variables as lines: plain (`env`), or to be evaluated by a shell (`shell`).

    The agent's values hold neither newline nor NUL, so a line is a variable.
    """
    if style == "shell":
        return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in variables.items())
    return "".join(f"{name}={text}\n" for name, text in variables.items())


KILL = "term-then-kill"


@command()
@_job
@_attempt
@_instance
@click.option("--kill", is_flag=True, help="End what is left in its cgroup, where that may be.")
@with_json
@with_agent()
@pass_invocation
@example("xce-nodeagent release --job 17 --attempt 1")
def release(
    invocation: Invocation, job: str, attempt: str | None, instances: tuple[str, ...], *, kill: bool
) -> None:
    """Release what a job holds; with --instance, only that.

    Without --attempt, every run of the job. Processes that are left over are told, and what they
    hold is kept back until they are gone: that is no failure. Nor is a job that is not known.
    With --kill, those in the job's cgroup get SIGTERM, and SIGKILL a while later. Where the
    node's configuration does not allow that, the job is released, nobody is ended, and stderr
    says so.
    """
    asked = {
        "job": job,
        "attempt": attempt,
        "instances": instances or None,
        "kill": KILL if kill else None,
    }
    answer = invocation.call("Release", asked)
    tell_left_over(asked, answer)
    if invocation.json:
        invocation.show_json(answer)


def tell_left_over(ref: Mapping[str, Any], answer: dict[str, Any]) -> None:
    """Say on stderr what a person should know of a release that was no plain success."""
    job = run_of(ref)
    if not answer["known"]:
        tell(f"job {job} held nothing")
    if not answer["clean"]:
        left = ", ".join(
            f"{one['pid']} ({one['comm']}: {one['what']})" for one in answer["holders"]
        )
        held = ", ".join(_held_back(answer)) or "nothing"
        if left:
            tell(
                f"job {job} is released, but left processes: {left}\n"
                f"held back until they are gone: {held}"
            )
        else:
            tell(f"job {job} is released; held back until the kernel has taken it away: {held}")
        if answer.get("killing"):
            tell(
                "those in the job's cgroup are being ended; `xce-nodeagent jobs` shows who is left"
            )
    if answer.get("not_killed"):
        tell(f"job {job} is released, and no process was ended: {answer['not_killed']}")
    if not answer["recorded"]:
        tell(
            f"job {job} is released, but the ledger cannot be written\n"
            "release it again until it can"
        )


def _held_back(answer: dict[str, Any]) -> list[str]:
    """Name what is held back; of a range, which ports."""
    ports = sorted(answer.get("ports", ()))
    if not ports:
        return list(answer["quarantined"])
    runs: list[list[int]] = []
    for port in ports:
        if runs and port == runs[-1][-1] + 1:
            runs[-1].append(port)
        else:
            runs.append([port])
    named = [f"port {run[0]}" if len(run) == 1 else f"ports {run[0]}-{run[-1]}" for run in runs]
    return [*(one for one in answer["quarantined"] if one != "ports"), *named]


@command(context_settings={"allow_interspersed_args": False})
@_job
@_attempt
@click.option("--pid", type=_PID, help="Move this process.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@with_json
@with_agent()
@pass_invocation
@example("xce-nodeagent join --job 17 -- ./step.sh")
def join(
    invocation: Invocation, job: str, attempt: str | None, pid: int | None, command: tuple[str, ...]
) -> None:
    """Move a process into a job's cgroup.

    With a COMMAND, it becomes that command, inside and with the job's environment. Otherwise it
    moves the process of --pid, or else the shell that calls it.
    """
    if command and pid is not None:
        raise click.UsageError("give --pid or a COMMAND, not both")
    moved = None if command else os.getppid() if pid is None else pid
    answer = invocation.call("Join", {"job": job, "attempt": attempt, "pid": moved})
    if command:
        from xce_nodeagent.cli.program import become  # noqa: PLC0415  # only then

        become(command, answer["env"])
    elif invocation.json:
        invocation.show_json(answer)


@command()
@click.argument("jobs", nargs=-1, metavar="[JOB[:ATTEMPT]]...")
@with_json
@with_agent()
@pass_invocation
@example("xce-nodeagent reconcile 17:1 18:1")
def reconcile(invocation: Invocation, jobs: tuple[str, ...]) -> None:
    """Release every binding that is not named.

    Without arguments, reads JSON from stdin: a list of {"job", "attempt"}, or {"jobs": [...]}.
    An empty list releases all. A job id with a colon needs the JSON.
    """
    named = [_ref(text) for text in jobs] if jobs else _refs(sys.stdin)
    answer = invocation.call("Reconcile", {"jobs": named})
    if invocation.json:
        invocation.show_json(answer)
        return
    lines = [
        f"{what:9}{run_of(ref)}"
        for what in ("kept", "released", "unclean", "unknown")
        for ref in answer[what]
    ]
    invocation.show("\n".join(lines))


def _ref(text: str) -> dict[str, Any]:
    job, _, attempt = text.partition(":")
    return {"job": job, "attempt": attempt or None}


def _refs(stream: Any) -> list[dict[str, Any]]:
    if stream.isatty():
        raise BadRequest("no job named: give JOB[:ATTEMPT]..., or a JSON list on stdin")
    try:
        value = json.load(stream)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"stdin: no JSON: {error}") from None
    if isinstance(value, dict) and set(value) == {"jobs"}:
        value = value["jobs"]
    if not isinstance(value, list):
        raise BadRequest('stdin: expected a list of {"job", "attempt"}, or {"jobs": [...]}')
    for number, one in enumerate(value, 1):
        if (
            not isinstance(one, dict)
            or not isinstance(one.get("job"), str)
            or not isinstance(one.get("attempt"), str | None)
            or not set(one) <= {"job", "attempt"}
        ):
            raise BadRequest(
                f"stdin: entry {number}: {json.dumps(one)[:80]}; expected"
                ' {"job": ID, "attempt": TOKEN}, both texts; attempt may be left out'
            )
    return value
