"""Requests over HTTP, as bytes."""

from __future__ import annotations

import email
from email.message import Message

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.daemon import request


def _answered(asked: bytes) -> tuple[int, Message, bytes]:
    head, _, body = request.answer(asked, lambda: b"xce 1\n").partition(b"\r\n\r\n")
    status, _, lines = head.decode().partition("\r\n")
    version, code, words = status.split(" ", 2)
    assert version == "HTTP/1.1"
    assert words
    fields = email.message_from_string(lines)
    assert fields["Connection"] == "close"
    return int(code), fields, body


@pytest.mark.parametrize(
    "line",
    [b"GET /metrics HTTP/1.1", b"GET /metrics HTTP/1.0", b"GET /metrics?name[]=up HTTP/1.1"],
)
def test_metrics(line) -> None:
    code, fields, body = _answered(line + b"\r\nHost: x\r\n\r\n")
    assert (code, body) == (200, b"xce 1\n")
    assert fields["Content-Length"] == "6"
    assert fields["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_a_head_has_the_length_and_no_body() -> None:
    code, fields, body = _answered(b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert (code, fields["Content-Length"], body) == (200, "6", b"")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"GET / HTTP/1.1", 404),
        (b"GET /metricsx HTTP/1.1", 404),
        (b"GET http://host/metrics HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 405),
        (b"get /metrics HTTP/1.1", 405),
        (b"GET /metrics HTTP/2.0", 400),
        (b"GET  /metrics HTTP/1.1", 400),
        (b"GET /metrics", 400),
        (b"\x16\x03\x01\x02", 400),
        (b"", 400),
    ],
)
def test_all_else_is_refused(line, code) -> None:
    found, fields, body = _answered(line + b"\r\n\r\n")
    assert found == code
    assert int(fields["Content-Length"]) == len(body)
    assert fields["Allow"] == ("GET, HEAD" if code == 405 else None)


@given(st.binary())
def test_whatever_comes_has_an_answer_and_is_not_repeated(asked) -> None:
    code, _, body = _answered(b"NONSENSE " + asked + b"\r\n\r\n")
    assert code in (400, 404, 405)
    assert body in (b"", b"the metrics are at /metrics\n")
