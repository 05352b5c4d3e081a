"""The sink that writes a node's report to etcd, and keeps the node's name alive there.

What the store has is read once after each claim of the name; from then on it is known, and only
what differs is written. A quiet node asks for one keep-alive in a third of its lease, and looks in
every second lease whether somebody else wrote there, or wants its name.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from xce_nodeagent.upstream import etcdremedy, packing, transfer
from xce_nodeagent.upstream.backoff import CAP_SECONDS
from xce_nodeagent.upstream.claim import Live
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcderror import (
    EtcdError,
    LeaseGone,
    OtherCluster,
    TooLarge,
    Unreachable,
)
from xce_nodeagent.upstream.etcdname import MOST_RIVALS, TRIES, Name
from xce_nodeagent.upstream.etcdwire import (
    Found,
    Operation,
    absent,
    get,
    names,
    newest,
    put,
    unchanged,
)
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.report import HEAD, Report
from xce_nodeagent.upstream.sink import Undelivered
from xce_nodeagent.upstream.twin import Twin

T = TypeVar("T")

log = logging.getLogger(__name__)

LOOK_LEASES = 2
"""Every so many leases it is looked who else is there."""

_LARGEST_PAGE = 4 << 20  # bytes; a value of etcd's largest (--max-request-bytes) is half of it

MOST_STRANGE = 10_000
"""Keys of others below the node's own that are ended in one go."""


class EtcdSink:
    """Writes to etcd. `renew` gives the endpoints as the configuration file has them now.

    `host` is what this host calls itself; people are told of it where another agent wants its name.
    `remark` is what else people should know, asked whenever they look. `wall` is the time of day,
    which people read; `clock` is monotonic. `most_strange` bounds what is kept of keys that are
    nobody's.
    """

    kind: ClassVar[str] = "etcd"

    def __init__(
        self,
        client: Client,
        keys: Keys,
        *,
        lease_seconds: int = 30,
        user: str = "",
        host: str = "",
        remark: Callable[[], str] = lambda: "",
        renew: Callable[[], Sequence[str]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        most_strange: int = MOST_STRANGE,
    ) -> None:
        self._remark = remark
        self._rivals = ""
        self._twin = Twin()
        self._client = client
        self._keys = keys
        # A store that is back gives each lease its whole time again: nobody loses it by waiting.
        self.patience = min(CAP_SECONDS, lease_seconds * 2 / 3)
        self._lease_seconds = lease_seconds
        self._user = user
        self._host = host
        self._renew = renew
        self._clock = clock
        self._most_strange = most_strange
        self._name = Name(
            client, keys, lambda: self.where, lease_seconds=lease_seconds, clock=clock, wall=wall
        )
        self._report: Report | None = None
        self._look_at = math.inf
        self._doubted = False  # something failed, and nothing was heard of the store since
        self._there: dict[bytes, bytes] | None = None  # None: not known
        self._head = 0  # the revision of the head, which each write makes anew; 0: there is none
        self._newest = 0  # the revision of the last write below the node's own prefix
        self._shape, self._shape_at = "", 0  # the shape that is there, and the revision of it

    @property
    def note(self) -> str:
        """Name other agents that want the name, or have it, too, and give the remark."""
        return "; ".join(filter(None, (self._rivals, self._twin.note, self._remark())))

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
        return max(0.0, min(self._name.due, self._look_at) - self._clock())

    # ---- what is due ------------------------------------------------------------------------

    def _tended(self, report: Report) -> None:
        try:
            self._name.keep_alive()
        except LeaseGone:
            self._lost()
            self._bring(report)
        if self._look_at > self._clock():
            return
        self._look_at = self._clock() + LOOK_LEASES * self._lease_seconds
        if not self._name.waiting:
            self._look(report)
        elif self._name.is_free(self._live(report)):
            raise Undelivered(f"{self.where}: the name {report.head.node} is free by now")

    def _look(self, report: Report) -> None:
        """See that the name and the entries are still as they were left, and who wants the name."""
        node = report.head.node
        found = self._client.txn(
            [],
            [
                get(self._keys.live(node), keys_only=True),
                newest(self._keys.node(node)),
                names(self._keys.rivals(node), MOST_RIVALS),
                get(self._keys.shape(report.shape), keys_only=True),
            ],
        )
        live, last, rivals, shape = (response.response_range for response in found.responses)
        told = self._name.rivals(self._live(report), rivals)
        if told and told != self._rivals:
            log.warning("%s", told)
        self._rivals = told
        there = self._there
        if not self._name.holds(live.kvs):
            self._lost()
        elif there is None:
            pass  # a write failed, or there is more than is kept: it is read again
        elif [one.mod_revision for one in last.kvs] != [self._newest] or last.count != len(there):
            log.warning("%s: somebody else wrote to this node's keys; they are written anew", node)
            self._there = None
        elif [one.mod_revision for one in shape.kvs] == [self._shape_at]:
            self._twin.quiet()
            return
        self._shape = ""
        self._bring(report)

    # ---- the entries ------------------------------------------------------------------------

    def _bring(self, report: Report) -> int:
        for _ in range(TRIES):
            try:
                # The lease may have ended meanwhile, and nothing that is written would tell.
                if self._doubted:
                    self._name.doubt()
                self._name.keep_alive()
                if not self._name.revision:
                    self._there = None
                    self._look_at = self._clock() + LOOK_LEASES * self._lease_seconds
                    self._name.claim(self._live(report))
                written = self._write(report)
            except LeaseGone:
                written = None
            if written is not None:
                self._doubted = False
                return written
            self._lost()
        reason = f"{self.where}: the name {report.head.node} changed hands meanwhile"
        raise Undelivered(reason, remedy=self._twin.note)

    def _lost(self) -> None:
        """Know nothing any more, neither of the name nor of what is there."""
        self._name.lose()
        self._there = None
        self._shape = ""

    def _write(self, report: Report) -> int | None:
        """Write what differs; None where the name, or the head, is not as it was left."""
        if self._there is None:
            self._read_back(report)
        written = self._put_shape(report)
        node = report.head.node
        wanted = transfer.wanted(self._keys, report)
        head = self._keys.entry(node, HEAD)
        there, self._there = self._there or {}, None  # until all is written, nobody knows
        for batch in transfer.batches(there, wanted, head):
            self._twin.tried(transfer.head(batch))
            fits = unchanged(head, self._head) if self._head else absent(head)
            told = self._client.txn([*self._name.ours(node), fits], batch)
            if not told.succeeded:
                return None
            self._head = self._newest = told.header.revision
            written += transfer.size(batch)
            there = wanted
        if len(there) <= self._most_strange:
            self._there = there
        return written

    def _read_back(self, report: Report) -> None:
        """See what the store has of this node: its head, and all of it where that is another's."""
        node = report.head.node
        prefix, head = self._keys.node(node), self._keys.entry(node, HEAD)
        heads, shape, last = self._seen(head, self._keys.shape(report.shape), more=[newest(prefix)])
        for there in shape.kvs:
            if _is_shape(there.value, report.shape):
                self._shape, self._shape_at = report.shape, there.mod_revision
        self._there = {}
        if self._head and heads.kvs and heads.kvs[0].mod_revision != self._head:
            self._meet(heads.kvs[0].value, report)
        self._head = self._newest = heads.kvs[0].mod_revision if heads.kvs else 0
        if not last.kvs:
            return
        if heads.kvs and transfer.stands_for(heads.kvs[0].value, report):
            whole = last.kvs[0].mod_revision == self._head  # nothing was written after it
            if whole and last.count == len(report.entries):
                self._there = transfer.assumed(self._keys, report, heads.kvs[0].value)
                return
        wanted = transfer.wanted(self._keys, report)
        _, found = self._client.range(prefix, largest=_LARGEST_PAGE)
        for one in itertools.islice(found, self._most_strange + len(wanted)):
            # Of what goes, the name is enough.
            self._there[one.key] = one.value if one.key in wanted else b""
            self._newest = max(self._newest, one.mod_revision)

    def _meet(self, head: bytes, report: Report) -> None:
        """See whose head there is where another one was left."""
        known = self._twin.note
        self._twin.met(head, report.head.agent)
        if self._twin.note != known:
            log.warning("%s: %s", report.head.node, self._twin.note)

    def _seen(self, *keys: bytes, more: Sequence[Operation] = ()) -> list[Found]:
        """Read keys, and more; without their values where those are rubbish of any size."""
        try:
            told = self._client.txn([], [*map(get, keys), *more])
        except TooLarge:
            told = self._client.txn([], [*(get(key, keys_only=True) for key in keys), *more])
        return [response.response_range for response in told.responses]

    def _put_shape(self, report: Report) -> int:
        """Have the shape there: put by whom it is of first, and changed only where it is spoilt."""
        if self._shape == report.shape:
            return 0
        key, data = self._keys.shape(report.shape), report.shape_data
        told = self._client.txn([absent(key)], [put(key, data)])
        if not told.succeeded:
            for there in self._seen(key)[0].kvs:
                if _is_shape(there.value, report.shape):
                    self._shape, self._shape_at = report.shape, there.mod_revision
                    return 0
                log.warning("%s: what is there is not this shape; it is written anew", key.decode())
                told = self._client.txn([unchanged(key, there.mod_revision)], [put(key, data)])
        if not told.succeeded:  # somebody else wrote it meanwhile: it is seen to with the next look
            return 0
        self._shape, self._shape_at = report.shape, told.header.revision
        return len(key) + len(data)

    # ---- failures ---------------------------------------------------------------------------

    def _asking(self, act: Callable[[], T]) -> T:
        try:
            try:
                return act()
            except (Unreachable, OtherCluster):
                if not self._moved():
                    raise
            return act()
        except EtcdError as error:
            self._there = None  # so the next report asks the store, also where nothing is new
            prefix = self._keys.prefix.decode()
            failure = etcdremedy.undelivered(error, prefix=prefix, user=self._user)
            failure.meanwhile = self._name.meanwhile()
            self._doubted = True
            raise failure from None
        except Undelivered as failure:
            failure.meanwhile = self._name.meanwhile()
            raise

    def _live(self, report: Report) -> Live:
        head = report.head
        return Live(
            agent=head.agent, boot_id=head.boot_id, node=head.node, program=head.program,
            host=self._host,
        )  # fmt: skip

    def _moved(self) -> bool:
        """Take the endpoints of the configuration file where they are others by now."""
        now = tuple(self._renew()) if self._renew is not None else ()
        if not now or now == self._client.endpoints:
            return False
        log.warning("the endpoints are %s now", ", ".join(now))
        self._client.move(now)
        return True


def _is_shape(value: bytes, sha256: str) -> bool:
    try:
        return packing.digest(value) == sha256
    except packing.Unreadable:
        return False
