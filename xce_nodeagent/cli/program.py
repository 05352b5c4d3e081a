"""A program that runs bound: `exec`, and what `join` becomes.

These commands are clients and may fork; the agent may not. The child asks to be moved into the
job's cgroup before it becomes the command, so no instruction of the command runs outside.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from xce_nodeagent.cli.binding import port_asks, tell_left_over
from xce_nodeagent.cli.session import Session, example, pass_session, with_socket
from xce_nodeagent.errors import BY_CODE, AgentError, Internal, NotReady

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
              signal.SIGUSR2)  # fmt: skip
_SI_KERNEL = 0x80  # siginfo(2), si_code: the terminal sent it, to the whole group
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # as every shell ends


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.option("--job", metavar="ID", help="The job's id; else exec-PID-RANDOM.")
@click.option("--attempt", metavar="TOKEN", help="A token for this run of it; else random.")
@click.option(
    "--instance",
    "instances",
    metavar="ID",
    multiple=True,
    help="An instance by its id; may be repeated.",
)
@click.option("--request", metavar="TEXT", help="Let the agent select, as 'rusage[gpu=2:nic=1]'.")
@click.option("--ports", metavar="[NAME=]COUNT", multiple=True, help="Let the agent choose ports.")
@click.option("--port", metavar="[NAME=]VALUE", multiple=True, help="This port.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@with_socket
@pass_session
@example("xce-nodeagent exec --request 'rusage[gpu=1]' -- nvidia-smi -L")
def run_bound(  # noqa: PLR0917  # click gives them by name
    session: Session,
    job: str | None,
    attempt: str | None,
    instances: tuple[str, ...],
    request: str | None,
    ports: tuple[str, ...],
    port: tuple[str, ...],
    command: tuple[str, ...],
) -> int:
    """Prepare, run COMMAND bound to what was granted, release.

    Ends as the command did: with its status, with 128 and the number of the signal that ended
    it, with 127 when there is no such command and 126 when it cannot be run. Signals are passed
    on to the command; while the agent is asked, they wait.
    """
    token = secrets.token_hex(4)
    ref = {"job": job or f"exec-{os.getpid()}-{token}", "attempt": attempt or token}
    asked = {
        **ref,
        "uid": os.getuid(),
        "instances": instances or None,
        "request": request,
        "ports": port_asks(ports, port) or None,
    }
    # Blocked until all is released, and taken one by one meanwhile: none is lost, and none ends
    # us with a binding left behind.
    taken = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, taken)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the status away
    try:
        try:
            env = session.call("Prepare", asked)["env"]
        except NotReady:
            if not attempt:  # nobody else knows this token: what may have been done is ours
                _release(session, ref)
            raise
        try:
            return _run(session, ref, command, env, before)
        finally:
            _release(session, ref)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _release(session: Session, ref: dict[str, Any]) -> None:
    """Release; when that fails, say so, and let the command's status stand."""
    try:
        answer = session.call("Release", ref)
    except AgentError as error:
        click.echo(f"xce-nodeagent: job {ref['job']} is not released: {error.message}", err=True)
    else:
        tell_left_over(ref["job"], {**answer, "known": True})


def _run(
    session: Session,
    ref: dict[str, Any],
    command: Sequence[str],
    env: dict[str, str],
    before: set[int | signal.Signals],
) -> int:
    reading, writing = os.pipe()  # closed by the exec; else it brings the reason
    child = os.fork()
    if child == 0:
        os.close(reading)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _child(session, ref, command, env, writing)
    os.close(writing)
    status = _wait(child)
    with open(reading, "rb") as pipe:
        reason = pipe.read()
    if reason:
        raise _told(reason)
    return status


def _wait(child: int) -> int:
    while True:
        info = signal.sigwaitinfo({*_FORWARDED, signal.SIGCHLD})
        if info.si_signo != signal.SIGCHLD:
            # What the terminal sends goes to the command as well, which is in the same group.
            if info.si_code != _SI_KERNEL:
                os.kill(child, info.si_signo)
            continue
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _child(
    session: Session, ref: dict[str, Any], command: Sequence[str], env: dict[str, str], pipe: int
) -> NoReturn:
    """Move in and become the command; tell a failed move through the pipe. Never returns."""
    try:
        joined = session.call("Join", ref)
        become(command, {**env, **joined["env"]})
    except AgentError as error:
        told = {"code": error.code, "message": error.message, "details": error.details}
        os.write(pipe, json.dumps(told, default=str).encode()[:65536])
    finally:
        os._exit(_NOT_EXECUTABLE)


def _told(reason: bytes) -> AgentError:
    try:
        told = json.loads(reason)
        error = BY_CODE[told["code"]](f"the command was not run: {told['message']}")
        error.details = told["details"]
    except (ValueError, KeyError):
        return Internal("the command was not run, and why got lost on the way")
    return error


def become(command: Sequence[str], env: dict[str, str]) -> NoReturn:
    """Become the command, with `env` over our own; end as a shell does when that fails."""
    for name in (signal.SIGPIPE, signal.SIGXFSZ):  # the interpreter ignores them, commands must not
        signal.signal(name, signal.SIG_DFL)
    env = {**os.environ, **env}
    try:
        os.execvpe(command[0], list(command), env)  # noqa: S606  # asked for
    except OSError as error:
        why, status = error.strerror or str(error), _NOT_EXECUTABLE
        # A folder of PATH that we may not enter says EACCES for a name that is nowhere.
        places = [""] if "/" in command[0] else os.get_exec_path(env)
        if not any(os.path.lexists(os.path.join(place, command[0])) for place in places):
            why, status = "there is no such command", _NOT_FOUND
    except ValueError as error:  # a NUL in a word
        why, status = str(error), _NOT_EXECUTABLE
    click.echo(f"xce-nodeagent: {command[0]}: {why}", err=True)
    os._exit(status)
