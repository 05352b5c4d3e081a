"""Secrets: the files that they are read from, and what is told of what the other side says back."""

from __future__ import annotations

import base64
import html
import json
import os
from urllib.parse import quote, urlencode

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from xce_nodeagent.upstream import secret
from xce_nodeagent.upstream.secret import Secrets
from xce_nodeagent.upstream.sink import Undelivered

LINES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=10, max_size=60)


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    zero = tmp_path / "zero"
    zero.symlink_to("/dev/zero")
    for path in (fifo, zero, tmp_path):
        with pytest.raises(Undelivered) as told:
            secret.read(path)
        assert told.value.reason == f"{path}: not a regular file"
        assert told.value.hopeless


def test_a_link_to_a_file_is_followed(tmp_path):
    """As Kubernetes mounts secrets: a link to a file below a link to a folder."""
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "token").write_text("of-the-pod\n")
    (tmp_path / "..2026" / "token").chmod(0o640)
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "token").symlink_to("..data/token")
    assert secret.read(tmp_path / "token") == "of-the-pod"


@given(LINES, st.text(max_size=7), st.text(max_size=20))
def test_whatever_way_it_comes_back_it_is_not_told(word, before, after):
    secrets = Secrets()
    assert secrets.keep(word) == word
    ways = [
        word,
        quote(word, safe=""),
        quote(word, safe="").lower(),
        urlencode({"token": word}),
        json.dumps({"password": word}),
        html.escape(word),
    ]
    for way in ways:
        told = secrets.said(f"{before}{way}{after}", 1000)
        assert told.isprintable()
        assume("***" not in before + after)
        assert "***" in told
        assert word not in told
    whole = f"{before}{word}{after}".encode()
    for code in (base64.b64encode, base64.urlsafe_b64encode):
        assert "***" in secrets.said(code(whole).decode(), 1000)


def test_go_escapes_what_html_would_read(tmp_path):
    secrets = Secrets()
    secrets.keep("a<b>&c")
    assert secrets.said(r'{"password":"a\u003cb\u003e\u0026c"}') == '{"password":"***"}'


def test_the_one_before_is_not_told_either_and_no_more_are_kept_than_are_of_use():
    secrets = Secrets()
    for number in range(100):
        secrets.keep(f"token-{number}.")
    assert secrets.said("not token-98. nor token-99.") == "not *** nor ***"
    assert secrets.said("token-1.") == "token-1."


def test_it_is_one_short_line_and_does_not_end_within_a_secret():
    secrets = Secrets()
    secrets.keep("S3CRET")
    assert secrets.said("one\n 2026 \x1b[2J\x9b31m\u202e two") == "one 2026 ?[2J?31m? two"
    assert secrets.said("x" * 8 + "S3CRET", 10) == "x" * 8 + "**…"
    assert secrets.said("", 10) == ""
