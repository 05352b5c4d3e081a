"""The sink that writes a node's report to etcd, and keeps the node's name alive there.

The node's name is claimed first (`claim.py`): `live/NODE` has this agent's lease, and every txn
compares that it is still the one that was written. What the store has is read once after each
claim; from then on it is known, and only what differs is written. A quiet node asks for one
keep-alive in a third of its lease, and looks in every second lease whether somebody else wrote
there, or wants its name.

The clock is the agent's own, for when to ask; how long a lease lasts is the store's matter alone.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, TypeVar

from msgspec import Struct

from xce_nodeagent.upstream import claim, etcdremedy, packing, transfer
from xce_nodeagent.upstream.claim import Live
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcderror import EtcdError, LeaseGone, OtherCluster, Unreachable
from xce_nodeagent.upstream.etcdwire import (
    Compare,
    Kv,
    absent,
    delete,
    every,
    get,
    newest,
    put,
    unchanged,
)
from xce_nodeagent.upstream.keys import Keys, RivalKey
from xce_nodeagent.upstream.report import HEAD, Report
from xce_nodeagent.upstream.sink import Undelivered

T = TypeVar("T")

log = logging.getLogger(__name__)

LOOK_LEASES = 2
"""Every so many leases it is looked who else is there."""

_TRIES = 3
"""How often a name is claimed in one delivery, where it changes hands meanwhile."""

_MOST_STRANGE = 10_000
"""Keys of others below the node's own that are ended in one go."""


class _Hold(Struct):
    """A name that this agent has: its lease, and the revision of what it wrote in `live/`."""

    lease: int
    seconds: int
    revision: int


class EtcdSink:
    """Writes to etcd. `renew` gives the endpoints as the configuration file has them now.

    `wall` is the time of day, which people read; `clock` is monotonic.
    """

    kind: ClassVar[str] = "etcd"

    def __init__(
        self,
        client: Client,
        keys: Keys,
        *,
        lease_seconds: int = 30,
        user: str = "",
        renew: Callable[[], Sequence[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.note = ""
        self._client = client
        self._keys = keys
        self._lease_seconds = lease_seconds
        self._user = user
        self._renew = renew
        self._clock = clock
        self._wall = wall
        self._report: Report | None = None
        self._hold: _Hold | None = None
        self._waiting: int | None = None  # the lease of our key among the rivals
        self._alive_at = self._look_at = math.inf
        self._there: dict[bytes, bytes] | None = None
        self._written = 0  # the revision of the last write of the head
        self._shape = ""

    @property
    def where(self) -> str:
        """The members, and the prefix."""
        return ",".join(self._client.endpoints) + self._keys.prefix.decode()

    def close(self) -> None:
        """End the connections; the lease goes on, for an agent that is restarted."""
        self._client.close()

    def deliver(self, report: Report) -> int:
        """Bring the store to this report; give the bytes of keys and values that were written."""
        self._report = report
        return self._asking(lambda: self._bring(report))

    def tend(self) -> float:
        """Keep the lease alive, and look who else is there, as they are due."""
        report = self._report
        if report is None:
            return math.inf
        self._asking(lambda: self._tended(report))
        return max(0.0, min(self._alive_at, self._look_at) - self._clock())

    # ---- what is due ------------------------------------------------------------------------

    def _tended(self, report: Report) -> None:
        if self._alive_at <= self._clock():
            try:
                self._keep_alive()
            except LeaseGone:
                self._lost()
                self._bring(report)
        if self._look_at <= self._clock():
            self._look_at = self._clock() + LOOK_LEASES * self._lease_seconds
            if self._waiting is not None:
                self._bring(report)
            else:
                self._look(report)

    def _keep_alive(self) -> None:
        lease = self._hold.lease if self._hold else self._waiting
        if lease is None:
            self._alive_at = math.inf
            return
        asked = self._clock()
        self._alive_at = asked + self._client.keep_alive(lease) / 3

    def _look(self, report: Report) -> None:
        """See that the name and the entries are still as they were left, and who wants the name."""
        node = report.head.node
        told = self._client.txn(
            [],
            [
                get(self._keys.live(node)),
                newest(self._keys.node(node)),
                every(self._keys.rivals(node)),
            ],
        )
        live, last, rivals = (response.response_range for response in told.responses)
        self._tell_rivals(report, rivals.kvs)
        held = self._hold and [one.mod_revision for one in live.kvs] == [self._hold.revision]
        count = len(self._there or ())
        if not held:
            self._lost()
        elif [one.mod_revision for one in last.kvs] != [self._written] or last.count != count:
            log.warning("%s: somebody else wrote to this node's keys; they are written anew", node)
            self._there = None
        else:
            return
        self._bring(report)

    def _tell_rivals(self, report: Report, found: Sequence[Kv]) -> None:
        mine = _live(report, 0.0)
        told = []
        for one in found:
            key, live = self._keys.parse(one.key), claim.read(one.value)
            if live is not None and live.same(mine):
                continue
            agent = key.agent if isinstance(key, RivalKey) else "of no name"
            told.append(f"agent {agent} (boot {live.boot_id})" if live else f"agent {agent}")
        note = f"{', '.join(told[:3])} claims the name {report.head.node}, too" if told else ""
        if note and note != self.note:
            log.warning("%s", note)
        self.note = note

    # ---- the name ---------------------------------------------------------------------------

    def _bring(self, report: Report) -> int:
        for _ in range(_TRIES):
            try:
                if self._hold is None:
                    self._claim(report)
                elif self._alive_at <= self._clock():
                    self._keep_alive()
                written = self._write(report)
            except LeaseGone:
                written = None
            if written is not None:
                return written
            self._lost()
        raise Undelivered(f"{self.where}: the name {report.head.node} changed hands meanwhile")

    def _lost(self) -> None:
        """Nothing is known any more: neither whose the name is, nor what is there."""
        self._hold = self._there = self._waiting = None
        self._shape = ""

    def _claim(self, report: Report) -> None:
        """Make the name this agent's. Raise Undelivered where another one has it."""
        node = report.head.node
        key, mine = self._keys.live(node), _live(report, self._wall())
        for _ in range(_TRIES):
            there = self._client.get(key)
            live = claim.read(there.value) if there else None
            if there and live is None:
                log.warning("%s: what is there is no agent's claim; it is written anew", key)
            elif there and live and not live.same(mine):
                self._compete(report, there, live)
            if there and live and live.program == mine.program and self._adopted(there):
                return
            lease, seconds = self._granted(there.lease if there and live else 0)
            unless: Compare = unchanged(key, there.mod_revision) if there else absent(key)
            rival = self._keys.rival(node, mine.agent)
            told = self._client.txn([unless], [put(key, packing.pack(mine), lease), delete(rival)])
            if told.succeeded:
                self._held(lease, seconds, told.header.revision)
                return
        raise Undelivered(f"{self.where}: the name {node} changed hands meanwhile")

    def _adopted(self, there: Kv) -> bool:
        """Go on with the lease of the agent before, where it is ours and as long as it should."""
        asked = self._clock()
        try:
            seconds = self._client.keep_alive(there.lease) if there.lease else 0
        except LeaseGone:
            return False
        if seconds != self._lease_seconds:
            return False
        self._held(there.lease, seconds, there.mod_revision)
        self._alive_at = asked + seconds / 3
        return True

    def _granted(self, before: int) -> tuple[int, int]:
        """Give a lease and its seconds: the one before, if it is of use, or a new one."""
        for lease in filter(None, (before, self._waiting)):
            try:
                seconds = self._client.keep_alive(lease)
            except LeaseGone:
                continue
            if seconds == self._lease_seconds:
                return lease, seconds
        granted = self._client.grant(self._lease_seconds)
        return granted.ID, granted.TTL

    def _held(self, lease: int, seconds: int, revision: int) -> None:
        self._hold = _Hold(lease=lease, seconds=seconds, revision=revision)
        self._there = self._waiting = None
        self._alive_at = self._clock() + seconds / 3
        self._look_at = self._clock() + LOOK_LEASES * seconds

    def _compete(self, report: Report, there: Kv, live: Live) -> None:
        """Tell the store, and people, that another agent has this one's name. Raises always."""
        node, mine = report.head.node, _live(report, self._wall())
        if self._waiting is None:
            lease, seconds = self._granted(0)
            key = self._keys.rival(node, mine.agent)
            self._client.txn([], [put(key, packing.pack(mine), lease)])
            self._waiting = lease
            self._alive_at = self._clock() + seconds / 3
        self._look_at = self._clock() + self._lease_seconds
        reason = f"{self.where}: the name {node} is that of agent {live.agent} (boot {live.boot_id}"
        reason += f", {live.program})" if live.program else ")"
        if live.agent == mine.agent:
            # Most often this host before it was booted anew, and then a matter of one lease.
            raise Undelivered(
                f"{reason}, this agent's own id in another boot, until its lease ends",
                remedy="if it does not end, another host has a copy of this one's state folder:"
                " remove its agent-id there and restart it",
            )
        raise Undelivered(
            reason,
            remedy="give one of the two hosts another name ([agent] node), or stop the other agent",
            hopeless=True,
        )

    # ---- the entries ------------------------------------------------------------------------

    def _write(self, report: Report) -> int | None:
        """Write what differs; None where the name is not this agent's any more."""
        hold = self._hold
        if hold is None:
            return None
        if self._there is None:
            self._read_back(report)
        written = self._put_shape(report)
        node = report.head.node
        wanted = transfer.wanted(self._keys, report)
        head = self._keys.entry(node, HEAD)
        there, self._there = self._there or {}, None  # until all is written, nobody knows
        ours = [unchanged(self._keys.live(node), hold.revision)]
        for batch in transfer.batches(there, wanted, head):
            told = self._client.txn(ours, batch)
            if not told.succeeded:
                return None
            self._written = told.header.revision
            written += transfer.size(batch)
            there = wanted
        if len(there) <= _MOST_STRANGE:
            self._there = there
        return written

    def _read_back(self, report: Report) -> None:
        """See what the store has of this node: its head, and all of it where that is another's."""
        node = report.head.node
        prefix, head = self._keys.node(node), self._keys.entry(node, HEAD)
        told = self._client.txn(
            [], [get(head), newest(prefix), get(self._keys.shape(report.shape), keys_only=True)]
        )
        heads, last, shape = (response.response_range for response in told.responses)
        # One that was written more than once is not as the first one wrote it.
        self._shape = report.shape if [one.version for one in shape.kvs] == [1] else ""
        self._there = {}
        if not last.kvs:
            return
        if heads.kvs and transfer.stands_for(heads.kvs[0].value, report):
            self._written = heads.kvs[0].mod_revision
            whole = last.kvs[0].mod_revision == self._written  # nothing was written after it
            if whole and last.count == len(report.entries):
                self._there = transfer.assumed(self._keys, report, heads.kvs[0].value)
                return
        wanted = transfer.wanted(self._keys, report)
        _, found = self._client.range(prefix)
        for one in itertools.islice(found, _MOST_STRANGE + len(wanted)):
            # Of what goes, the name is enough.
            self._there[one.key] = one.value if one.key in wanted else b""

    def _put_shape(self, report: Report) -> int:
        """Have the shape there: put by whom it is of first, and never changed."""
        if self._shape == report.shape:
            return 0
        key, data = self._keys.shape(report.shape), report.shape_data
        told = self._client.txn([absent(key)], [put(key, data)], [get(key)])
        written = len(key) + len(data) if told.succeeded else 0
        if not told.succeeded:
            (there,) = told.responses[0].response_range.kvs
            if not _is_shape(there.value, report.shape):
                log.warning("%s: what is there is not this shape; it is written anew", key)
                self._client.txn([unchanged(key, there.mod_revision)], [put(key, data)])
                written = len(key) + len(data)
        self._shape = report.shape
        return written

    # ---- failures ---------------------------------------------------------------------------

    def _asking(self, act: Callable[[], T]) -> T:
        with self._telling():
            try:
                return act()
            except (Unreachable, OtherCluster):
                if not self._moved():
                    raise
            return act()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except EtcdError as error:
            prefix = self._keys.prefix.decode()
            raise etcdremedy.undelivered(error, prefix=prefix, user=self._user) from error

    def _moved(self) -> bool:
        """Take the endpoints of the configuration file where they are others by now."""
        now = tuple(self._renew()) if self._renew is not None else ()
        if not now or now == self._client.endpoints:
            return False
        log.warning("the endpoints are %s now", ", ".join(now))
        self._client.move(now)
        return True


def _live(report: Report, since: float) -> Live:
    head = report.head
    return Live(
        agent=head.agent, boot_id=head.boot_id, node=head.node, since=since, program=head.program
    )


def _is_shape(value: bytes, sha256: str) -> bool:
    try:
        return packing.digest(value) == sha256
    except packing.Unreadable:
        return False
