"""The program `xce-nodeagent`. Each command's module is loaded when it is called."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click

from xce_nodeagent.cli.invocation import Command, Invocation, tell_plain, with_socket
from xce_nodeagent.errors import AgentError, BadRequest, ErrorClass

_COMMANDS: Final = {
    "run": ("agent:run", "Run the agent and its helpers."),
    "doctor": ("agent:doctor", "Look at everything that the agent depends on."),
    "inventory": ("inventory:inventory", "Show this host's instances, and who holds them."),
    "export": ("export:export", "Print the inventory as another program reads it."),
    "prepare": ("binding:prepare", "Bind instances to a job."),
    "release": ("binding:release", "Release what a job holds."),
    "join": ("binding:join", "Move a process into a job's cgroup."),
    "reconcile": ("binding:reconcile", "Release every binding that is not named."),
    "exec": ("program:run_bound", "Prepare, run a command bound, release."),
    "jobs": ("job:jobs", "List the bindings."),
    "job": ("job:job", "Show one binding."),
    "fleet": ("fleet.command:fleet", "Show all nodes that report to a store."),
    "drain": ("instance:drain", "Keep an instance from being granted."),
    "undrain": ("instance:undrain", "Let an instance be granted again."),
}
"""Each command: where it is, and what it does in a line."""


class _Commands(Command, click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # the same
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"xce_nodeagent.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # the same
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Every command has an example in its own --help.",
)
@with_socket
def _program() -> None:
    """Inventory, selection and binding of this host's GPUs, NICs and ports.

    \b
    Exit status: 0 done; 75 try again here; 69 drain this node, run the job
    elsewhere; 65 the job fits no such node; 64 the call is wrong; 77 not
    permitted; 78 the configuration is wrong. `exec` ends as its command did.

    \b
    Environment: XCE_NODEAGENT_SOCKET, XCE_NODEAGENT_CONFIG,
    XCE_NODEAGENT_STATE_DIR, XCE_NODEAGENT_RUNTIME_DIR.
    """  # noqa: D301  # \b keeps click from filling the lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; give its exit status."""
    invocation = Invocation(os.environ)
    try:
        status = _program.main(
            args=arguments, prog_name="xce-nodeagent", standalone_mode=False, obj=invocation
        )
    except AgentError as error:
        return invocation.fail(error)
    except click.ClickException as error:
        # The caller's fault, as sysexits.h numbers it; click's own 2 has no class. Where click
        # could not read the options, it has not told us of --json either.
        given = sys.argv[1:] if arguments is None else arguments
        if invocation.json or "--json" in given[: given.index("--") if "--" in given else None]:
            invocation.json = True
            return invocation.fail(BadRequest(error.format_message()))
        shown = io.StringIO()
        error.show(shown)
        tell_plain(shown.getvalue())
        return ErrorClass.CALLER.exit_status
    except click.Abort:
        return 128 + 2  # SIGINT
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
