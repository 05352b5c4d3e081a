"""All keys of a range, page by page: as many as the store said there are, and no more.

A store that lies could go on for ever, each page with higher keys than the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import structs

from xce_nodeagent.upstream.etcderror import Garbage, TooLarge
from xce_nodeagent.upstream.etcdwire import Found, Kv, Range

FIRST = 256
"""Keys of the first page; how many the next ones have goes by the bytes of the one before."""
_MOST = 10_000
_BYTES = 1 << 20

MOST_BYTES = 2 << 30
"""Bytes of keys and values that are read of a range: half a million nodes have no more, nor has
etcd by itself (--quota-backend-bytes), so who fills a store stops no reader by this."""
_KEY = 200  # bytes that a key costs, whatever it is


class Pages:
    """The keys of a range, as they were at one revision.

    `ask` reads one page, and raises TooLarge where it has more bytes than an answer may have.
    `where` names the place that answers. `found` is the first page, which is read at once.
    """

    def __init__(
        self, ask: Callable[[Range], Found], asked: Range, where: Callable[[], str]
    ) -> None:
        self._ask = ask
        self._asked = structs.replace(asked, limit=FIRST)
        self._where = where
        self._left = MOST_BYTES
        self.found = self._read()
        self.revision = asked.revision or self.found.header.revision
        """The one that all pages are of."""
        self._more = max(self.found.count, len(self.found.kvs) if not self.found.more else 0)

    def __iter__(self) -> Iterator[Kv]:
        found = self.found
        while True:
            size = sum(len(one.value) + len(one.key) for one in found.kvs) + 1
            self._count(found, size)
            yield from found.kvs
            if not found.more or not found.kvs:
                return
            limit = self._asked.limit
            self._asked = structs.replace(
                self._asked,
                key=found.kvs[-1].key + b"\0",
                limit=max(1, min(_MOST, 4 * limit, limit * _BYTES // size)),
                revision=self.revision,
            )
            found = self._read()

    def _count(self, found: Found, size: int) -> None:
        self._more -= len(found.kvs)
        self._left -= size + _KEY * len(found.kvs)
        if self._more < 0 or (found.more and not self._more):
            raise Garbage(f"{self._where()}: more keys than the {self.found.count} that there are")
        if self._left < 0:
            raise Garbage(f"{self._where()}: more than {MOST_BYTES} bytes of keys")

    def _read(self) -> Found:
        """Read a page, a smaller one where it is too large."""
        while True:
            asked = self._asked
            try:
                found = self._ask(asked)
            except TooLarge:
                if asked.limit <= 1:
                    raise
                self._asked = structs.replace(asked, limit=max(1, asked.limit // 4))
                continue
            if len(found.kvs) > asked.limit:
                raise Garbage(f"{self._where()}: more keys than were asked for")
            # Else one that gives the same again and again would be read for ever.
            if (
                found.kvs
                and not asked.key <= found.kvs[0].key <= found.kvs[-1].key < asked.range_end
            ):
                raise Garbage(f"{self._where()}: keys that were not asked for")
            return found
