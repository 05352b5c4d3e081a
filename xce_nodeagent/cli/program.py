"""A program that runs bound: `exec`, and what `join` becomes.

These commands are clients and may fork; the agent may not. The child asks to be moved into the
job's cgroup before it becomes the command, so no instruction of the command runs outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from xce_nodeagent.cli.binding import KILL, port_asks, tell_left_over
from xce_nodeagent.cli.invocation import (
    Invocation,
    command,
    example,
    pass_invocation,
    run_of,
    tell,
    with_agent,
)
from xce_nodeagent.errors import BY_CODE, AgentError, Internal, NotReady

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
              signal.SIGUSR2)  # fmt: skip
_CUTTING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
_CUT_SECONDS = 2.0  # for the release, once somebody wants us to end and no command has run
_STARTED = b"+"  # through the pipe, when the command is about to be what runs
_SI_KERNEL = 0x80  # siginfo(2), si_code: the terminal sent it, to the whole group
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # as every shell ends


@command("exec", context_settings={"allow_interspersed_args": False})
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
@click.option("--kill", is_flag=True, help="End what COMMAND leaves behind, where that may be.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@with_agent()
@pass_invocation
@example("xce-nodeagent exec --request 'rusage[gpu=1]' -- nvidia-smi -L")
def run_bound(  # noqa: PLR0917  # click gives them by name
    invocation: Invocation,
    job: str | None,
    attempt: str | None,
    instances: tuple[str, ...],
    request: str | None,
    ports: tuple[str, ...],
    port: tuple[str, ...],
    command: tuple[str, ...],
    *,
    kill: bool,
) -> int:
    """Prepare, run COMMAND bound to what was granted, release.

    Ends as the command did: with its status, with 128 and the number of the signal that ended
    it, with 127 when there is no such command and 126 when it cannot be run. Signals are passed
    on to the command. One that comes before there is a command ends it all: what was bound is
    released, which takes two seconds at most.
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
            with _cut_short(before):
                env = invocation.call("Prepare", asked)["env"]
        except NotReady as error:
            # Nobody else knows this token: what may have been done is ours.
            if error.details.get("unanswered") and not attempt:
                _release(invocation, ref)
            raise
        except _Cut as cut:
            if attempt:  # it may be of a prepare that was not ours
                tell(f"job {run_of(ref)} may hold what was asked for: see `jobs`, and release it")
            else:
                _release(invocation, ref, _CUT_SECONDS)
            return 128 + cut.number
        seconds = None
        try:
            return _run(invocation, ref, command, env, before)
        except _Cut as cut:
            seconds = _CUT_SECONDS
            return 128 + cut.number
        finally:
            _release(invocation, {**ref, "kill": KILL} if kill else ref, seconds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Cut(Exception):
    """A signal wants us to end, and there is no command yet."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _cut_short(before: set[int | signal.Signals]) -> Iterator[None]:
    """Let signals end the wait inside; raises _Cut. What was blocked or ignored stays so."""

    def cut(number: int, _: FrameType | None) -> None:
        raise _Cut(number)

    open_ones = _CUTTING - before
    old = {
        number: signal.getsignal(number)
        for number in open_ones
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        for number in old:
            signal.signal(number, cut)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, set(old))
        try:
            yield
        finally:
            # What comes until here is raised by this very call, and later ones wait.
            signal.pthread_sigmask(signal.SIG_BLOCK, set(old))
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _release(invocation: Invocation, ref: dict[str, Any], seconds: float | None = None) -> None:
    """Release; when that fails, say so, and let the command's status stand."""
    try:
        answer = invocation.call("Release", ref, seconds)
    except AgentError as error:
        tell(f"job {run_of(ref)} is not released: {error.message}")
    else:
        tell_left_over(ref, {**answer, "known": True})


def _run(
    invocation: Invocation,
    ref: dict[str, Any],
    command: Sequence[str],
    env: dict[str, str],
    before: set[int | signal.Signals],
) -> int:
    reading, writing = os.pipe()  # closed by the exec; it brings the start, or why there was none
    child = os.fork()
    if child == 0:
        os.close(reading)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _child(invocation, ref, command, env, writing)
    os.close(writing)
    status = _wait(child)
    with open(reading, "rb") as pipe:
        told = pipe.read()
    if told == _STARTED:
        return status
    if not told and status > 128:  # the signal that was passed on has met no command
        raise _Cut(status - 128)
    raise _told(told)


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
    invocation: Invocation,
    ref: dict[str, Any],
    command: Sequence[str],
    env: dict[str, str],
    pipe: int,
) -> NoReturn:
    """Move in and become the command; tell a failed move through the pipe. Never returns."""
    try:
        joined = invocation.call("Join", ref)
        os.write(pipe, _STARTED)
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
    tell(f"{command[0]}: {why}")
    os._exit(status)
