"""What a reader has of one node: its keys as they came, and what they weigh. No I/O."""

from __future__ import annotations

import hashlib
import math

from msgspec import Struct

from xce_nodeagent.upstream import packing, report
from xce_nodeagent.upstream.fleet import Node

MOST_ENTRIES = 4096
"""Entries of a node that are read: several times what a host with a thousand jobs has."""

MOST_BYTES = 8 << 20
"""Bytes of JSON of all entries of a node that are read: several times what a host has that holds
all ports, or a thousand jobs."""


HEAVY_BYTES = 1 << 20
HEAVY_SECONDS = 1.0
"""A node with more than so many bytes of JSON is read at most once in this time: no host has them,
and reading them takes a tenth of a second, in which there is no news of others."""


class _Sum(Struct, frozen=True, gc=False):
    """The SHA-256 of an entry's JSON, and its bytes; the hash is empty where it is unreadable."""

    digest: str
    size: int


class Record:
    """What is known of one node, and what was made of it."""

    __slots__ = (
        "_size",
        "_sums",
        "entries",
        "faults",
        "last",
        "live",
        "made",
        "rivals",
        "shared",
        "since",
        "unlike",
        "until",
    )

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}
        self._sums: dict[str, _Sum] = {}  # of those that were inflated since they came
        self._size = 0  # of all in `_sums`
        self.shared = False  # a Node has these entries: they are copied before they change
        self.live: tuple[bytes, int] | None = None
        self.rivals: dict[str, bytes] = {}
        self.until = -math.inf  # available without a lease until then
        self.since = 0.0  # when its lease was seen ended, for people
        self.unlike: float | None = None  # since when the entries are not those of the head
        self.made: Node | None = None
        self.last = -math.inf  # when that was
        self.faults: tuple[str, ...] = ()  # of the report in `made`, not of who has the name

    def put(self, entry: str, value: bytes | None) -> bool:
        """Take an entry in; say whether that changed anything."""
        if self.entries.get(entry) == value:
            return False
        if self.shared:
            self.entries, self.shared = dict(self.entries), False
        known = self._sums.pop(entry, None)
        if known is not None:
            self._size -= known.size
        if value is None:
            del self.entries[entry]
        else:
            self.entries[entry] = value
        return True

    def rest(self, now: float) -> float:
        """Give when it may be made anew; a time that is over where it may be now."""
        return self.last + HEAVY_SECONDS if self._size > HEAVY_BYTES else now

    def excess(self) -> str:
        """Say what there is too much of to be read; empty where all is as a host has it.

        Inflates, one after the other, what changed since it was asked, and no more than may be.
        """
        if len(self.entries) > MOST_ENTRIES:
            return f"{len(self.entries)} entries; at most {MOST_ENTRIES} are read"
        if len(self._sums) < len(self.entries):
            for name in self.entries.keys() - self._sums.keys():
                if self._size > MOST_BYTES:
                    break
                found = self._sums[name] = _sum(name, self.entries[name])
                self._size += found.size
        if self._size > MOST_BYTES:
            return f"its entries are of more than {MOST_BYTES} bytes; that is not read"
        return ""

    def whole(self) -> bool:
        """Say whether the entries, of which there is no excess, are those that the head names."""
        sums = {name: one.digest for name, one in self._sums.items()}
        sums.pop(report.HEAD, None)
        if "" in sums.values():
            return False
        try:
            limit = report.limit(report.HEAD)
            head = packing.unpack(self.entries[report.HEAD], report.Head, limit)
        except (KeyError, packing.Unreadable):
            return False
        return head.report == report.digest_of(sums)

    @property
    def empty(self) -> bool:
        """Whether nothing is known."""
        return not self.entries and self.live is None and not self.rivals


def _sum(name: str, data: bytes) -> _Sum:
    limit = report.limit(name)
    if name == report.HEAD:
        return _Sum("", limit)  # it changes each time, and nothing needs its hash
    try:
        plain = packing.plain(data, limit)
    except packing.Unreadable:
        return _Sum("", limit)  # as many bytes may have been inflated
    return _Sum(hashlib.sha256(plain).hexdigest(), len(plain))
