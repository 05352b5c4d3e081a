"""One call of the program: where the agent is, how it is answered, and the one way to print."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import io
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from xce_nodeagent.daemon import client
from xce_nodeagent.errors import AgentError, BadRequest, ErrorClass, Internal
from xce_nodeagent.model import name as names
from xce_nodeagent.model import place

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

SECONDS = 30.0
"""How long a command waits for the agent's answer unless told otherwise."""

LOOKING_SECONDS = 5.0
"""The same for a command that only looks: whoever types it waits for it."""

_OPTIONS = {"instances": "--instance", "job": "--job", "id": "ID", "jobs": "JOB"}
"""What a person calls a parameter of the socket, where it is not `--` and its name."""


class Invocation:
    """What the commands of one call of the program share."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        runtime = environ.get("XCE_NODEAGENT_RUNTIME_DIR") or place.RUNTIME
        self.socket = environ.get("XCE_NODEAGENT_SOCKET") or f"{runtime}/{place.SOCKET_NAME}"
        self.seconds = SECONDS
        self.json = False

    def call(self, method: str, parameters: dict[str, Any], timeout: float | None = None) -> Any:
        """Ask the agent; see `client.call`. Waits for `--deadline` unless told otherwise."""
        for name, value in parameters.items():
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and not _is_unicode(text):
                    raise BadRequest(f"{_option(name)}: {text!r} is not UTF-8", field=name)
        try:
            answer = client.call(
                method, parameters, self.socket, self.seconds if timeout is None else timeout
            )
        except BadRequest as error:
            error.message = _for_people(error)
            raise
        if not names.environment(answer.get("env", {})):
            raise Internal(
                f"socket {self.socket}: the answer has variables that cannot be given to a shell"
                " or a program; look who answers there"
            )
        if self.json:
            return answer
        return {key: one if key == "env" else names.cleaned(one) for key, one in answer.items()}

    def has_socket(self) -> bool:
        """Whether there is a socket at all; one that refuses, or that we may not see, is one."""
        try:
            os.stat(self.socket)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def show(self, text: str) -> None:
        """Print what was asked for.

        A reader that has gone ends the command with the status of SIGPIPE, as with any filter.
        The signal itself stays ignored: it would also come from the agent's socket. Where it
        cannot be written for another reason, a caller may ask again: that is transient.
        """
        try:
            _write(text)
        except BrokenPipeError:
            raise click.exceptions.Exit(128 + 13) from None
        except OSError as error:
            tell(
                f"done, but the answer cannot be written: {error.strerror}; ask again, that is safe"
            )
            raise click.exceptions.Exit(ErrorClass.TRANSIENT.exit_status) from None

    def show_json(self, value: Any) -> None:
        """Print a value as JSON for programs and people."""
        self.show(json.dumps(value, indent=2))

    def fail(self, error: AgentError) -> int:
        """Tell an error: the message on stderr and, after `--json`, all of it on stdout as well.

        A program that asked for JSON so always gets JSON: `{"error": {code, class, message,
        details}}`, and no command's own answer has a field `error`.
        """
        tell(error.message)
        if self.json:
            facts = {
                "code": error.code,
                "class": str(error.error_class),
                "message": error.message,
                "details": error.details,
            }
            with contextlib.suppress(OSError):  # the status is the error's
                _write(json.dumps({"error": facts}, indent=2, default=str))
        return error.exit_status


def _write(text: str) -> None:
    """Write all of it to stdout; raise OSError, and then leave nothing for a later flush."""
    if not text:
        return
    if sys.stdout is None:  # it was closed when we started; another file may have its number now
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # rather than stop at what it has no letter for
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # the interpreter flushes once more at its end
        os.close(nowhere)
        raise


def tell(message: str) -> None:
    """Tell a person something, with our name before it."""
    tell_plain(f"xce-nodeagent: {message}\n")


def tell_plain(text: str) -> None:
    """Write to stderr, past its buffer; it may be closed or full as well.

    What others chose may be in it, so a terminal is given nothing to obey.
    """
    text = "\n".join(map(names.printable, text.split("\n")))
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            os.write(2, text.encode("utf-8", "backslashreplace"))


def run_of(ref: Mapping[str, Any]) -> str:
    """Name a run of a job, the one way everywhere: `job:attempt`, or the job where it has none."""
    return f"{ref['job']}:{ref['attempt']}" if ref.get("attempt") else str(ref["job"])


def _for_people(error: BadRequest) -> str:
    """Say what the socket's schema refused in the words of the command line."""
    schema = re.fullmatch(
        r"[^:]*: (.*?)(?: - at `\$.*`)?; io\.xce\.\S+ describes what is expected",
        error.message,
        re.DOTALL,
    )
    if schema is None:
        return error.message
    field = str(error.details.get("field") or "")
    name = re.match(r"[a-z_]*", field)[0]  # type: ignore[index]  # it matches anything
    what = schema[1].replace("`", "")
    return f"{_option(name)}: {what[:1].lower()}{what[1:]}"


def _option(name: str) -> str:
    return _OPTIONS.get(name, f"--{name}" if name else "the call")


def _is_unicode(text: str) -> bool:
    """Say whether an argument was UTF-8: bytes that are not come as lone surrogates (PEP 383)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Command(click.Command):
    """A command whose help is printed as every answer is."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Give the option `--help`, which shows the help by way of the invocation."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option


def _show_help(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.find_object(Invocation).show(context.get_help())  # type: ignore[union-attr]  # main made it
        context.exit()


command = functools.partial(click.command, cls=Command)
"""The decorator of every command."""


def with_socket(command: Decorated) -> Decorated:
    """Add `--socket`."""

    def keep(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value:
            context.find_object(Invocation).socket = value  # type: ignore[union-attr]  # main made it

    return click.option(
        "--socket",
        metavar="PATH",
        expose_value=False,
        callback=keep,
        help="The agent's socket; XCE_NODEAGENT_SOCKET says the same.",
    )(command)


def with_agent(seconds: float = SECONDS) -> Callable[[Decorated], Decorated]:
    """Add what every command has that asks the agent: `--socket` and `--deadline`."""

    def keep(context: click.Context, _: click.Parameter, value: float) -> None:
        if not 0 < value < 86400:  # NaN as well
            raise click.BadParameter(f"{value:g}: expected up to a day, in seconds")
        context.find_object(Invocation).seconds = value  # type: ignore[union-attr]  # main made it

    def add(command: Decorated) -> Decorated:
        deadline = click.option(
            "--deadline",
            type=float,
            metavar="SECONDS",
            default=seconds,
            expose_value=False,
            callback=keep,
            help=f"How long to wait for the agent's answer; else {seconds:g}.",
        )
        return deadline(with_socket(command))

    return add


def with_json(command: Decorated) -> Decorated:
    """Add `--json`. It is read first, so that every error after it is JSON as well."""

    def keep(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.find_object(Invocation).json = True  # type: ignore[union-attr]  # main made it

    return click.option(
        "--json",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=keep,
        help="Print JSON; an error is printed as JSON, too.",
    )(command)


def example(*lines: str) -> Callable[[Decorated], Decorated]:
    """Add an example to a command's help, or several."""
    title = "Examples:" if len(lines) > 1 else "Example:"
    text = "".join(f"\n  {line}" for line in lines)

    def add(command: Decorated) -> Decorated:
        command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n\b\n{title}{text}"
        return command

    return add


pass_invocation = click.make_pass_decorator(Invocation)
