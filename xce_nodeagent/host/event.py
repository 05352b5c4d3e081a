"""Events: what is told of a machine that changes, by whoever sees it."""

from __future__ import annotations

from msgspec import Struct


class Event(Struct, frozen=True):
    """Something came, went or changed. `name` is the kernel's own of the device.

    `subsystem` is the kernel's as well, or one of `ROUTES`, `LIBRARY`, `DECLARED` and `REPORTED`,
    which are not its.
    """

    action: str
    subsystem: str
    name: str


LOST = Event("lost", "", "")
"""In the place of events that nobody could keep: anything may have changed."""

ALL = Event("look", "all", "")
"""Nothing was told, and all is to be looked at: some things change without an event."""

AGAIN = Event("look", "again", "")
"""Nothing was told, and those who could not tell the last time are to be asked again."""

ROUTES = "route"
"""The subsystem of a change of the default routes."""

LIBRARY = "library"
"""The subsystem of news from a vendor's library; the name is that of its provider."""

DECLARED = Event("change", "declared", "")
"""Files of declared instances changed, or nodes that are named in them."""

NODES = Event("change", "nodes", "")
"""Device nodes came or went on disk, or one was found to be wrong."""

REPORTED = Event("change", "reported", "")
"""The site's reporter printed something else than before."""
