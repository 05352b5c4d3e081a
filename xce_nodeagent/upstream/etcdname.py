"""A node's name in etcd: claimed, kept alive, and given to nobody who is another agent.

`live/NODE` has this agent's lease. Whoever writes for the node compares that it is still what this
agent wrote (`ours`). The clock is the agent's own, for when to ask; how long a lease lasts is the
store's matter alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from msgspec import structs

from xce_nodeagent.upstream import claim, packing
from xce_nodeagent.upstream.claim import Live
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcderror import LeaseGone
from xce_nodeagent.upstream.etcdwire import Compare, Found, Kv, absent, delete, put, unchanged
from xce_nodeagent.upstream.keys import Keys, RivalKey
from xce_nodeagent.upstream.sink import Undelivered

log = logging.getLogger(__name__)

TRIES = 3
"""How often a name is claimed in one go, where it changes hands meanwhile."""


MOST_RIVALS = 3
"""Other agents that are told of by their ids; more are counted."""


class Name:
    """The name of a node, for one agent.

    `revision` is that of what this agent wrote in `live/`, 0 while it does not have the name.
    `waiting`: another agent has it, and this one is among the rivals. `due` is when the lease is to
    be kept alive, by `clock`.
    """

    def __init__(
        self,
        client: Client,
        keys: Keys,
        where: Callable[[], str],
        *,
        lease_seconds: int,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.revision = 0
        self.waiting = False
        self.due = math.inf
        self._client = client
        self._keys = keys
        self._where = where
        self._seconds = lease_seconds
        self._clock = clock
        self._wall = wall
        self._lease = 0
        self._ends = -math.inf

    def meanwhile(self) -> float:
        """Give the seconds until the lease wants to be kept alive; inf where there is none."""
        now = self._clock()
        return max(0.0, self.due - now) if self._lease and now < self._ends else math.inf

    def ours(self, node: str) -> list[Compare]:
        """Give what is true as long as the name is this agent's."""
        return [unchanged(self._keys.live(node), self.revision)]

    def holds(self, found: Sequence[Kv]) -> bool:
        """Say whether what was found in `live/` is what this agent wrote."""
        return bool(self.revision) and [one.mod_revision for one in found] == [self.revision]

    def lose(self) -> None:
        """Know nothing any more of whose it is."""
        self.revision, self.waiting, self.due = 0, False, math.inf
        self._lease = 0

    def doubt(self) -> None:
        """Ask for the lease next time, due or not: something failed meanwhile."""
        if self._lease:
            self.due = -math.inf

    def keep_alive(self) -> None:
        """Begin the lease's time anew, if it is due. Raise LeaseGone."""
        now = self._clock()
        if self.due > now:
            return
        # Also where that fails, the next time is in a third of the lease.
        self.due = now + self._seconds / 3
        seconds = self._client.keep_alive(self._lease)
        self.due, self._ends = now + seconds / 3, now + seconds

    def claim(self, mine: Live) -> None:
        """Make the name this agent's, if it is not. Raise Undelivered where another one has it."""
        key = self._keys.live(mine.node)
        for _ in range(TRIES):
            there = self._client.get(key)
            # Without a lease it would never end: nobody's.
            live = claim.read(there.value) if there and there.lease else None
            if there and live is None:
                log.warning("%s: no agent's claim is there; it is written anew", key.decode())
            if there and live and not live.same(mine):
                self._compete(mine, live)
            if there and live and self._adopted(there, live, mine):
                return
            lease = self._granted(there.lease if there and live else 0)
            unless = unchanged(key, there.mod_revision) if there else absent(key)
            told = structs.replace(mine, since=self._wall())
            rival = delete(self._keys.rival(mine.node, mine.agent))
            done = self._client.txn([unless], [put(key, packing.pack(told), lease), rival])
            if done.succeeded:
                self.revision, self.waiting = done.header.revision, False
                return
        raise Undelivered(f"{self._where()}: the name {mine.node} changed hands meanwhile")

    def is_free(self, mine: Live) -> bool:
        """Say whether nobody else has the name."""
        there = self._client.get(self._keys.live(mine.node))
        live = claim.read(there.value) if there and there.lease else None
        return live is None or live.same(mine)

    def rivals(self, mine: Live, found: Found) -> str:
        """Say who else claims the name, given the first keys below `rival/`; empty for nobody."""
        told, count = [], found.count
        for one in found.kvs:
            # One by one: whatever lies there, an answer of all of it may be too large.
            there = self._client.get(one.key)
            live = claim.read(there.value) if there is not None else None
            if there is None or (live is not None and live.same(mine)):
                count -= 1
                continue
            key = self._keys.parse(one.key)
            agent = key.agent if isinstance(key, RivalKey) else repr(one.key)
            known = live or Live(agent="", boot_id="", node=mine.node)
            told.append(structs.replace(known, agent=agent).who())
        if not told:
            return ""
        more = f" and {count - len(told)} more" if count > len(told) else ""
        return f"{', '.join(told)}{more} claims the name {mine.node}, too"

    def _adopted(self, there: Kv, live: Live, mine: Live) -> bool:
        """Go on with what the agent before wrote, if it would be written in the same way."""
        before = (live.program, live.host)
        if before != (mine.program, mine.host) or not self._alive(there.lease):
            return False
        self.revision, self.waiting = there.mod_revision, False
        return True

    def _granted(self, before: int) -> int:
        """Give a lease: one that there is, or a new one."""
        for lease in dict.fromkeys((self._lease, before)):
            if lease and self._alive(lease):
                return lease
        now = self._clock()
        granted = self._client.grant(self._seconds)
        self._lease = granted.ID
        self.due, self._ends = now + granted.TTL / 3, now + granted.TTL
        return granted.ID

    def _alive(self, lease: int) -> bool:
        """Take a lease if it is there and as long as it should be, and begin its time anew.

        A store may give a lease more seconds than were asked for: whether a longer one is such, or
        was asked for so, a new one tells, which is taken where it is shorter.
        """
        now = self._clock()
        try:
            seconds = self._client.keep_alive(lease)
        except LeaseGone:
            return False
        if seconds < self._seconds:
            return False
        if seconds > self._seconds:
            new = self._client.grant(self._seconds)
            if seconds > new.TTL:
                self._lease = new.ID
                return False
        self._lease = lease
        self.due, self._ends = now + seconds / 3, now + seconds
        return True

    def _compete(self, mine: Live, other: Live) -> None:
        """Tell the store, and people, that another agent has this one's name. Raises always."""
        if not self.waiting:
            told = structs.replace(mine, since=self._wall())
            key = self._keys.rival(mine.node, mine.agent)
            self._client.txn([], [put(key, packing.pack(told), self._granted(0))])
            self.revision, self.waiting = 0, True
        reason = f"{self._where()}: the name {mine.node} is that of {other.who()}"
        if other.agent == mine.agent:
            # Most often this host before it was booted anew, and then a matter of one lease.
            raise Undelivered(
                f"{reason}, this agent's own id in another boot, until its lease ends",
                remedy="if that does not end, another host has a copy of this one's state folder:"
                " remove agent-id from it there, and restart that agent",
            )
        raise Undelivered(
            reason,
            remedy="give one of the two hosts another name ([agent] node), or stop its agent",
            hopeless=True,
        )
