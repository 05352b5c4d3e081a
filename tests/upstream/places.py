"""Places on loopback that answer as a test says: real sockets, a thread each."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator


class Place:
    """A listener; `serve` gets each connection, and the number that it has."""

    def __init__(self, serve: Callable[[socket.socket, int], None], context=None) -> None:
        self._serve = serve
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if context else 'http'}://127.0.0.1:{self.port}"
        self.count = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                self._open.append(one)
                thread = threading.Thread(target=self._one, args=(one, self.count))
                self.count += 1
                self._threads.append(thread)
                thread.start()

    def _one(self, inner: socket.socket, number: int) -> None:
        one = inner
        with contextlib.suppress(OSError):
            if self._context is not None:
                one = self._context.wrap_socket(inner, server_side=True)
                self._open.append(one)
            self._serve(one, number)
        one.close()

    def close(self) -> None:
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(10)


@contextlib.contextmanager
def place(
    serve: Callable[[socket.socket, int], None], context: ssl.SSLContext | None = None
) -> Iterator[Place]:
    one = Place(serve, context)
    try:
        yield one
    finally:
        one.close()


def request(one: socket.socket) -> bytes:
    """Read a request, head and body; empty where the connection ended."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = one.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        body += one.recv(65536)
    return head + b"\r\n\r\n" + body


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    told = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join(told).encode() + b"\r\n\r\n" + body
