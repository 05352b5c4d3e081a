"""Reports by HTTP to real receivers: what they keep, what they refuse, and how they misbehave."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from certificates import Authority, server
from msgspec import structs
from places import answer, place, request
from receivers import receiver
from states import after, binding, chance, scanned

from xce_nodeagent.model.upstream import UpstreamHttpConfig
from xce_nodeagent.upstream.post import HttpSink
from xce_nodeagent.upstream.report import Series, numbered
from xce_nodeagent.upstream.sink import Undelivered


class Reports:
    """One report after the other."""

    def __init__(self):
        self._series = Series(agent="a")
        self._number = 0

    def next(self, inventory=None, *bindings):
        self._number += 1
        made = self._series.next(inventory or scanned(), bindings)
        return numbered(made, self._number, 5.0)


@pytest.fixture
def reports():
    return Reports()


@pytest.fixture
def there():
    with receiver() as one:
        yield one


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def sink(url, clock=time.monotonic, seconds=10.0, **keys):
    config = UpstreamHttpConfig(url=url, **keys)
    return HttpSink(config, chance(1), program="1.0", seconds=seconds, clock=clock)


def refused(one, report):
    with pytest.raises(Undelivered) as caught:
        one.deliver(report)
    return caught.value


def test_a_whole_report_first_then_what_changed_and_the_receiver_has_it_all(there, reports):
    one = sink(there.url)
    card = scanned().instances[0].id
    sick = after(scanned(), 0, healthy=False, reason="XID 79")
    one.deliver(reports.next())
    one.deliver(reports.next(None, binding("1", card)))
    one.deliver(reports.next(sick, binding("1", card)))
    one.deliver(reports.next(sick))
    assert there.kinds() == ["full", "delta", "delta", "delta"]
    assert [sorted(body["puts"]) for body in there.bodies[1:]] == [
        ["binding/1/"], [f"state/{card}"], [],
    ]  # fmt: skip
    assert there.bodies[3]["deletes"] == ["binding/1/"]
    assert there.headers[0]["User-Agent"] == "xce-nodeagent/1.0"
    assert "If-Match" not in there.headers[0]
    found = there.nodes["n1"].inventory()
    assert structs.replace(found, source="agent") == sick
    one.close()


def test_a_delta_has_the_head_and_one_state_and_says_how_many_bytes_it_took(there, reports):
    one = sink(there.url)
    whole = one.deliver(reports.next())
    size = one.deliver(reports.next(after(scanned(), 0, healthy=False, reason="XID 79")))
    assert there.bodies[-1].keys() == {"kind", "after", "head", "puts", "deletes"}
    assert len(there.bodies[-1]["puts"]) == 1
    assert size < whole / 10
    one.close()


def test_the_shape_comes_along_when_it_is_another(there, reports):
    one = sink(there.url)
    one.deliver(reports.next())
    fewer = structs.replace(scanned(), instances=scanned().instances[1:])
    one.deliver(reports.next(fewer))
    assert there.kinds() == ["full", "delta"]
    assert there.bodies[1]["shape"]["rows"]
    assert structs.replace(there.nodes["n1"].inventory(), source="agent") == fewer
    one.close()


@pytest.mark.parametrize("status", [409, 412])
def test_a_receiver_that_missed_one_gets_the_whole_at_once(there, reports, status):
    one = sink(there.url)
    one.deliver(reports.next())
    there.refuse = [(status, {}, b"which one?")]
    report = reports.next(None, binding("1"))
    one.deliver(report)
    assert there.kinds() == ["full", "delta", "full"]
    assert there.nodes["n1"].head["report"] == report.head.report
    there.nodes.clear()  # it begins anew
    one.deliver(reports.next())
    assert there.kinds()[3:] == ["delta", "full"]
    one.close()


def test_a_receiver_that_refuses_the_whole_too_is_not_asked_again_at_once(there, reports):
    there.refuse = [(412, {}, b"never")]
    one = sink(there.url)
    failure = refused(one, reports.next())
    assert "412, never" in failure.reason
    assert there.kinds() == ["full"]
    one.close()


def test_now_and_then_the_whole_though_nothing_is_amiss(there, reports):
    clock = Clock()
    one = sink(there.url, clock, full_seconds=100)
    one.deliver(reports.next())
    due = one.tend()
    assert 50 <= due <= 100
    clock.now += due / 2
    assert one.tend() == due / 2
    clock.now += due / 2
    assert 50 <= one.tend() <= 100
    one.deliver(reports.next(None, binding("1")))
    assert there.kinds() == ["full", "full", "delta"]
    clock.now += 100
    one.deliver(reports.next())
    assert there.kinds()[3:] == ["full"]
    one.close()


def test_never_again_the_whole_where_that_is_configured(there, reports):
    one = sink(there.url, full_seconds=0)
    assert one.tend() == math.inf
    one.deliver(reports.next())
    assert one.tend() == math.inf
    one.close()


@pytest.mark.parametrize(
    ("status", "headers", "judged", "told", "remedy"),
    [
        (401, {}, (True, 0), "401", "token_file"),
        (403, {}, (True, 0), "403", "token_file"),
        (404, {}, (True, 0), "404", "see whether `url`"),
        (413, {}, (True, 0), "413", "bodies of this size: "),
        (302, {"Location": "https://else\x1bwhere/"}, (True, 0),
         "302, a redirect to https://else?where/, which is not followed", "set `url`"),
        (429, {"Retry-After": "7"}, (False, 7), "429", ""),
        (503, {"Retry-After": "soon"}, (False, 0), "503", ""),
        (503, {"Retry-After": "9" * 500}, (False, 999_999_999), "503", ""),
        (503, {"Retry-After": "Mon, 01 Jan 2001 00:00:00 GMT"}, (False, 0), "503", ""),
        (500, {}, (False, 0), "500", ""),
    ],
)  # fmt: skip
def test_a_refusal_says_what_helps(there, *, status, headers, judged, told, remedy):
    reports = Reports()
    there.refuse = [(status, headers, b"no\x1b[2J" + b"x" * 5000)]
    one = sink(there.url + "?key=secret")
    failure = refused(one, reports.next())
    assert (failure.hopeless, failure.after) == judged
    assert told in failure.reason
    assert remedy in failure.remedy
    assert failure.reason.isprintable()
    assert len(failure.reason) < 400
    assert "secret" not in failure.reason + one.where
    one.deliver(reports.next())
    assert there.kinds() == ["full", "full"]
    one.close()


def test_a_token_is_read_when_it_is_used_and_only_where_nobody_else_can(there, reports, tmp_path):
    token = tmp_path / "token"
    one = sink(there.url, token_file=str(token))
    failure = refused(one, reports.next())
    assert failure.hopeless
    assert f"{token}: No such file" in failure.reason
    for text in ("first", "second"):
        token.write_text(f"{text}\n", "ascii")
        token.chmod(0o640)
        one.deliver(reports.next(None, binding(text)))
        assert there.headers[-1]["Authorization"] == f"Bearer {text}"
    token.chmod(0o644)
    failure = refused(one, reports.next())
    assert "mode 0644" in failure.reason
    assert "chmod" in failure.remedy
    for wrong in (b"", b"a\r\nX-Evil: 1", b"\xff\xfe", b"x" * 20_000):
        token.write_bytes(wrong)
        token.chmod(0o600)
        failure = refused(one, reports.next())
        assert "one line of ASCII" in failure.reason
        assert "Evil" not in failure.reason
    assert len(there.bodies) == 2, "nothing is sent without its secret"
    one.close()


def test_nobody_is_there_and_what_was_known_there_still_is(reports):
    with receiver() as there:
        one = sink(there.url)
        one.deliver(reports.next())
        known = there.nodes
    failure = refused(one, reports.next(None, binding("1")))
    assert "refused" in failure.reason
    assert not failure.hopeless
    assert one._there.head.report == known["n1"].head["report"], "what came back is a delta"
    one.close()


def dropping(one):
    one.close()


def garbage(one):
    one.sendall(b"\x00\xff" * 100 + b"\r\n\r\n")


def endless(one):
    one.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        one.sendall(b"x" * 65536)


def trickling(one):
    one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        one.sendall(b"x")
        time.sleep(0.01)


@pytest.mark.parametrize("misbehave", [dropping, garbage, endless, trickling])
def test_a_place_that_misbehaves_fails_and_the_next_report_is_whole(misbehave, reports):
    kinds = []

    def serve(one, _number):
        while told := request(one):
            kinds.append(json.loads(told.partition(b"\r\n\r\n")[2])["kind"])
            if kinds[-1] == "delta":
                misbehave(one)
                return
            one.sendall(answer(b""))

    with place(serve) as where:
        one = sink(where.url, seconds=20)
        one.deliver(reports.next())
        one._connection._seconds = 0.3 if misbehave is trickling else 20
        failure = refused(one, reports.next(None, binding("1")))
        assert not failure.hopeless
        one._connection._seconds = 20
        one.deliver(reports.next())
        # A connection that was kept may have ended by itself: what is cut off is asked once more.
        asked = 2 if misbehave is dropping else 1
        assert kinds == ["full", *["delta"] * asked, "full"]
        one.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.mark.needs("openssl")
def test_both_sides_have_certificates_and_the_client_s_is_read_anew(authority, reports, tmp_path):
    server_s = authority.sign("server")
    good, ended = authority.sign("client"), authority.sign("ended", days=-1)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(pair):
        for path, source in ((cert, pair.cert), (key, pair.key)):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(Path(source).read_bytes())
            fresh.replace(path)

    with receiver(server(server_s, clients=authority.ca)) as there:
        put(ended)
        one = sink(there.url, ca=authority.ca, cert=str(cert), key=str(key))
        failure = refused(one, reports.next())
        assert failure.hopeless
        assert str(cert) in failure.reason
        assert "renew" in failure.remedy
        put(good)
        assert one.note == ""
        one.deliver(reports.next())
        assert there.kinds() == ["full"]
        assert one.note == ""
        put(authority.sign("short", days=7))
        one.close()
        one.deliver(reports.next())
        assert one.note.startswith(f"{cert} ends in 6 days, ")
        one.close()


@pytest.mark.needs("openssl")
@pytest.mark.parametrize("what", ["expired", "foreign", "another name"])
def test_a_receiver_whose_certificate_is_wrong_gets_nothing(authority, reports, tmp_path, what):
    if what == "expired":
        pair = authority.sign("expired", days=-1)
    elif what == "foreign":
        pair = Authority(tmp_path, "other").sign("foreign")
    else:
        pair = authority.sign("elsewhere", names="DNS:elsewhere")
    with receiver(server(pair)) as there:
        one = sink(there.url, ca=authority.ca)
        failure = refused(one, reports.next())
        assert failure.hopeless
        assert "certificate" in failure.reason
        assert there.bodies == []
        one.close()


def test_plain_http_to_another_host_is_noted():
    assert sink("http://127.0.0.1:1/").note == ""
    assert "in plain" in sink("http://master:80/").note
    assert "in plain" in sink("http://127.0.0.1.example.org/").note
    assert sink("http://[::1]:80/").note == ""
    assert sink("https://master/").note == ""
