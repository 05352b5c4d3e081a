"""The agent itself: running it, and asking it how it is."""

from __future__ import annotations

import os

import click

from xce_nodeagent.cli.invocation import (
    LOOKING_SECONDS,
    Invocation,
    command,
    example,
    pass_invocation,
    with_agent,
    with_json,
)
from xce_nodeagent.cli.profile import with_simulate
from xce_nodeagent.cli.width import folded, room
from xce_nodeagent.errors import BadRequest, ErrorClass, NotPermitted, NotReady
from xce_nodeagent.model import name

_SIGNS = {"ok": "ok      ", "note": "note    ", "warning": "warning ", "fault": "FAULT   "}
_NOTHING_REPAIRED = {
    "name": "repair",
    "state": "fault",
    "text": "nothing was repaired: only the agent can do it",
    "remedy": "start the agent, then `xce-nodeagent doctor --repair` again",
}


@command()
@click.option(
    "--config",
    metavar="FILE",
    help="The configuration; XCE_NODEAGENT_CONFIG says the same.",
)
@with_simulate("Add a profile's instances.")
@click.option("-v", "--verbose", is_flag=True, help="Log what is done for debugging as well.")
@example("xce-nodeagent run --simulate dgx-h100")
def run(config: str | None, simulate: str, *, verbose: bool) -> int:
    """Run the agent in the foreground; as root, its helpers as well.

    With --simulate, a simulated machine's instances are added to the real ones, and ports 20000
    to 20999 where no range is configured.
    """
    from xce_nodeagent.daemon.app import main  # noqa: PLC0415  # only the agent needs all of it

    return main(config=config, simulate=simulate, verbose=verbose)


@command()
@click.option(
    "--repair",
    is_flag=True,
    help="Compare every binding with the kernel now, and put right what differs.",
)
@with_json
@with_agent(LOOKING_SECONDS)
@pass_invocation
@example("xce-nodeagent doctor --repair")
def doctor(invocation: Invocation, *, repair: bool) -> int:
    """Look at everything that the agent depends on, and say what to do.

    With --repair, for who may prepare, lines named `repair` say what was put right. On cgroup v1
    it also gives the sub-cgroups of jobs again what their jobs were given.
    Where no agent can be reached, this command looks by itself at what can be seen without one,
    and repairs nothing.
    Exit status 69 when there is a fault; an agent that cannot be reached is one.
    """
    try:
        checks = invocation.call("Doctor", {"repair": True} if repair else {})["checks"]
    except (NotReady, NotPermitted, BadRequest) as error:
        if "socket" not in error.details and not isinstance(error, NotReady):
            raise
        from xce_nodeagent.cli.local import checks_without  # noqa: PLC0415  # it takes its time

        checks = checks_without(error.message, os.environ)
        if repair:
            checks.insert(1, _NOTHING_REPAIRED)
        checks = checks if invocation.json else name.cleaned(checks)
    if invocation.json:
        invocation.show_json({"checks": checks})
    else:
        lines, width = [], room()
        for check in checks:
            sign = _SIGNS.get(check["state"], check["state"])
            lines.append(folded(f"{sign}{check['name']}: {check['text']}", 8, width))
            if check["remedy"]:
                lines.append(folded(f"          do: {check['remedy']}", 14, width))
        invocation.show("\n".join(lines))
    fault = any(check["state"] == "fault" for check in checks)
    return ErrorClass.NODE.exit_status if fault else 0
