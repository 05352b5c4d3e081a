"""Whose a node's name is in the store. Pure.

A name belongs to the agent in `live/NODE`, as long as its lease does. Two agents with one name are
a mistake of people (a cloned disk, a host that was named twice): the one that came first keeps it,
the other says so in `rival/NODE/AGENT` and reports nothing, and neither takes it from the other.
Nobody's clock is compared with another's: a lease is counted by the store alone.
"""

from __future__ import annotations

from msgspec import Struct

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.packing import Unreadable


class Live(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent that lives: the value of `live/` and of `rival/`.

    `agent` is the agent's own id, which outlives its restarts. `since` is the node's clock when it
    claimed the name, in seconds since the epoch, for people: clocks disagree.
    """

    agent: str
    boot_id: str
    node: str
    since: float = 0.0
    program: str = ""

    def same(self, other: Live) -> bool:
        """Say whether both are one agent in one boot of its host."""
        return (self.agent, self.boot_id) == (other.agent, other.boot_id)


def read(value: bytes) -> Live | None:
    """Read a claim; None where the value is none."""
    try:
        return packing.unpack(value, Live, packing.SMALL)
    except Unreadable:
        return None
