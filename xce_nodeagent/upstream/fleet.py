"""A fleet as a reader has it: every node's newest report, unchanging, and safe to hand around.

A scheduler keeps a `Fleet` as long as it likes: nothing in it changes any more. The next one
shares every node with it that did not change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property

from msgspec import Struct

from xce_nodeagent.model.instance import Holder
from xce_nodeagent.model.inventory import Inventory, with_holders
from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.claim import Live
from xce_nodeagent.upstream.report import Entries, Head, Held, inventory_of
from xce_nodeagent.upstream.shape import Shape, State, Static


class Count(Struct, frozen=True, gc=False):
    """How many instances of a type a node, or a fleet, has.

    What the host keeps for itself is in `reserved` and in nothing else. `free` are those that a
    request with a count could get now: healthy, not drained, of other silicon than what a binding
    holds, and no card that is cut into slices. `held` is what bindings have, what overlaps that,
    and what is quarantined. What is held in parts (ports) is counted by its parts.
    """

    total: int = 0
    healthy: int = 0
    free: int = 0
    held: int = 0
    drained: int = 0
    reserved: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.total + other.total,
            self.healthy + other.healthy,
            self.free + other.free,
            self.held + other.held,
            self.drained + other.drained,
            self.reserved + other.reserved,
        )


class Node(Struct, frozen=True, kw_only=True):
    """A node: its report as the store has it, and whether it lives.

    `available` is False where its lease ended and the grace time is over; `since` is when its
    lease was seen ended, by the reader's clock in seconds since the epoch, 0 while it lives.
    `faults` say what of it cannot be believed; a choice passes over a node that has one. `rivals`
    are other living agents that claim its name: somebody's mistake, but who has the name reports of
    itself and is fenced by its lease, so jobs may go there. `head` is None where it cannot be read.
    `states` are of instances that differ from what is usual, by id. `shape` is None where it is not
    known; `entries` are as they came from the store. The mappings are plain ones, so that a node
    can be encoded and pickled; they are shared with other nodes and with fleets to come, and not to
    be changed.
    """

    name: str
    head: Head | None = None
    available: bool = False
    since: float = 0.0
    faults: tuple[str, ...] = ()
    rivals: tuple[Live, ...] = ()
    bindings: tuple[Held, ...] = ()
    totals: Mapping[str, Count] = {}
    states: Mapping[str, State] = {}
    entries: Entries = {}
    shape_hash: str = ""
    shape: Shape | None = None

    @property
    def eligible(self) -> bool:
        """Whether a choice may fall on it."""
        return self.available and not self.faults

    @property
    def static(self) -> Static | None:
        """What is the node's own, its attributes among it; read when it is asked for."""
        try:
            return packing.unpack(self.entries["static"], Static)
        except (KeyError, packing.Unreadable):
            return None

    @property
    def inventory(self) -> Inventory | None:
        """The node's inventory with `held_by`; None where it cannot be put together.

        It is made when it is asked for (a fifth of a millisecond for a host of 20 instances), and
        not kept: the inventories of 10,000 hosts are a hundred times as large as their reports.
        """
        if self.shape is None:
            return None
        try:
            found = inventory_of(self.entries, self.shape)
        except (KeyError, ValueError, RecursionError):  # packing.Unreadable is a ValueError
            return None
        holders: dict[str, list[Holder]] = {}
        for binding in self.bindings:
            for instance in binding.instances:
                holders.setdefault(instance, []).append(Holder(binding.job, binding.attempt))
        return with_holders(found, holders)


class Fleet(Struct, frozen=True, kw_only=True, dict=True):
    """All nodes at one revision of the store, by name, in the order of their names.

    `cluster` is the store's own id. `faults` tell of keys that are of no node. `dict=True` is
    where a cached property keeps its value.
    """

    revision: int = 0
    cluster: str = ""
    nodes: Mapping[str, Node] = {}
    faults: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 over each node's name and its report's digest.

        Two readers that have the same digest have the same inventories and the same bindings.
        Liveness is not in it: that is what each reader saw.
        """
        told = hashlib.sha256()
        for name, node in sorted(self.nodes.items(), key=lambda item: item[0]):
            report = node.head.report if node.head else ""
            told.update(f"{name}\0{report}\n".encode())
        return told.hexdigest()

    @cached_property
    def totals(self) -> Mapping[str, Count]:
        """Count over all nodes that are available, by type."""
        found: dict[str, Count] = {}
        for node in self.nodes.values():
            if node.available:
                for kind, count in node.totals.items():
                    found[kind] = found.get(kind, Count()) + count
        return found
