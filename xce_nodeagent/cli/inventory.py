"""The inventory: from the agent, or looked up by the command itself."""

from __future__ import annotations

import os
from typing import Any

import click
import msgspec

from xce_nodeagent.cli.session import Session, example, pass_session, with_json, with_socket
from xce_nodeagent.errors import BadRequest


@click.command()
@click.option("--table", "style", flag_value="table", default="table", help="A table (default).")
@click.option("--tree", "style", flag_value="tree", help="NUMA node, PCIe switch, devices.")
@click.option("--local", is_flag=True, help="Look by this command itself, without the agent.")
@click.option("--sysroot", metavar="DIR", help="Look at a recorded machine's sys, proc and dev.")
@click.option("--simulate", metavar="PROFILE", help="Add a simulated machine's instances.")
@with_json
@with_socket
@pass_session
@example("xce-nodeagent inventory --tree")
def inventory(
    session: Session, style: str, local: bool, sysroot: str | None, simulate: str | None
) -> None:
    """Show this host's instances, and who holds them.

    Asks the agent. Looks by itself only with --local, --sysroot or --simulate, or where there is
    no socket at all; `source` in the answer says which. Who holds what, only the agent knows.
    """
    if local or sysroot is not None or simulate or not session.has_socket():
        found = _look(sysroot, simulate)
    else:
        found = session.call("GetInventory", {})
    if session.json:
        session.show_json(found)
    elif style == "tree":
        from xce_nodeagent.cli.tree import inventory_tree  # noqa: PLC0415  # rich takes its time

        session.show(inventory_tree(found))
    else:
        from xce_nodeagent.cli.table import inventory_table  # noqa: PLC0415  # the same

        session.show(inventory_table(found))


def _look(sysroot: str | None, simulate: str | None) -> dict[str, Any]:
    """Discover here and now. The libraries that it takes are loaded only for this."""
    from xce_nodeagent.daemon.account import load, places  # noqa: PLC0415  # see above
    from xce_nodeagent.daemon.app import with_simulation  # noqa: PLC0415  # see above
    from xce_nodeagent.discovery import scan  # noqa: PLC0415  # see above
    from xce_nodeagent.host import Host  # noqa: PLC0415  # see above
    from xce_nodeagent.model.config import Config  # noqa: PLC0415  # see above
    from xce_nodeagent.model.inventory import advance  # noqa: PLC0415  # see above
    from xce_nodeagent.providers import all_providers  # noqa: PLC0415  # see above

    if sysroot is not None and not os.path.isdir(sysroot):
        raise BadRequest(f"--sysroot {sysroot!r}: expected a folder with sys, proc and dev in it")
    config = load(places(os.environ, None)) if sysroot is None else Config()
    config = with_simulation(config, simulate or "")
    host = Host(
        "/" if sysroot is None else sysroot,
        live=sysroot is None,
        simulate=config.simulate.profile,
        device_directory=config.simulate.device_directory,
        port_range=config.ports.range,
    )
    found, _, _ = advance(scan(host, all_providers()), {}, 0)
    value: dict[str, Any] = msgspec.to_builtins(found)
    return value
