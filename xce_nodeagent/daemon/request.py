"""What is asked over HTTP of who serves metrics, and the answer: bytes in, bytes out. Pure.

As little of HTTP/1.1 (RFC 9112) as a scraper needs: one request for each connection, GET or HEAD
of /metrics, and the connection is closed after the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from xce_nodeagent.export.exposition import CONTENT_TYPE

LIMIT: Final = 8192
"""Bytes that a request may have, up to the empty line at its end."""

PATH: Final = b"/metrics"

END: Final = b"\r\n\r\n"

FAULT: Final = b"HTTP/1.1 500 Internal Server Error"
TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large"


def answer(request: bytes, metrics: Callable[[], bytes]) -> bytes:
    """Answer a request, which goes to its empty line; `metrics` gives the exposition."""
    words = request.partition(b"\r\n")[0].split(b" ")
    if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        return refusal(b"HTTP/1.1 400 Bad Request")
    method, target, _ = words
    if target.partition(b"?")[0] != PATH:
        return refusal(b"HTTP/1.1 404 Not Found", body=b"the metrics are at /metrics\n")
    if method not in (b"GET", b"HEAD"):
        return refusal(b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD")
    body = metrics()
    head = _head(b"HTTP/1.1 200 OK", CONTENT_TYPE.encode(), len(body))
    return head if method == b"HEAD" else head + body


def refusal(status: bytes, body: bytes = b"") -> bytes:
    """Say no."""
    return _head(status, b"text/plain; charset=utf-8", len(body)) + body


def _head(status: bytes, kind: bytes, length: int) -> bytes:
    lines = (status, b"Content-Type: " + kind, b"Content-Length: %d" % length, b"Connection: close")
    return b"\r\n".join(lines) + END
