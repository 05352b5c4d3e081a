"""Scrapes: one HTTP request after the other, below the work of jobs, whoever is at the other end.

What a stranger can cost is bounded: so many connections at once, of which the oldest gives way; so
many new ones in a second, while the others wait in the kernel; one deadline for all of a
connection. asyncio's own server bounds none of these, and reads descriptors that a client sends
along (`rights.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Final

from xce_nodeagent.daemon import request, rights

log = logging.getLogger(__name__)

MOST: Final = 8
"""Connections at once: Prometheus has one, and a second where two servers scrape."""

RATE: Final = 20
"""Connections that are let in within a second."""

READS: Final = 64
"""Times that is read from a client: a request that comes byte by byte is nobody's who scrapes."""

SECONDS: Final = 10.0
"""Deadline of a connection, from its beginning to its end. Prometheus' own is 10 s by default."""


class Scrape:
    """One connection: reads a request, sends the answer, and waits until the client has left."""

    def __init__(
        self,
        sock: socket.socket,
        answer: Callable[[bytes], bytes],
        closed: Callable[[Scrape], None],
        *,
        seconds: float,
        wary: bool,
    ) -> None:
        self._sock = sock
        self._answer = answer
        self._closed = closed
        self._wary = wary
        self._loop = asyncio.get_running_loop()
        self._scratch = bytearray(request.LIMIT)
        self._inbox = bytearray()
        self._outbox = memoryview(b"")
        self._answered = False
        self._reads = 0
        self._timer = self._loop.call_later(seconds, self.close)
        self._loop.add_reader(sock.fileno(), self._readable)

    def _readable(self) -> None:
        self._reads += 1
        if self._reads > READS:
            self.close()
            return
        try:
            count = request.LIMIT
            if self._wary:
                count = rights.readable(self._sock, self._scratch)
            if count > 0:
                count = self._sock.recv_into(self._scratch, count)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if count <= 0:
            self.close()
        elif not self._answered:
            self._inbox += self._scratch[:count]
            self._take()

    def _take(self) -> None:
        end = self._inbox.find(request.END)
        if 0 <= end <= request.LIMIT:
            data = self._answer(bytes(self._inbox[: end + len(request.END)]))
        elif len(self._inbox) > request.LIMIT:
            data = request.refusal(request.TOO_LONG)
        else:
            return
        self._answered = True
        self._inbox.clear()
        self._outbox = memoryview(data)
        self._loop.add_writer(self._sock.fileno(), self._writable)
        self._writable()

    def _writable(self) -> None:
        try:
            self._outbox = self._outbox[self._sock.send(self._outbox) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if not self._outbox:
            self._loop.remove_writer(self._sock.fileno())
            # A close with something unread is a reset, and takes the answer away from the client.
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End it now."""
        if self._sock.fileno() < 0:
            return
        self._timer.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        if self._wary:
            rights.part(self._loop, self._sock, lambda: self._closed(self))
        else:
            self._sock.close()
            self._closed(self)


class Scrapes:
    """Serves the scrapers of one listening socket, in the running event loop."""

    def __init__(
        self, listener: socket.socket, metrics: Callable[[], bytes], *, seconds: float = SECONDS
    ) -> None:
        self._listener = listener
        self._metrics = metrics
        self._seconds = seconds
        # Only a unix socket carries descriptors.
        self._wary = listener.family == socket.AF_UNIX and rights.may_come(listener)
        self._loop = asyncio.get_running_loop()
        self._open: dict[Scrape, None] = {}  # in the order in which they came
        self._since, self._count = self._loop.time(), 0
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        now = self._loop.time()
        if now - self._since >= 1.0:
            self._since, self._count = now, 0
        self._count += 1
        # One that was evicted is there until its close is done, which its client may delay.
        if self._count > RATE or len(self._open) >= 2 * MOST:
            self._wait(max(self._since, now - 0.9) + 1.0)
            return
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            log.warning("no scrape can be let in for a second: %s", error)
            self._wait(now + 1.0)
            return
        sock.settimeout(0)
        if len(self._open) >= MOST:
            next(iter(self._open)).close()
        scrape = Scrape(
            sock,
            self._answer,
            lambda ended: self._open.pop(ended, None),
            seconds=self._seconds,
            wary=self._wary,
        )
        self._open[scrape] = None

    def _answer(self, asked: bytes) -> bytes:
        try:
            return request.answer(asked, self._metrics)
        except Exception:
            log.exception("a scrape failed by a fault of ours")
            return request.refusal(request.FAULT)

    def _wait(self, until: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_at(until, self._listen)

    def close(self) -> None:
        """Part from everybody."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for scrape in list(self._open):
            scrape.close()
