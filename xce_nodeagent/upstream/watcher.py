"""The reader of a fleet: lists a store once, follows it, and hands out fleets that never change.

Two threads. One reads: it lists all keys at one revision, and watches from the next; where the
store has forgotten the revision that it is at, it lists again. The other makes fleets of what was
read, at most one in 20 ms, and tells who waits. Neither touches the other's values.

While the store is away the last fleet stays, as it was: nobody's lease ends by that.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from random import Random
from types import TracebackType
from typing import Literal, Self

from msgspec import Struct, structs

from xce_nodeagent.upstream import etcderror, etcdremedy, etcdwatch
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcdremedy import Asker
from xce_nodeagent.upstream.etcdwire import Event
from xce_nodeagent.upstream.fleet import Fleet
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.mirror import SETTLE, Change, Mirror
from xce_nodeagent.upstream.sink import Undelivered

_log = logging.getLogger(__name__)

PUBLISH_SECONDS = 0.02
"""Between two fleets: a change that comes alone is seen at once, many together share one."""

_MOST_PENDING = 100_000  # changes that are read and not taken in: after that the store waits
_BACKOFF = (0.1, 10.0)  # seconds, the first and the longest


Phase = Literal["reading", "following", "away", "closed"]


class State(Struct, frozen=True, kw_only=True):
    """How the reader stands to the store, so that who uses a fleet knows how old it may be.

    `since` is when that began, `heard` when the store last said that there is nothing newer (every
    20 s where nothing changes), in seconds since the epoch. `reason` says what is wrong while the
    store is `away`, `remedy` what helps. `lists` counts how often all was read, `changes` what
    came after.
    """

    phase: Phase = "reading"
    since: float = 0.0
    heard: float = 0.0
    reason: str = ""
    remedy: str = ""
    revision: int = 0
    lists: int = 0
    changes: int = 0


class _Listed(Struct, frozen=True):
    """All keys at a revision."""

    found: list[tuple[bytes, bytes, int]]
    revision: int
    cluster: str


class _Changed(Struct, frozen=True):
    """Changes up to a revision."""

    events: tuple[Event, ...]
    revision: int


class Watcher:
    """Follows a fleet. Use it as a context, or `start` and `close` it.

    `grace` is how many seconds a node stays available after its lease ended, `settle` how many a
    report may take to be whole, `clock` monotonic, `wall` the time of day. `callback` of
    `subscribe` runs in the watcher's own thread, and should be quick.
    """

    def __init__(
        self,
        client: Client,
        keys: Keys,
        *,
        grace: float = 60.0,
        settle: float = SETTLE,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        random: Random | None = None,
    ) -> None:
        self._client = client
        self._prefix = keys.prefix
        self._read_to = 0  # the last revision that was read; 0: all is to be listed
        self._spoilt = ""  # why what was read was not all taken in, and all is to be listed
        self._mirror = Mirror(keys, grace=grace, settle=settle)
        self._clock = clock
        self._wall = wall
        self._random = random or Random()  # noqa: S311  # to spread readers, not to keep a secret
        self._condition = threading.Condition()
        self._pending: list[_Listed | _Changed] = []
        self._waiting = 0  # changes in `_pending`
        self._closed = False
        self._fleet = Fleet()
        self._state = State(since=wall())
        self._callbacks: dict[object, Callable[[Fleet], None]] = {}
        self._threads: list[threading.Thread] = []

    # ---- for who uses it ----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read."""
        self._threads = [
            threading.Thread(target=self._read, name="fleet-read", daemon=True),
            threading.Thread(target=self._publish, name="fleet-publish", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End; the last fleet stays, and who waits for another is told that there is none.

        From a callback, too: that is the last one then.
        """
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        for thread in self._threads:
            while thread.is_alive() and thread is not threading.current_thread():
                self._client.close()  # again: it may just have opened another connection
                thread.join(0.1)
        self._client.close()
        self._enter("closed")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def snapshot(self) -> Fleet:
        """The newest fleet; one of revision 0 before the store was read the first time."""
        return self._fleet

    @property
    def state(self) -> State:
        """How the reader stands to the store."""
        return self._state

    def wait_for(self, predicate: Callable[[Fleet], bool], *, seconds: float) -> Fleet:
        """Give the first fleet that was read and of which `predicate` is true.

        Raise TimeoutError when the time is over, or the watcher is closed, before that.
        """
        deadline = time.monotonic() + seconds
        seen: Fleet | None = None
        while True:
            with self._condition:
                while self._fleet is seen or not self._fleet.revision:
                    left = deadline - time.monotonic()
                    if left <= 0 or self._closed:
                        state = self._state
                        why = f": {state.reason}" if state.reason else ""
                        raise TimeoutError(
                            f"no such fleet in {seconds:g} s; the reader is {state.phase}{why}"
                        )
                    self._condition.wait(left)
                seen = self._fleet
            if predicate(seen):
                return seen

    def subscribe(self, callback: Callable[[Fleet], None]) -> Callable[[], None]:
        """Call back with each new fleet; call what comes back to end that.

        It is called in a thread of the reader's, and may `close` it.
        """
        token = object()
        with self._condition:
            self._callbacks[token] = callback

        def cancel() -> None:
            with self._condition:
                self._callbacks.pop(token, None)

        return cancel

    # ---- the thread that reads ----------------------------------------------------------------

    def _read(self) -> None:
        pause = _BACKOFF[0]
        while not self._closed:
            began = time.monotonic()
            with self._condition:
                if self._spoilt:
                    self._spoilt, self._read_to = "", 0
            try:
                self._follow()
            except etcderror.Compacted as error:
                _log.info("fleet: all is read again: %s", error.reason)
                self._read_to = 0
            except (etcderror.EtcdError, Undelivered) as error:  # the latter: no password to read
                if isinstance(error, etcderror.Future):
                    self._read_to = 0  # the store went back: all that is known is of no use
                if self._closed:
                    return
                if self._state.phase != "away":
                    _log.warning("fleet: the store is away: %s", error.reason)
                if self._spoilt:
                    self._enter("away", self._spoilt)
                else:
                    self._enter("away", error.reason, self._remedy(error))
            except Exception as error:  # noqa: BLE001  # a thread that ends would be no reader any more
                _log.exception("fleet: a fault of this program; all is read again")
                self._read_to = 0
                self._enter("away", f"a fault of this program: {type(error).__name__}: {error}")
            if time.monotonic() - began > _BACKOFF[1]:
                pause = _BACKOFF[0]
            self._rest(self._random.uniform(0, pause))  # full jitter: many readers spread
            pause = min(2 * pause, _BACKOFF[1])

    def _remedy(self, error: etcderror.EtcdError | Undelivered) -> str:
        if isinstance(error, Undelivered):
            return error.remedy
        return etcdremedy.remedy(error, Asker(reads=True, prefix=self._prefix.decode()))

    def _follow(self) -> None:
        """Read all, where that is needed, and then what changes, until the store ends it."""
        if not self._read_to:
            self._list()
        cluster = self._client.cluster
        for batch in etcdwatch.follow(self._client, self._prefix, self._read_to):
            if self._client.cluster != cluster:  # revisions of one say nothing in another
                self._read_to = 0
                return
            if self._spoilt:
                return
            self._enter("following", heard=batch.current)
            if batch.events:
                self._hand(_Changed(batch.events, batch.revision), len(batch.events))
            self._read_to = batch.revision

    def _list(self) -> None:
        if self._state.phase != "away":
            self._enter("reading")
        revision, every = self._client.range(self._prefix)
        found = [(kv.key, kv.value, kv.lease) for kv in every]
        self._hand(_Listed(found, revision, str(self._client.cluster)), len(found))
        self._read_to = revision

    def _hand(self, read: _Listed | _Changed, count: int) -> None:
        """Give to the other thread what was read; wait while it has too much."""
        with self._condition:
            while self._waiting > _MOST_PENDING and not self._closed:
                self._condition.wait()
            if self._spoilt:  # it goes on from what was lost
                return
            self._pending.append(read)
            self._waiting += count
            self._condition.notify_all()

    def _enter(
        self, phase: Phase, reason: str = "", remedy: str = "", *, heard: bool = False
    ) -> None:
        with self._condition:
            before, wall = self._state, self._wall()
            self._state = structs.replace(
                before,
                phase=phase,
                since=before.since if before.phase == phase else wall,
                heard=wall if heard else before.heard,
                reason=reason,
                remedy=remedy,
            )
            if before.phase != phase:
                self._condition.notify_all()

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._condition:
            while not self._closed and (left := until - time.monotonic()) > 0:
                self._condition.wait(left)

    # ---- the thread that publishes ------------------------------------------------------------

    def _publish(self) -> None:
        last = -math.inf
        while True:
            with self._condition:
                while not self._pending and not self._closed:
                    left = self._mirror.due() - self._clock()
                    if left <= 0:
                        break
                    self._condition.wait(min(left, threading.TIMEOUT_MAX))
            # What comes within this time comes along; a change that comes alone waits for nothing.
            self._rest(last + PUBLISH_SECONDS - time.monotonic())
            if self._closed:
                return
            last = time.monotonic()
            try:
                self._take()
            except Exception as error:  # noqa: BLE001  # a thread that ends is no reader any more
                _log.exception("fleet: a fault of this program; all is read again")
                self._spoil(f"a fault of this program: {type(error).__name__}: {error}")
                self._rest(1.0)

    def _spoil(self, why: str) -> None:
        """Have all read again: nobody knows how much was taken in of what was read."""
        with self._condition:
            self._spoilt = why
            self._pending, self._waiting = [], 0
            self._condition.notify_all()
        self._enter("away", why)
        self._client.interrupt()  # a stream may be quiet for long

    def _take(self) -> None:
        """Take in what was read, and give out the fleet that it makes."""
        with self._condition:
            read, self._pending = self._pending, []
            self._waiting = 0
            self._condition.notify_all()
        now, wall = self._clock(), self._wall()
        fleet = self._fleet
        revision, cluster = fleet.revision, fleet.cluster
        lists, changes = 0, 0
        for part in read:
            revision = part.revision
            if isinstance(part, _Listed):
                cluster = part.cluster
                lists += 1
                self._mirror.reset(part.found, now=now, wall=wall)
            else:
                changes += len(part.events)
                self._mirror.apply(map(_change, part.events), now=now, wall=wall)
        fleet = self._mirror.fleet(revision=revision, cluster=cluster, now=now, wall=wall)
        with self._condition:
            self._fleet = fleet
            before = self._state
            self._state = structs.replace(
                before,
                revision=revision,
                lists=before.lists + lists,
                changes=before.changes + changes,
            )
            callbacks = tuple(self._callbacks.values())
            self._condition.notify_all()
        for callback in callbacks:
            if self._closed:
                return
            try:
                callback(fleet)
            except Exception:  # noqa: BLE001  # one that fails is its own business
                _log.exception("fleet: a callback failed")


def _change(event: Event) -> Change:
    return event.kv.key, None if event.deleted else event.kv.value, event.kv.lease
