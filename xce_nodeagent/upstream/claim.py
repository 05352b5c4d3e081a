"""Whose a node's name is in the store. Pure.

A name belongs to the agent in `live/NODE`, as long as its lease does. Two agents with one name are
a mistake of people (a cloned disk, a host that was named twice): the one that came first keeps it,
the other says so in `rival/NODE/AGENT` and reports nothing, and neither takes it from the other.
Nobody's clock is compared with another's: a lease is counted by the store alone.
"""

from __future__ import annotations

from msgspec import Struct

from xce_nodeagent.model.name import printable
from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.packing import Unreadable

_SAID = 64
"""Characters of a name or an id that people are told."""


class Live(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent that lives: the value of `live/` and of `rival/`.

    `agent` is the agent's own id, which outlives its restarts. `since` is the node's clock when it
    claimed the name, in seconds since the epoch, for people: clocks disagree. `host` is what its
    host calls itself, for people, too: they look for that one.
    """

    agent: str
    boot_id: str
    node: str
    since: float = 0.0
    program: str = ""
    host: str = ""

    def same(self, other: Live) -> bool:
        """Say whether both are one agent in one boot of its host."""
        return (self.agent, self.boot_id) == (other.agent, other.boot_id)

    def who(self) -> str:
        """Say who it is, as a terminal may be shown it."""
        host, agent, boot = (
            printable(one[:_SAID]) for one in (self.host, self.agent, self.boot_id)
        )
        told = f"agent {agent}" + f" of host {host}" * bool(host)
        return told + f" (boot {boot})" * bool(boot)


def read(value: bytes) -> Live | None:
    """Read a claim; None where the value is none."""
    try:
        return packing.unpack(value, Live, packing.SMALL)
    except Unreadable:
        return None
