"""A store whose answers are made to fill who reads them: an end, and a bound."""

from __future__ import annotations

import base64
import itertools
import json
import tracemalloc
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import sinks
from places import answer, place
from places import request as asked_of
from sinks import made

from xce_nodeagent.upstream import etcdwire, pages
from xce_nodeagent.upstream.etcd import LARGEST_ANSWER, Client
from xce_nodeagent.upstream.etcderror import Garbage, TooLarge
from xce_nodeagent.upstream.etcdwire import Found, Kv, Range, Txn, WatchLine, get
from xce_nodeagent.upstream.pages import FIRST, Pages

HEADER = {"cluster_id": "1", "member_id": "2", "revision": "10"}
WELL = json.dumps({"header": HEADER, "leader": "1"}).encode()
HOLLOW = b'{"header":{"cluster_id":"1"},"%s":[%s]}'
ASKED = Range(b"/t/", b"/t0")


@pytest.fixture
def lying() -> Iterator[tuple[Client, dict[str, Callable[[dict[str, Any]], bytes]]]]:
    """A client, and what is said to it, by the path."""
    says: dict[str, Callable[[dict[str, Any]], bytes]] = {}

    def serve(one, _number):
        while told := asked_of(one):
            head, _, body = told.partition(b"\r\n\r\n")
            path = head.split()[1].decode().removeprefix("/v3/")
            said = says[path](json.loads(body)) if path in says else WELL
            one.sendall(answer(said))

    with place(serve) as where:
        client = Client([where.url], Random(1), seconds=20)  # noqa: S311  # no secret
        yield client, says
        client.close()


@pytest.fixture
def there(etcd, request: pytest.FixtureRequest) -> Iterator[sinks.Place]:
    with sinks.place(etcd, sinks.prefix(request)) as one:
        yield one


def _page(asked: dict[str, Any], count: int) -> bytes:
    """Give a page as it was asked for, of ever higher keys, as if there were so many in all."""
    last = base64.b64decode(asked["key"]).removeprefix(b"/t/").rstrip(b"\0")
    first = int(last or b"0") + 1
    kvs = [
        {"key": base64.b64encode(b"/t/%09d" % at).decode(), "mod_revision": "5"}
        for at in range(first, first + asked["limit"])
    ]
    return json.dumps({"header": HEADER, "kvs": kvs, "more": True, "count": str(count)}).encode()


@pytest.mark.parametrize("count", [0, FIRST, 3000])
def test_pages_end_where_the_store_said_that_they_do(lying, count: int) -> None:
    client, says = lying
    says["kv/range"] = lambda asked: _page(asked, count)
    read = []
    with pytest.raises(Garbage, match=f"more keys than the {count} that there are"):
        read.extend(client.range(b"/t/")[1])
    assert len(read) <= count


def test_pages_end_whatever_the_store_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_BYTES", 10 << 20)
    numbers = itertools.count(1)

    def page(asked: Range) -> Found:
        kvs = (Kv(b"/t/%09d" % next(numbers), b"x" * 1000) for _ in range(asked.limit))
        return Found(kvs=tuple(kvs), more=True, count=1 << 60)

    read: list[Kv] = []
    with pytest.raises(Garbage, match="bytes of keys"):
        read.extend(Pages(page, ASKED, lambda: "here"))
    assert 0 < sum(len(one.value) for one in read) <= 10 << 20


def test_a_page_of_more_keys_than_were_asked_for_is_none() -> None:
    kvs = tuple(Kv(b"/t/%09d" % at) for at in range(FIRST + 1))
    with pytest.raises(Garbage, match="more keys than were asked for"):
        Pages(lambda _: Found(kvs=kvs, count=len(kvs)), ASKED, lambda: "here")


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Txn, HOLLOW % (b"responses", b",".join([b"{}"] * 300_000))),
        (Found, HOLLOW % (b"kvs", b",".join([b"{}"] * 300_000))),
        (WatchLine, b'{"result":%s}' % HOLLOW % (b"events", b",".join([b"{}"] * 300_000))),
        (WatchLine, b'{"error":[%s]}' % b",".join([b"[]"] * 300_000)),
    ],
    ids=["txn", "range", "watch", "error"],
)
def test_an_answer_of_nothing_but_objects_is_not_taken_apart(kind: type, data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(etcdwire.UNREADABLE):
            etcdwire.read(data, kind)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(data)


def test_the_densest_honest_answers_are_read() -> None:
    put = '{"response_put":{"header":{"revision":"5"}}}'
    told = f'{{"header":{{}},"succeeded":true,"responses":[{",".join([put] * 128)}]}}'
    assert len(etcdwire.read(told.encode(), Txn).responses) == 128
    one = '{"key":"YQ==","create_revision":"1","mod_revision":"1","version":"1"}'
    found = etcdwire.read(f'{{"kvs":[{",".join([one] * 10_000)}]}}'.encode(), Found)
    assert len(found.kvs) == 10_000
    gone = '{"type":"DELETE","kv":{"key":"YQ==","mod_revision":"1"}}'
    line = etcdwire.read(
        f'{{"result":{{"events":[{",".join([gone] * 10_000)}]}}}}'.encode(), WatchLine
    )
    assert line.result is not None
    assert len(line.result.events) == 10_000


def test_answers_that_are_short_by_nature_are_taken_no_longer(lying) -> None:
    client, says = lying
    long = json.dumps({"header": HEADER, "pad": "x" * LARGEST_ANSWER}).encode()
    for path in ("kv/txn", "lease/grant", "lease/keepalive"):
        says[path] = lambda _: long
    for ask in (
        lambda: client.txn([], [get(b"a")]),
        lambda: client.grant(5),
        lambda: client.keep_alive(5),
    ):
        with pytest.raises(TooLarge, match=f"more than {LARGEST_ANSWER} bytes"):
            ask()


@pytest.mark.needs("etcd")
@pytest.mark.parametrize("size", [10, 1_400_000])
@pytest.mark.parametrize("what", ["head", "shape", "live"])
def test_rubbish_of_any_size_is_written_anew(there, what: str, size: int) -> None:
    report = made("n1", 1)
    key = {
        "head": there.keys.entry("n1", "head"),
        "shape": there.keys.shape(report.shape),
        "live": there.keys.live("n1"),
    }[what]
    there.reader.txn([], [etcdwire.put(key, b"x" * size)])
    there.sink().deliver(report)
    assert there.entries("n1") == report.entries
    assert there.reader.get(key).value != b"x" * size
    shape = there.reader.get(there.keys.shape(report.shape))
    assert shape is not None
    assert shape.value == report.shape_data
