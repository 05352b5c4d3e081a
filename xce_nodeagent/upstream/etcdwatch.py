"""Following the keys with a prefix: a stream that goes on at another member where one breaks.

A stream that is quiet says nothing of whether it lives: the store tells that it is up to date every
ten minutes only. So a quiet one is opened anew after a while, where it had come to; that costs one
request, and a member that hangs, or is cut off from the others, is left within that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec import Struct

from xce_nodeagent.upstream import etcderror, etcdwire, keys
from xce_nodeagent.upstream.etcd import LARGEST, NO_TOKEN, Client, unanswered
from xce_nodeagent.upstream.etcderror import (
    Compacted,
    EtcdError,
    Future,
    Garbage,
    Unreachable,
)
from xce_nodeagent.upstream.etcdwire import Event, Watched, WatchLine
from xce_nodeagent.upstream.noanswer import NoAnswer
from xce_nodeagent.upstream.web import Connection

QUIET_SECONDS = 20.0
OPEN_SECONDS = 5.0
"""Seconds until a new stream has said that it is one."""

_MOST = 16 * LARGEST


class Batch(Struct, frozen=True):
    """All that happened up to a revision, in its order; whole revisions only.

    One without events says that the stream is open, and where it had come to. `current`: the store
    had nothing newer then.
    """

    revision: int
    events: tuple[Event, ...] = ()
    current: bool = False


def follow(
    client: Client, prefix: bytes, after: int, *, quiet_seconds: float = QUIET_SECONDS
) -> Iterator[Batch]:
    """Give what happens to the keys with a prefix after a revision.

    Ends by an error only: Compacted where the revision is gone, Future where the store has not
    come to it, another one when no member is of use. Whoever goes on begins with the revision of
    the last batch.
    """
    broken = 0
    reached = after  # up to it the store has told all, though others' keys are what is newest
    while True:
        stream = client.anywhere(partial(_open, client, prefix, after, quiet_seconds))
        yield Batch(after, current=stream.revision <= reached)
        try:
            for batch in stream.batches():
                broken = 0
                after = max(after, batch.revision)
                reached = max(reached, after)
                yield batch
            # Of what there was when it was opened, nothing was about these keys.
            reached = max(reached, stream.revision)
            broken = 0
        except EtcdError as error:
            client.clean(error)
            # Each member may break once before that is told.
            broken += 1
            client.blame(stream.url)
            if not error.elsewhere or client.closed or broken > len(client.endpoints):
                raise
        finally:
            stream.connection.close()


class _Stream:
    """A watch that a member has said that it is open."""

    def __init__(self, url: str, connection: Connection, lines: Iterator[bytes]) -> None:
        self.url = url
        self.revision = 0  # the store's when it was opened
        self.connection = connection
        self._lines = lines

    def batches(self) -> Iterator[Batch]:
        """Give what is told, until nothing was for long; raise EtcdError where it breaks."""
        waiting: list[Event] = []
        size = 0
        while (line := self._line()) is not None:
            told = self.read(line)
            waiting.extend(told.events)
            size += len(line)
            if size > _MOST:
                raise Garbage(f"{self.url}: more than {_MOST} bytes of one revision")
            if told.fragment:
                continue
            last = max((event.kv.mod_revision for event in waiting), default=0)
            now = told.header.revision
            yield Batch(last or now, tuple(waiting), current=now <= (last or now))
            waiting, size = [], 0
        if waiting:
            raise Unreachable(f"{self.url}: the rest of a revision did not come in time")

    def _line(self) -> bytes | None:
        try:
            return next(self._lines)
        except NoAnswer as error:
            if error.late and not error.partial:
                return None
            raise unanswered(self.url, error) from None

    def read(self, line: bytes) -> Watched:
        """Read a line; raise what it says where it is the last one."""
        try:
            found = etcdwire.read(line, WatchLine)
        except etcdwire.UNREADABLE as error:
            raise Garbage(f"{self.url}: a line of its watch: {error}") from None
        told = found.result
        if told is None:
            raise etcderror.read(self.url, 200, line)
        if told.compact_revision:
            raise Compacted(
                f"{self.url}: required revision has been compacted", revision=told.compact_revision
            )
        if told.canceled:
            raise etcderror.of(self.url, 0, told.cancel_reason or "the watch was cancelled")
        return told


def _open(client: Client, prefix: bytes, after: int, quiet_seconds: float, url: str) -> _Stream:
    """Open a watch at a member; with a token where it wants one."""
    try:
        return _opened(client, prefix, after, quiet_seconds, url)
    except NO_TOKEN as error:
        client.authenticate(url, error)
    return _opened(client, prefix, after, quiet_seconds, url)


def _opened(client: Client, prefix: bytes, after: int, quiet_seconds: float, url: str) -> _Stream:
    asked = {
        "create_request": {
            "key": prefix,
            "range_end": keys.end(prefix),
            "start_revision": after + 1,
            "fragment": True,
        }
    }
    connection = client.connection(url, own=True)
    lines = connection.lines(
        "POST",
        "/v3/watch",
        etcdwire.written(asked),
        client.headers(),
        quiet_seconds=quiet_seconds,
        seconds=OPEN_SECONDS,
        longest=client.largest,
    )
    stream = _Stream(url, connection, lines)
    try:
        first = stream.read(next(lines))
        client.check(url, first.header)
        stream.revision = first.header.revision
        if first.header.revision < after:
            raise Future(
                f"{url}: it is at revision {first.header.revision}, before {after}: its data is"
                " older than what was read from it"
            )
    except NoAnswer as error:
        connection.close()
        raise unanswered(url, error) from None
    except EtcdError:
        connection.close()
        raise
    return stream
