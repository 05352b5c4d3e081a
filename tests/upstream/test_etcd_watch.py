"""What a stream of changes says of how new it is, and one that says nothing more."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from random import Random

import pytest
from places import answer, place, request

from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcderror import Unreachable
from xce_nodeagent.upstream.etcdwatch import follow
from xce_nodeagent.upstream.etcdwire import put

QUIET = 0.2


@pytest.fixture
def client(etcd, chance):
    one = Client([etcd.url], chance)
    yield one
    one.close()


@pytest.mark.needs("etcd")
def test_a_stream_is_current_when_the_store_has_nothing_newer(client):
    start = client.status().header.revision
    with contextlib.closing(follow(client, b"/now/", start, quiet_seconds=QUIET)) as batches:
        assert next(batches).current
        client.txn([], [put(b"/now/a", b"1")])
        batch = next(one for one in batches if one.events)
        assert batch.current


@pytest.mark.needs("etcd")
def test_one_that_is_opened_behind_the_store_is_not_current_at_once(client):
    start = client.status().header.revision
    client.txn([], [put(b"/behind/a", b"1")])
    client.txn([], [put(b"/behind/b", b"2")])
    with contextlib.closing(follow(client, b"/behind/", start, quiet_seconds=60)) as batches:
        assert not next(batches).current
        while not (batch := next(batches)).current:
            pass
        assert batch.events[-1].kv.key == b"/behind/b"


@pytest.mark.needs("etcd")
def test_where_others_write_a_quiet_time_says_that_it_is_current(client):
    """What is newest in the store is none of these keys, and nobody tells."""
    start = client.status().header.revision
    client.txn([], [put(b"/of-others/a", b"1")])
    with contextlib.closing(follow(client, b"/mine/", start, quiet_seconds=QUIET)) as batches:
        assert [next(batches).current for _ in range(2)] == [False, True]


CREATED = {"result": {"header": {"cluster_id": "1", "revision": "9"}, "created": True}}


@pytest.mark.parametrize("fragment", [False, True], ids=["line", "revision"])
def test_a_member_that_never_comes_to_the_end_is_told(fragment):
    """Of a line, or of a revision; that is no quiet stream."""
    part = {"header": {"revision": "9"}, "fragment": True, "events": [{"kv": {"key": "YQ=="}}]}

    def serve(one, _number):
        while b"/v3/watch" not in request(one):
            one.sendall(answer(b'{"header":{"cluster_id":"1"},"leader":"1"}'))
        one.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(CREATED).encode() + b"\n")
        if fragment:
            one.sendall(json.dumps({"result": part}).encode() + b"\n")
        while True:
            one.sendall(b"" if fragment else b" ")
            time.sleep(QUIET / 10)

    with place(serve) as where:
        client = Client([where.url], Random(1))  # noqa: S311  # no secret
        batches = follow(client, b"/a/", 5, quiet_seconds=QUIET)
        with pytest.raises(Unreachable, match="in time"):
            list(itertools.islice(batches, 10))
        batches.close()
        client.close()
