"""Servers that put what they were asked into their answer: nobody is told a secret by them.

What a sink failed by stands in the log, and any user of the node may ask for it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import re
from random import Random

import pytest
from places import answer, place, request
from sinks import Clock
from states import chance, scanned

from xce_nodeagent.cli.fleet import access
from xce_nodeagent.cli.fleet.settings import settings as settings_of
from xce_nodeagent.errors import Upstream
from xce_nodeagent.model.upstream import UpstreamEtcdConfig, UpstreamHttpConfig
from xce_nodeagent.upstream import etcdstore
from xce_nodeagent.upstream.delivery import Delivery
from xce_nodeagent.upstream.etcderror import EtcdError
from xce_nodeagent.upstream.etcdwatch import follow
from xce_nodeagent.upstream.newest import Newest
from xce_nodeagent.upstream.post import HttpSink
from xce_nodeagent.upstream.report import Series

TOKEN = 'S3CRET-of"<us>&/x'  # noqa: S105  # a test's own
ESCAPES = "\n2026-11-30 INFO: forged \x1b[2J\u202e"
STATUS = b'{"header":{"cluster_id":"1"},"leader":"1"}'


def secret_file(folder, text=TOKEN):
    path = folder / "secret"
    path.write_text(f"{text}\n")
    path.chmod(0o600)
    return str(path)


def failure(sink, caplog) -> str:
    """Have a report not get there; give all that people could read of it."""
    newest = Newest(Series(agent="agent-1"))
    delivery = Delivery(sink, newest, chance(1), clock=Clock())
    newest.tell(scanned(), ())
    with caplog.at_level(logging.DEBUG):
        delivery.step()
    told = delivery.status
    sink.close()
    assert told.failing
    assert told.reason.isprintable()
    assert len(told.reason) < 600
    return "\n".join((told.reason, told.remedy, told.note, *caplog.messages))


def safe(told: str) -> None:
    assert not re.search("S3CRET|of.{0,9}us|UzNDUkVU", told), told
    assert "***" in told


ECHOES = {
    "plain": lambda head, _body: head + ESCAPES.encode(),
    "long": lambda head, _body: head + re.search(rb"Bearer \S+", head)[0] * 1000,
    "within": lambda head, _body: b"x" * 190 + re.search(rb"Bearer \S+", head)[0],
    "coded": lambda head, _body: base64.b64encode(re.search(rb"Authoriz.*", head)[0]),
    "json": lambda head, _body: json.dumps({"headers": head.decode()}).encode(),
}


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_a_receiver_says_our_token_back(tmp_path, caplog, echo):
    def serve(one, _number):
        while told := request(one):
            head, _, body = told.partition(b"\r\n\r\n")
            first, *rest = head.split(b"\r\n")
            # The token first, before what is told is cut.
            rest.sort(key=lambda line: not line.lower().startswith(b"authorization"))
            head = b"\r\n".join((*rest, first))
            one.sendall(answer(echo(head, body), status="401 No"))

    with place(serve) as where:
        config = UpstreamHttpConfig(url=f"{where.url}/x", token_file=secret_file(tmp_path))
        told = failure(HttpSink(config, Random(1)), caplog)  # noqa: S311  # no secret
    safe(told)
    assert "401" in told


def test_a_receiver_says_our_query_back_and_the_token_instead_of_http(tmp_path, caplog):
    def serve(one, number):
        first = request(one).split(b"\r\n")[0]
        if number == 0:
            one.sendall(answer(first, "Location: " + first.decode(), status="404 No"))
        else:
            one.sendall(b"x" * 150 + TOKEN.encode() + b"\r\n\r\n")

    with place(serve) as where:
        config = UpstreamHttpConfig(
            url=f"{where.url}/x?key=S3CRET-of-us", token_file=secret_file(tmp_path)
        )
        for _ in range(2):
            safe(failure(HttpSink(config, Random(1)), caplog))  # noqa: S311  # no secret


class Etcd:
    """Says back what it was asked, by `say`, where it was asked for `path`."""

    def __init__(self, path: bytes, say) -> None:
        self.path, self.say = path, say

    def serve(self, one, _number):
        while told := request(one):
            body = told.partition(b"\r\n\r\n")[2]
            path = told.split(b" ")[1].removeprefix(b"/v3/")
            if path == self.path and (path == b"auth/authenticate" or b"S3CRET" in told):
                one.sendall(answer(self.say(told, body), status="400 No"))
            elif path == b"maintenance/status":
                one.sendall(answer(STATUS))
            elif path == b"auth/authenticate":
                one.sendall(answer(b'{"header":{"cluster_id":"1"},"token":"S3CRET.of.us"}'))
            else:
                refused = b'{"error":"etcdserver: user name is empty","code":3}'
                one.sendall(answer(refused, status="400 No"))


def error(told: bytes, body: bytes, **more) -> bytes:
    said = f"{body.decode()}{ESCAPES} {told.decode()}"
    return json.dumps({"error": said, "message": said, "code": 3, **more}).encode()


SAYS = {
    "error": error,
    "unauthenticated": lambda told, body: error(told, body, code=16),
    "stream": lambda told, _: json.dumps({"error": {"message": told.decode()}}).encode(),
    "garbage": lambda told, body: body + ESCAPES.encode() + told,
}


def etcd_config(url: str, folder) -> UpstreamEtcdConfig:
    return UpstreamEtcdConfig(endpoints=(url,), user="u", password_file=secret_file(folder))


@pytest.mark.parametrize("say", SAYS.values(), ids=SAYS)
@pytest.mark.parametrize("path", [b"auth/authenticate", b"kv/range"])
def test_etcd_says_our_password_and_its_token_back(tmp_path, caplog, path, say):
    with place(Etcd(path, say).serve) as where:
        config = etcd_config(where.url, tmp_path)
        told = failure(etcdstore.sink(config, Random(1)), caplog)  # noqa: S311  # no secret
    if path == b"kv/range":
        safe(told)
    else:  # of what is said of a password, nothing is told
        assert not re.search("S3CRET|name|of.{0,9}us", told.partition("; ")[0].split("\n")[0])
        assert "S3CRET" not in told


def test_a_token_that_is_no_header_is_none(tmp_path, caplog):
    told = json.dumps({"token": "S3CRET\r\nX-Evil: 1", "header": {"cluster_id": "1"}})

    def serve(one, _number):
        while asked := request(one):
            assert b"X-Evil" not in asked
            if b"auth/authenticate" in asked:
                one.sendall(answer(told.encode()))
            elif b"maintenance/status" in asked:
                one.sendall(answer(STATUS))
            else:
                one.sendall(answer(b'{"error":"user name is empty"}', status="400 No"))

    with place(serve) as where:
        config = etcd_config(where.url, tmp_path)
        told = failure(etcdstore.sink(config, Random(1)), caplog)  # noqa: S311  # no secret
    assert "the token that it gave is no line of ASCII" in told
    assert "S3CRET" not in told


@pytest.mark.parametrize("say", SAYS.values(), ids=SAYS)
def test_a_watch_says_the_token_back(tmp_path, say):
    with place(Etcd(b"watch", say).serve) as where:
        client = etcdstore.client(etcd_config(where.url, tmp_path), Random(1))  # noqa: S311  # no secret
        with contextlib.closing(client), pytest.raises(EtcdError) as raised:
            next(follow(client, b"/t/", 5))
    safe(raised.value.reason)
    assert raised.value.reason.isprintable()


@pytest.mark.parametrize("path", [b"auth/authenticate", b"kv/range"])
def test_who_reads_a_fleet_is_not_told_either(tmp_path, path):
    file = tmp_path / "config.toml"
    with place(Etcd(path, error).serve) as where:
        file.write_text(
            f'[upstream.etcd]\nendpoints = ["{where.url}"]\nuser = "u"\n'
            f'password_file = "{secret_file(tmp_path)}"\n'
        )
        settings = settings_of({}, str(file), ())
        with pytest.raises(Upstream) as raised, access.asking(settings, 5) as one:
            one.range(b"/xce/")
    assert "S3CRET" not in str(raised.value)
    assert raised.value.message.isprintable()
