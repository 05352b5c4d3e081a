"""The profile of a simulated machine, as an option's value."""

from __future__ import annotations

import click


class Profile(click.ParamType):
    """A profile that there is; another one is a usage error that names those that there are."""

    name = "profile"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Give the profile, or end the command."""
        from xce_nodeagent.providers.simulated import names  # noqa: PLC0415  # only where one is named

        if value and value not in names():
            self.fail(
                f"{value!r}: there is no such profile; there are {', '.join(names())}", param, ctx
            )
        return value


PROFILE = Profile()
