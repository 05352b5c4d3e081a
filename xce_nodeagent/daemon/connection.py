"""One client's connection: bytes in, whole messages out, answers back, in order and within limits.

Sockets and the event loop are used directly. asyncio's transports read into a fresh buffer of
256 KiB for each call and accept through a task: 12 and 40 µs more on the job's path, measured.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from xce_nodeagent.daemon import rights
from xce_nodeagent.daemon.message import failure
from xce_nodeagent.errors import AgentError, BadRequest
from xce_nodeagent.model.wire import MESSAGE_LIMIT

CHUNK: Final = 64 * 1024
"""Bytes of one read, and of `scratch`: more than a usual call."""


class Peer(Struct, frozen=True):
    """Who is at the other end, as the kernel knew it when they connected (unix(7), SO_PEERCRED).

    The pid may belong to somebody else by now; uid and gid are what they were.
    """

    pid: int
    uid: int
    gid: int

    @classmethod
    def of(cls, sock: socket.socket) -> Peer:
        """Ask the kernel."""
        size = struct.calcsize("3i")
        # The kernel's uid_t and gid_t are unsigned; pid_t is not.
        return cls(
            *struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        )


class Connection:
    """A connection. `received` is given each message, one at a time, once the last was answered.

    Whoever takes a message ends it with exactly one `answer` (None where none is wanted), or
    with `start_stream`. `closed` is told once, when the connection is gone. A timer runs only
    while the client owes something: the rest of a message, or the reading of its answers. `since`
    is for whoever takes messages: when it took the one that is to be answered.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        peer: Peer,
        *,
        stall_seconds: float,
        received: Callable[[Connection, bytes], None],
        closed: Callable[[Connection], None],
        scratch: bytearray,
        wary: bool,
    ) -> None:
        self.peer = peer
        self.since = 0.0
        self._loop = loop
        self._sock = sock
        self._stall_seconds = stall_seconds
        self._received = received
        self._closed = closed
        self._scratch = scratch
        self._wary = wary  # descriptors may come along: see rights.py
        self._view = memoryview(scratch)
        self._inbox = bytearray()
        self._outbox = bytearray()
        self._newest: bytes | None = None  # of a stream whose client is slow: the others are stale
        self._busy = False
        self._streams = False
        self._reading = False
        self._ended = False  # the client has sent all that it will send
        self._timer: asyncio.TimerHandle | None = None
        self._read_more()

    @property
    def open(self) -> bool:
        """Whether an answer can still be sent."""
        return self._sock.fileno() >= 0

    # ---- in -----------------------------------------------------------------------------------

    def _read_more(self) -> None:
        if not self._reading and not self._ended:
            self._loop.add_reader(self._sock.fileno(), self._readable)
            self._reading = True

    def _read_no_more(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._sock.fileno())
            self._reading = False

    def _readable(self) -> None:
        try:
            count = self._read_wary() if self._wary else self._sock.recv_into(self._scratch)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if count < 0:
            self.refuse(BadRequest("a descriptor came along: send none"))
            return
        if not count:
            self._ended = True
            self._read_no_more()
        elif not self._inbox and not self._busy and not self._outbox:
            # The usual case, without a copy: one whole call.
            end = self._scratch.find(0, 0, count)
            if end == count - 1:
                self._busy = True
                self._received(self, bytes(self._view[:end]))
                return
            self._inbox += self._view[:count]
        else:
            self._inbox += self._view[:count]
            if len(self._inbox) > MESSAGE_LIMIT and (self._busy or self._outbox):
                self._read_no_more()  # it may go on when its calls are answered
        self._next()

    def _read_wary(self) -> int:
        count = rights.readable(self._sock, self._scratch)
        return self._sock.recv_into(self._scratch, count) if count > 0 else count

    def _next(self) -> None:
        """Take the next message, if there is a whole one and its turn has come."""
        if not self.open:
            return
        if not self._busy and not self._outbox:
            end = self._inbox.find(0, 0, MESSAGE_LIMIT + 1)
            if end >= 0:
                message = bytes(memoryview(self._inbox)[:end])
                del self._inbox[: end + 1]
                self._busy = True
                self._watch()
                self._received(self, message)
                return
            if len(self._inbox) > MESSAGE_LIMIT:
                self.refuse(BadRequest(
                    f"message longer than {MESSAGE_LIMIT} bytes: expected one JSON object that"
                    " ends with a NUL; send less at once",
                    limit=MESSAGE_LIMIT,
                ))  # fmt: skip
                return
            if self._ended:
                self.close()  # all is answered; half a message is nobody's
                return
            self._read_more()
        elif self._ended and self._streams:
            self.close()  # nobody reads a stream any more
            return
        self._watch()

    # ---- out ----------------------------------------------------------------------------------

    def answer(self, data: bytes | None) -> None:
        """Send the answer to the message that was taken, and go on with the next one.

        The next one waits for its turn in the event loop, so a client that sends a thousand
        calls at once does not keep the others waiting. A client that does not read its answers
        gets no further ones made, so what is kept for it is at most one answer.
        """
        self._busy = False
        if not self.open:
            return
        if data:
            self._send(data)
        if self._inbox or not self._reading:
            self._loop.call_soon(self._next)
        elif self._outbox:
            self._watch()

    def start_stream(self, data: bytes) -> None:
        """Send the first of many answers. The connection answers nothing else from then on."""
        self._streams = True
        self.push(data)
        if self._ended:
            self._loop.call_soon(self._next)

    def push(self, data: bytes) -> None:
        """Send a further answer of a stream; a slow client gets the newest only."""
        if self._outbox:
            self._newest = data
        elif self.open:
            self._send(data)
            self._watch()

    def _send(self, data: bytes) -> None:
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close()
            return
        if sent < len(data):
            self._outbox += memoryview(data)[sent:]
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._outbox)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        del self._outbox[:sent]
        if self._outbox:
            return
        self._loop.remove_writer(self._sock.fileno())
        if self._newest is not None:
            newest, self._newest = self._newest, None
            self._send(newest)
        self._next()

    # ---- the end ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Give the client a deadline while it owes something, and no timer otherwise.

        The deadline of half a message counts from its beginning: a byte now and then buys
        no time.
        """
        owes = bool(self._outbox) or (bool(self._inbox) and not self._busy)
        if owes and self._timer is None:
            self._timer = self._loop.call_later(self._stall_seconds, self._stalled)
        elif not owes and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stalled(self) -> None:
        self._timer = None
        if self._outbox:
            self.close()
            return
        self.refuse(BadRequest(
            f"half a message, and no more for {self._stall_seconds:g} s: expected a JSON object"
            " that ends with a NUL"
        ))  # fmt: skip

    def refuse(self, error: AgentError) -> None:
        """Say why, as far as the socket takes it at once, and cut the client off.

        A unix socket hands out what was sent before the end even where the client's own bytes
        were never read (net/unix/af_unix.c: the queue first, then the error).
        """
        if self.open and not self._outbox:
            self._send(failure(error))
        self.close()

    def close(self) -> None:
        """End the connection now; harmless when it has ended."""
        if not self.open:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._read_no_more()
        self._loop.remove_writer(self._sock.fileno())
        if self._wary:
            rights.part(self._loop, self._sock, lambda: self._closed(self))
        else:
            self._sock.close()
            self._closed(self)
