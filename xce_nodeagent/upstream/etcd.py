"""A client of etcd's v3 JSON gateway, with failover between members.

Each call goes to one member after the other until one answers: one that is away, that has no
leader, or is of another cluster than the right one is passed over. A member proves itself by its
status before anything else is asked of it. What is refused by the cluster (a right that is missing,
a full database) is refused by each member, and raised at once. All errors are of `etcderror.py`.

A client is for one thread; `close` is for any.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

from xce_nodeagent.upstream import etcderror, etcdwire, keys, secret
from xce_nodeagent.upstream.endpoints import Endpoints
from xce_nodeagent.upstream.etcderror import (
    AuthDisabled,
    Denied,
    EtcdError,
    Garbage,
    LeaseGone,
    NoLeader,
    OtherCluster,
    StaleToken,
    TooLarge,
    Unauthenticated,
    Unreachable,
)
from xce_nodeagent.upstream.etcdwire import (
    Compare,
    Found,
    Header,
    Kv,
    Lease,
    Operation,
    Range,
    Status,
    Streamed,
    Token,
    Txn,
)
from xce_nodeagent.upstream.noanswer import NoAnswer
from xce_nodeagent.upstream.pages import Pages
from xce_nodeagent.upstream.secret import Secrets
from xce_nodeagent.upstream.tls import Tls
from xce_nodeagent.upstream.web import Connection

T = TypeVar("T")

log = logging.getLogger(__name__)

LARGEST = 16 << 20
"""Bytes of a page, of a line of a watch, and of an answer with one value, that are taken; pages are
a tenth of it, if values are of a size."""

LARGEST_ANSWER = 1 << 20
"""The same of all other answers."""

# Without a token a member may take its own certificate's name for the user, who may not do much.
NO_TOKEN = (StaleToken, Unauthenticated, Denied)

Credentials = Callable[[], tuple[str, str]]
"""Gives user and password, read anew when they are needed."""


class Client:
    """The members of a cluster, as one.

    `seconds` are for one request at one member, `connect_seconds` for a connection and for the
    proof that it is of use. `pinned` has the ids of which the cluster's must be one; empty for any:
    then it is the one of the first answer, and another one is believed only where all members are
    of it. `cluster` tells which it is, 0 before the first answer.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        random: Random,
        *,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        pinned: frozenset[int] = frozenset(),
        seconds: float = 5.0,
        connect_seconds: float = 3.0,
        largest: int = LARGEST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = 0
        self.closed = False
        self.asked = 0
        """How many requests were sent."""
        self._endpoints = Endpoints(endpoints, random)
        self._tls = tls
        self._credentials = credentials
        self._pinned = pinned
        self._seconds = seconds
        self._connect_seconds = connect_seconds
        self.largest = largest
        self._clock = clock
        self._token = ""
        self._secrets = Secrets()
        self._proven: set[str] = set()
        self._connections: dict[str, Connection] = {}

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The members' URLs."""
        return self._endpoints.urls

    def move(self, endpoints: Sequence[str]) -> None:
        """Take other members from now on."""
        self._endpoints.move(endpoints)
        for url in self._connections.keys() - set(endpoints):
            self._connections.pop(url).close()
            self._proven.discard(url)

    def close(self) -> None:
        """End all connections, for good; a thread that waits for an answer is told so."""
        self.closed = True
        for connection in list(self._connections.values()):
            connection.close()

    def interrupt(self) -> None:
        """End all connections for now; a thread that waits for an answer asks again."""
        for connection in list(self._connections.values()):
            connection.close()

    def get(self, key: bytes) -> Kv | None:
        """Read a key; None where it is not there."""
        found = self._call("kv/range", Range(key), Found, self.largest)
        return found.kvs[0] if found.kvs else None

    def range(
        self,
        prefix: bytes,
        *,
        revision: int = 0,
        keys_only: bool = False,
        largest: int | None = None,
    ) -> tuple[int, Iterator[Kv]]:
        """Read all keys with a prefix, as they were at a revision, 0 for now; give the revision.

        The keys come in their order, by pages of `largest` bytes at most, each asked for when it
        is needed. Compacted is raised where the revision is gone by then.
        """
        asked = Range(prefix, keys.end(prefix), revision=revision, keys_only=keys_only)
        most = largest or self.largest
        pages = Pages(lambda one: self._call("kv/range", one, Found, most), asked, self._first)
        return pages.revision, iter(pages)

    def txn(
        self,
        compares: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
    ) -> Txn:
        """Do the first operations where all is as compared, the other ones where not."""
        asked = {"compare": compares, "success": success, "failure": failure}
        told = self._call("kv/txn", asked, Txn)
        if len(told.responses) != len(success if told.succeeded else failure):
            raise Garbage(f"{self._first()}: a txn's answer has {len(told.responses)} responses")
        return told

    def grant(self, seconds: int) -> Lease:
        """Make a lease; the store may give it more seconds than were asked for (`TTL`)."""
        told = self._call("lease/grant", {"TTL": seconds}, Lease)
        if told.TTL <= 0 or not told.ID:
            raise Garbage(f"{self._first()}: it grants a lease {told.ID} of {told.TTL} seconds")
        return told

    def keep_alive(self, lease: int) -> int:
        """Begin a lease's time anew; give its seconds. Raise LeaseGone."""
        told = self._call("lease/keepalive", {"ID": lease}, Streamed).result
        if told.TTL <= 0:
            raise LeaseGone(f"{self._first()}: requested lease not found")
        return told.TTL

    def status(self) -> Status:
        """Ask a member what it says of itself."""
        return self._call("maintenance/status", {}, Status)

    # ---- one call ---------------------------------------------------------------------------

    def _call(self, path: str, body: Any, kind: type[T], largest: int = LARGEST_ANSWER) -> T:
        data = etcdwire.written(body)
        return self.anywhere(lambda url: self._authorised(url, path, data, kind, largest))

    def anywhere(self, act: Callable[[str], T]) -> T:
        """Do something at the first member that is able to; it raises an EtcdError where not."""
        found: list[T] = []
        failures = self._round(act, found)
        if found:
            return found[0]
        if self._accepts(failures):
            failures = self._round(act, found)
            if found:
                return found[0]
        raise etcderror.worst(failures)

    def _round(self, act: Callable[[str], T], found: list[T]) -> list[EtcdError]:
        failures: list[EtcdError] = []
        for url in self._endpoints.round(self._clock()):
            try:
                self._prove(url)
                found.append(act(url))
            except EtcdError as error:
                self.clean(error)
                if not error.elsewhere:
                    raise
                self.blame(url)
                failures.append(error)
                if self.closed:
                    break
            else:
                self._endpoints.worked(url)
                break
        return failures

    def clean(self, error: EtcdError) -> None:
        """Take out of an error what nobody is told."""
        error.say(self._secrets.said(error.reason))

    def blame(self, url: str) -> None:
        """Ask a member again only after the others, and after it has proved itself."""
        self._endpoints.failed(url, self._clock())
        self._proven.discard(url)

    def _prove(self, url: str) -> None:
        if url in self._proven:
            return
        told = self._ask(url, "maintenance/status", b"{}", Status, self._connect_seconds)
        if not told.leader:
            raise NoLeader(f"{url}: it has no leader")
        self._proven.add(url)

    def _authorised(self, url: str, path: str, data: bytes, kind: type[T], largest: int) -> T:
        try:
            return self._ask(url, path, data, kind, largest=largest)
        except NO_TOKEN as error:
            self.authenticate(url, error)
        return self._ask(url, path, data, kind, largest=largest)

    def authenticate(self, url: str, refused: EtcdError) -> None:
        """Get a token, for it was refused without, or with the one before."""
        if self._credentials is None or (self._token and not isinstance(refused, StaleToken)):
            raise refused
        self._token = ""
        user, password = self._credentials()
        self._secrets.keep(password)
        asked = etcdwire.written({"name": user, "password": password})
        try:
            # Of what is said of a password nothing is quoted.
            token = self._ask(url, "auth/authenticate", asked, Token, quoting=False).token
        except AuthDisabled:
            return
        if not secret.is_line(token):
            raise Garbage(f"{url}: the token that it gave is no line of ASCII")
        self._token = self._secrets.keep(token)

    def headers(self) -> dict[str, str]:
        """Give what each request has: a member without a leader is to refuse it at once."""
        told = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
        if self._token:
            told["Authorization"] = self._token
        return told

    def _ask(
        self,
        url: str,
        path: str,
        data: bytes,
        kind: type[T],
        seconds: float | None = None,
        *,
        quoting: bool = True,
        largest: int = LARGEST_ANSWER,
    ) -> T:
        if self.closed:
            raise Unreachable(f"{url}: closed")
        self.asked += 1
        try:
            answer = self.connection(url).ask(
                "POST", f"/v3/{path}", data, self.headers(), seconds=seconds,
                largest=min(largest, self.largest),
            )  # fmt: skip
        except NoAnswer as error:
            raise unanswered(url, error) from None
        if answer.status != 200:
            raise etcderror.read(url, answer.status, answer.body, quoting=quoting)
        try:
            told = etcdwire.read(answer.body, kind)
        except etcdwire.UNREADABLE as error:
            raise Garbage(f"{url}: its answer to {path}: {error}") from None
        self.check(url, told.result.header if isinstance(told, Streamed) else told.header)  # type: ignore[attr-defined]  # each kind that is asked for has one
        return told

    def connection(self, url: str, *, own: bool = False) -> Connection:
        """Give the connection to a member; its `own` is a new one, which `close` ends, too."""
        name = f"{url} stream" if own else url
        if own or url not in self._connections:
            self._connections[name] = Connection(
                url,
                self._tls,
                connect_seconds=self._connect_seconds,
                seconds=self._seconds,
                largest=self.largest,
            )
        return self._connections[name]

    # ---- which cluster ----------------------------------------------------------------------

    def check(self, url: str, header: Header) -> None:
        """Raise OtherCluster where an answer is not of the right cluster."""
        found = header.cluster_id
        if not found:  # it says nothing of it
            return
        if self._pinned and found not in self._pinned:
            raise OtherCluster(
                f"{url}: it is of cluster {found}, and the configuration names another", found=found
            )
        if not self.cluster:
            self.cluster = found
        if found != self.cluster:
            raise OtherCluster(
                f"{url}: it is of cluster {found}, and it was {self.cluster} before", found=found
            )

    def _accepts(self, failures: Sequence[EtcdError]) -> bool:
        """Say whether all members are of one other cluster: the store was made anew."""
        others = {error.found for error in failures if isinstance(error, OtherCluster)}
        all_are = all(isinstance(error, OtherCluster) for error in failures)
        if self._pinned or not all_are or len(others) != 1:
            return False
        (found,) = others
        log.warning("%s: all are of cluster %d now; it was %d", self._first(), found, self.cluster)
        self.cluster = found
        return True

    def _first(self) -> str:
        return self._endpoints.round(self._clock())[0]


def unanswered(url: str, error: NoAnswer) -> EtcdError:
    """Give the error of a member that did not answer as HTTP does."""
    if error.status:
        return etcderror.read(url, error.status, error.body)
    if error.large:
        return TooLarge(error.reason)
    return Unreachable(error.reason, certificate=error.certificate)
