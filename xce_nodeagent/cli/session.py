"""A session: where the agent is, how this command answers, and the one way to print."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from xce_nodeagent.daemon import client
from xce_nodeagent.errors import AgentError
from xce_nodeagent.model import place

Command = TypeVar("Command", bound=Callable[..., Any])


class Session:
    """What the commands of one call of the program share."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        runtime = environ.get("XCE_NODEAGENT_RUNTIME_DIR") or place.RUNTIME
        self.socket = environ.get("XCE_NODEAGENT_SOCKET") or f"{runtime}/{place.SOCKET_NAME}"
        self.json = False

    def call(self, method: str, parameters: dict[str, Any], timeout: float = 30.0) -> Any:
        """Ask the agent; see `client.call`."""
        return client.call(method, parameters, self.socket, timeout)

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
        The signal itself stays ignored: it would also come from the agent's socket.
        """
        try:
            sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)  # the interpreter flushes once more at its end
            os.close(nowhere)
            raise click.exceptions.Exit(128 + 13) from None

    def show_json(self, value: Any) -> None:
        """Print a value as JSON for programs and people."""
        self.show(json.dumps(value, indent=2))

    def fail(self, error: AgentError) -> int:
        """Tell an error: the message on stderr and, after `--json`, all of it on stdout as well.

        A program that asked for JSON so always gets JSON: `{"error": {code, class, message,
        details}}`, and no command's own answer has a field `error`.
        """
        click.echo(f"xce-nodeagent: {error.message}", err=True)
        if self.json:
            facts = {
                "code": error.code,
                "class": str(error.error_class),
                "message": error.message,
                "details": error.details,
            }
            with contextlib.suppress(click.exceptions.Exit):  # the status is the error's
                self.show(json.dumps({"error": facts}, indent=2, default=str))
        return error.exit_status


def with_socket(command: Command) -> Command:
    """Add `--socket`."""

    def keep(context: click.Context, _: click.Parameter, value: str | None) -> None:
        if value:
            context.find_object(Session).socket = value  # type: ignore[union-attr]  # main made it

    return click.option(
        "--socket",
        metavar="PATH",
        expose_value=False,
        callback=keep,
        help="The agent's socket; XCE_NODEAGENT_SOCKET says the same.",
    )(command)


def with_json(command: Command) -> Command:
    """Add `--json`. It is read first, so that every error after it is JSON as well."""

    def keep(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.find_object(Session).json = True  # type: ignore[union-attr]  # main made it

    return click.option(
        "--json",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=keep,
        help="Print JSON; an error is printed as JSON, too.",
    )(command)


def example(text: str) -> Callable[[Command], Command]:
    """Add the example to a command's help."""

    def add(command: Command) -> Command:
        command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n\b\nExample:\n  {text}"
        return command

    return add


pass_session = click.make_pass_decorator(Session)
