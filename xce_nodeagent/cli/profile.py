"""The profile of a simulated machine, as an option of several commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


def with_simulate(text: str = "Add a simulated machine's instances.") -> Callable[[Any], Any]:
    """Take `--simulate PROFILE`; a profile that there is not is a wrong call."""
    return click.option("--simulate", metavar="PROFILE", default="", callback=_known, help=text)


def _known(_context: click.Context, _option: click.Parameter, profile: str) -> str:
    from xce_nodeagent.providers.simulated import names  # noqa: PLC0415  # only where one is named

    if profile and profile not in names():
        known = ", ".join(names())
        raise click.BadParameter(f"{profile!r}: there is no such profile; there are {known}")
    return profile
