"""The one door to HTTP: a connection that is kept, with an end to everything that is waited for.

The standard library's timeouts are of one read each, so a server that sends a byte a second would
hold a thread for ever; here the whole answer has a deadline, and a size. Redirects are not
followed, and no proxy of the environment is asked: a store is where the configuration says.

All in here blocks, and belongs in a thread. `Connection` is for one thread; `close` is for any.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from msgspec import Struct

from xce_nodeagent.upstream.lookup import Lookup
from xce_nodeagent.upstream.noanswer import NoAnswer, blames_certificate, words
from xce_nodeagent.upstream.tls import Files, Tls

LARGEST = 64 << 20
"""Bytes of an answer that are read at most, where nothing else is said."""

_PIECE = 64 << 10
# Seconds of quiet until the kernel asks whether the other side lives, between its questions, and
# how many it asks: a stream learns within half a minute that the host behind it is gone.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class Answer(Struct, frozen=True):
    """What came back. The names of the headers are in small letters."""

    status: int
    headers: dict[str, str]
    body: bytes


class _Timed:
    """A socket that waits for nothing beyond `end`, by the monotonic clock."""

    def __init__(self, inner: socket.socket, end: float) -> None:
        self.inner = inner
        self.end = end
        self.heard = False

    def sendall(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        while view:
            self._wait()
            view = view[self.inner.send(view) :]

    def receive(self, buffer: Any) -> int:
        self._wait()
        count = self.inner.recv_into(buffer)
        self.heard = self.heard or count > 0
        return count

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Raw(self), _PIECE)

    def close(self) -> None:
        """Nothing: http.client closes before it reads an answer that ends with the connection."""

    def _wait(self) -> None:
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.inner.settimeout(left)


class _Raw(io.RawIOBase):
    def __init__(self, timed: _Timed) -> None:
        super().__init__()
        self._timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._timed.receive(buffer)


class Connection:
    """A connection to one place, opened when it is needed and kept for the next request.

    `connect_seconds` are for the name, the connection and its TLS, `seconds` for a request and its
    whole answer. `address` is the place without a path, for people. `resolve` is
    `socket.getaddrinfo`.
    """

    schemes: ClassVar = {"http": 80, "https": 443}

    def __init__(
        self,
        url: str,
        tls: Tls | None = None,
        *,
        connect_seconds: float = 5.0,
        seconds: float = 10.0,
        largest: int = LARGEST,
        resolve: Callable[..., Any] = socket.getaddrinfo,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in self.schemes or not parts.hostname or parts.username is not None:
            raise ValueError(f"{_bare(url)}: expected http://HOST:PORT or https://HOST:PORT")
        self._host = parts.hostname
        self._port = parts.port or self.schemes[parts.scheme]
        self._lookup = Lookup(self._host, self._port, resolve)
        self._tls = (tls or Tls(Files())) if parts.scheme == "https" else None
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.address = f"{parts.scheme}://{shown}:{self._port}"
        self._connect_seconds = connect_seconds
        self._seconds = seconds
        self._largest = largest
        self._client: http.client.HTTPConnection | None = None
        self._timed: _Timed | None = None
        self._context: ssl.SSLContext | None = None
        self._begun = False
        self._lock = threading.Lock()

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
        largest: int | None = None,
    ) -> Answer:
        """Send a request and give its answer, whatever its status is. Raise NoAnswer."""
        limit = self._largest if largest is None else largest
        patience = self._seconds if seconds is None else seconds
        with self._telling():
            response = self._begin(method, path, body, headers or {}, patience)
            length = response.length
            if length is not None and length > limit:
                raise self._too_large(limit)
            data = response.read(limit + 1)
            if len(data) > limit:
                raise self._too_large(limit)
            if length is not None and len(data) < length:
                raise http.client.IncompleteRead(data, length - len(data))
            told = {name.lower(): value for name, value in response.getheaders()}
            if response.will_close:
                self.close()
            return Answer(response.status, told, data)

    def lines(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        quiet_seconds: float,
        seconds: float | None = None,
        longest: int | None = None,
    ) -> Iterator[bytes]:
        """Give the lines of an answer that has no end, each as soon as it is there.

        Raise NoAnswer when no line came for `quiet_seconds`, for a status other than 200, and for a
        line of more than `longest` bytes; the first line has `seconds`. Whoever stops in the middle
        closes the connection, from the same thread or, to wake this one, from another.
        """
        limit = self._largest if longest is None else longest
        patience = self._seconds if seconds is None else seconds
        with self._telling():
            response = self._begin(method, path, body, headers or {}, patience)
            timed = self._timed
            if response.status != http.client.OK:
                body = response.read(_PIECE)
                said = f"{response.status}, {body.decode('utf-8', 'replace').strip()}"
                raise NoAnswer(
                    f"{self.address}: {said}", begun=True, status=response.status, body=body
                )
        pieces: list[bytes] = []
        size = 0
        try:
            while True:
                try:
                    with self._telling():
                        piece = response.read1(_PIECE)
                except NoAnswer as error:
                    error.partial = size > 0
                    raise
                if not piece:
                    raise NoAnswer(f"{self.address}: the stream was ended", begun=True)
                pieces.append(piece)
                size += len(piece)
                if b"\n" in piece:
                    *whole, rest = b"".join(pieces).split(b"\n")
                    pieces, size = [rest], len(rest)
                    yield from whole
                    # By whole lines: one that comes a byte a second would have no end.
                    if timed is not None:
                        timed.end = time.monotonic() + quiet_seconds
                if size > limit:
                    raise self._too_large(limit)
        finally:
            self.close()

    def close(self) -> None:
        """End the connection; a thread that waits for an answer is told so."""
        with self._lock:  # else one that is opened just then is forgotten, and stays open
            timed, client = self._timed, self._client
            self._timed = self._client = None
        if timed is not None:
            with contextlib.suppress(OSError):
                # Not that of TLS, which would pull the object away below the other thread.
                socket.socket.shutdown(timed.inner, socket.SHUT_RDWR)
            timed.inner.close()
        if client is not None:
            client.close()

    def _begin(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str], seconds: float
    ) -> http.client.HTTPResponse:
        """Send a request and read the head of the answer."""
        self._begun = False
        fresh = not self._reusable()
        while True:
            timed, client = self._open() if fresh else self._opened()
            timed.end = time.monotonic() + seconds
            timed.heard = False
            self._begun = True
            try:
                client.request(method, path, body, dict(headers))
                return client.getresponse()
            except (ConnectionError, ssl.SSLError):
                # The other side may end a connection that is quiet, just when it is used again.
                if fresh or timed.heard or self._timed is not timed:
                    raise
                self.close()
                fresh = True

    def _reusable(self) -> bool:
        if self._timed is None or self._client is None or self._client.sock is None:
            return False
        if self._tls is not None and self._tls.context() is not self._context:
            return False
        # What is quiet has nothing to read: an end, or what nobody asked for, ends it.
        poll = select.poll()
        poll.register(self._timed.inner, select.POLLIN)
        return not poll.poll(0)

    def _opened(self) -> tuple[_Timed, http.client.HTTPConnection]:
        if self._timed is None or self._client is None:
            raise ConnectionAbortedError("closed")
        return self._timed, self._client

    def _open(self) -> tuple[_Timed, http.client.HTTPConnection]:
        self.close()
        end = time.monotonic() + self._connect_seconds
        context = self._tls.context() if self._tls is not None else None
        inner = self._dial(end)
        try:
            inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            inner.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                inner.setsockopt(socket.IPPROTO_TCP, option, value)
            if context is not None:
                inner.settimeout(max(end - time.monotonic(), 0.001))
                inner = context.wrap_socket(inner, server_hostname=self._host)
        except BaseException:
            inner.close()
            raise
        client = http.client.HTTPConnection(self._host, self._port)
        timed = _Timed(inner, end)
        client.sock = timed
        with self._lock:
            self._timed, self._client, self._context = timed, client, context
        return timed, client

    def _dial(self, end: float) -> socket.socket:
        found = self._lookup.addresses(end)
        last: OSError = TimeoutError()
        for place, (family, kind, protocol, _, address) in enumerate(found):
            left = end - time.monotonic()
            if left <= 0:
                break
            inner = socket.socket(family, kind, protocol)
            try:
                # An address that swallows all does not take the time of the others.
                inner.settimeout(left / (len(found) - place))
                inner.connect(address)
            except OSError as error:
                inner.close()
                last = error
            else:
                return inner
        raise last

    def _too_large(self, limit: int) -> NoAnswer:
        reason = f"{self.address}: an answer of more than {limit} bytes"
        return NoAnswer(reason, begun=True, large=True)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn what the libraries raise into NoAnswer, and leave no half-read connection."""
        try:
            yield
        except NoAnswer:
            self.close()
            raise
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # Attributes of http.client's objects vanish where another thread closes them.
            closed = self._begun and self._timed is None
            self.close()
            if isinstance(error, AttributeError) and not closed:
                raise  # a fault of this program
            ours = self._tls.wrong() if self._tls is not None else ""
            reason = f"{self.address}: {words(error)}"
            if ours:
                reason = f"{reason}; {ours}"
            blamed = bool(ours) or blames_certificate(error)
            late = isinstance(error, TimeoutError)
            raise NoAnswer(reason, certificate=blamed, begun=self._begun, late=late) from None


def _bare(url: str) -> str:
    """Give a URL without what could be a password."""
    return url.rpartition("@")[2] if "@" in url else url
