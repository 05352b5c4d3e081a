"""A receiver of reports by HTTP, as docs/upstream.md says that one is: real, on loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.report import Head, digest, inventory_of
from xce_nodeagent.upstream.shape import Shape

PATIENCE = 20.0


class Kept:
    """What a receiver has of a node: the entries as JSON, and the digest that it was told."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.entries: dict[str, Any] = body["entries"]
        self.head, self.shape = body["head"], body["shape"]

    def apply(self, body: dict[str, Any]) -> None:
        gone = set(body["deletes"])
        kept = {name: value for name, value in self.entries.items() if name not in gone}
        self.entries = {**kept, **body["puts"]}
        self.head = body["head"]
        self.shape = body.get("shape", self.shape)

    def packed(self) -> dict[str, bytes]:
        """Give the entries as a store would have them, the head among them."""
        head = packing.unpack(json.dumps(self.head).encode(), Head)
        packed = {name: packing.pack(value) for name, value in self.entries.items()}
        return {"head": packing.pack(head), **packed}

    def inventory(self):
        """Put the inventory together; fail where the digest is another than what was told."""
        entries = self.packed()
        assert digest(entries) == self.head["report"]
        shape = packing.unpack(packing.pack(self.shape), Shape)
        return inventory_of(entries, shape)


class Receiver:
    """Keeps what it gets. `refuse` are answers that it gives instead, one after the other.

    While `gate` is closed nobody gets an answer; `held` is set when somebody waits for one.
    """

    def __init__(self, context: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.nodes: dict[str, Kept] = {}
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.refuse: list[tuple[int, dict[str, str], bytes]] = []
        self.gate, self.held = threading.Event(), threading.Event()
        self.gate.set()
        self._changed = threading.Condition()
        self._open: list[socket.socket] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._answerer())
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        scheme = "https" if context else "http"
        self.port = self._server.server_address[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}/reports"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def wait(self, done, seconds: float = PATIENCE) -> None:
        """Wait until something is so; fail with what came when it is not."""

        def is_so() -> bool:
            with contextlib.suppress(KeyError):  # of a node that has not come yet
                return bool(done())
            return False

        with self._changed:
            assert self._changed.wait_for(is_so, seconds), self.kinds()

    def kinds(self) -> list[str]:
        return [body["kind"] for body in self.bodies]

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._thread.join(PATIENCE)
        self._server.server_close()
        for one in self._open:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)

    def _take(self, headers: dict[str, str], data: bytes) -> tuple[int, dict[str, str], bytes]:
        self.held.set()
        assert self.gate.wait(PATIENCE)
        with self._changed:
            body = json.loads(data)
            self.headers.append(headers)
            self.bodies.append(body)
            self._changed.notify_all()
            if self.refuse:
                return self.refuse.pop(0)
            return (self._keep(headers, body), {}, b"")

    def _keep(self, headers: dict[str, str], body: dict[str, Any]) -> int:
        node = body["head"]["node"]
        if body["kind"] == "full":
            self.nodes[node] = Kept(body)
            return 200
        assert headers["If-Match"] == f'"{body["after"]}"'
        known = self.nodes.get(node)
        if known is None or known.head["report"] != body["after"]:
            return 412
        known.apply(body)
        return 204

    def _answerer(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Answerer(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                receiver._open.append(self.request)
                super().setup()

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                status, headers, body = receiver._take(dict(self.headers), data)
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    if status != 204:
                        self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    super().handle()

            def log_message(self, *_: object) -> None:
                pass

        return Answerer


@contextlib.contextmanager
def receiver(context: ssl.SSLContext | None = None, port: int = 0) -> Iterator[Receiver]:
    one = Receiver(context, port)
    try:
        yield one
    finally:
        one.close()
