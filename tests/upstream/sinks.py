"""Sinks to a real etcd with a clock of the test's, reports for them, and what is in the store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import fleets
from asking import Asking
from etcds import DEADLINE, Etcd
from msgspec import structs

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.claim import Live
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcderror import EtcdError
from xce_nodeagent.upstream.etcdsink import EtcdSink
from xce_nodeagent.upstream.keys import EntryKey, Keys
from xce_nodeagent.upstream.report import Report, numbered, report
from xce_nodeagent.upstream.sink import Undelivered

LEASE = 20
"""Seconds of the leases here; real ones, for etcd's clock is no test's."""


class Clock:
    """The agent's clock, which goes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def made(
    node: str,
    number: int = 1,
    *,
    jobs: int = 0,
    agent: str = "agent-1",
    boot: str = "boot-1",
    started: float = 1.0,
) -> Report:
    """Give a report of a node with eight cards and some jobs; they need not be able to run."""
    found = structs.replace(fleets.inventory(0), node=node, boot_id=boot)
    cards = [one for one in found.instances if one.type == "gpu"]
    bound = [fleets.binding(str(job), cards[job % 8 : job % 8 + 1], found) for job in range(jobs)]
    one = report(found, bound, agent=agent, program="1.0")
    one = structs.replace(one, head=structs.replace(one.head, started=started))
    return numbered(one, number, 1e9 + number)


class Place:
    """A prefix of a test's own in a store, and sinks that write there."""

    def __init__(self, members: Sequence[Etcd] | Etcd, prefix: str) -> None:
        self.urls = [one.url for one in ([members] if isinstance(members, Etcd) else members)]
        self.keys = Keys(prefix)
        self.clock = Clock()
        self.reader = Asking(self.urls, Random(2))  # noqa: S311  # no secret
        self._open: list[Any] = [self.reader]

    def sink(self, *, lease: int = LEASE, urls: Sequence[str] = (), **options: Any) -> EtcdSink:
        client = Client(
            urls or self.urls,
            Random(1),  # noqa: S311  # no secret
            clock=self.clock,
            **{key: options.pop(key) for key in CLIENTS & options.keys()},
        )
        one = EtcdSink(client, self.keys, lease_seconds=lease, clock=self.clock, **options)
        self._open.append(one)
        return one

    def entries(self, node: str) -> dict[str, bytes]:
        """Give a node's entries as the store has them."""
        found = {}
        for one in self.reader.range(self.keys.node(node))[1]:
            key = self.keys.parse(one.key)
            assert isinstance(key, EntryKey), one.key
            found[key.entry] = one.value
        return found

    def live(self, node: str) -> Live | None:
        found = self.reader.get(self.keys.live(node))
        return packing.unpack(found.value, Live) if found else None

    def revision(self) -> int:
        return self.reader.status().header.revision

    def close(self) -> None:
        """End the leases, too: one that ends later is a write in the middle of another test."""
        with contextlib.suppress(EtcdError):
            _, found = self.reader.range(self.keys.prefix)
            for lease in {one.lease for one in found} - {0}:
                self.reader.revoke(lease)
        for one in self._open:
            one.close()


def prefix(request: Any) -> str:
    """Give a prefix of a test's own."""
    name = request.node.name[:60].replace("[", ".").replace("]", "")
    return f"/{name}/"


def undelivered(act: Callable[[], Any]) -> Undelivered:
    """Give the failure of what has to fail."""
    try:
        act()
    except Undelivered as failure:
        return failure
    raise AssertionError("it was delivered")


def eventually(act: Callable[[], Any]) -> Any:
    """Do it again until it is done, as delivery does: a leader may have to be chosen."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            return act()
        except Undelivered:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


CLIENTS = {"tls", "credentials", "pinned", "seconds", "connect_seconds"}


@contextlib.contextmanager
def place(members: Sequence[Etcd] | Etcd, prefix: str) -> Iterator[Place]:
    one = Place(members, prefix)
    try:
        yield one
    finally:
        one.close()
