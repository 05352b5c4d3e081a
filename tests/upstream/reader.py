"""A reader of a made fleet, whose clock the tests turn."""

from __future__ import annotations

import fleets
from msgspec import structs

from xce_nodeagent.upstream.fleet import Fleet, Node
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.mirror import Change, Mirror

KEYS = Keys()
GRACE = 60.0
NODES = 48
WALL = 1.7e9


live = fleets.live


def state(count: int = NODES) -> dict[bytes, tuple[bytes, int]]:
    return fleets.state(count, KEYS)


class Reader:
    """A mirror, and a clock that a test turns."""

    def __init__(self, start: dict[bytes, tuple[bytes, int]] | None = None) -> None:
        self.mirror = Mirror(KEYS, grace=GRACE)
        self.now = 0.0
        if start is not None:
            self.list(start)

    def list(self, found: dict[bytes, tuple[bytes, int]]) -> Fleet:
        listed = [(key, *rest) for key, rest in found.items()]
        self.mirror.reset(listed, now=self.now, wall=WALL + self.now)
        return self.fleet()

    def take(self, *changes: Change) -> Fleet:
        self.mirror.apply(changes, now=self.now, wall=WALL + self.now)
        return self.fleet()

    def put(self, key: bytes, value: bytes, lease: int = 0) -> Fleet:
        return self.take((key, value, lease))

    def fleet(self, later: float = 0.0) -> Fleet:
        self.now += later
        return self.mirror.fleet(revision=1, cluster="c", now=self.now, wall=WALL + self.now)


def node(fleet: Fleet, at: int) -> Node:
    return fleet.nodes[fleets.name(at)]


def entry(at: int, name: str) -> bytes:
    return KEYS.entry(fleets.name(at), name)


def lasting(fleet: Fleet) -> dict[str, Node]:
    """Give the nodes without when their leases ended: that is what each reader saw."""
    return {name: structs.replace(one, since=0.0) for name, one in fleet.nodes.items()}
