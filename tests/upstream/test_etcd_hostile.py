"""A store that says anything at all: the sink and the client fail in the ways they are to."""

from __future__ import annotations

import contextlib
import itertools
import json
from random import Random

import pytest
import sinks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import answer, place, request
from sinks import Clock, made

from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcderror import EtcdError
from xce_nodeagent.upstream.etcdsink import EtcdSink
from xce_nodeagent.upstream.etcdwatch import follow
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.sink import Undelivered

HEADER = {"cluster_id": "1", "member_id": "2", "revision": "10"}
NUMBERS = st.sampled_from(["0", "1", "-1", "9223372036854775807", "x", "", None, 5, 1e300, True])
TEXTS = st.sampled_from(["", "YQ==", "!!!", "L3QvbGl2ZS9uMQ==", None, 3, "eA" * 50, "\x00"])
KV = st.dictionaries(
    st.sampled_from(["key", "value", "mod_revision", "lease", "version"]), NUMBERS | TEXTS
)
FOUND = st.fixed_dictionaries(
    {},
    optional={"kvs": st.lists(KV, max_size=3) | NUMBERS, "more": st.booleans(), "count": NUMBERS},
)
FIELDS = {
    "header": st.just(HEADER),
    "succeeded": st.booleans(),
    "responses": st.lists(FOUND.map(lambda found: {"response_range": found}), max_size=5) | NUMBERS,
    "kvs": st.lists(KV, max_size=3),
    "more": st.booleans(),
    "ID": NUMBERS,
    "TTL": NUMBERS,
    "leader": st.sampled_from(["1", "0", "x"]),
    "result": st.fixed_dictionaries(
        {"header": st.just(HEADER)},
        optional={
            "TTL": NUMBERS, "created": st.booleans(), "canceled": st.booleans(),
            "compact_revision": NUMBERS, "fragment": st.booleans(),
            "events": st.lists(KV.map(lambda kv: {"type": "PUT", "kv": kv}), max_size=3),
        },
    ),
}  # fmt: skip
BODIES = st.fixed_dictionaries({}, optional=FIELDS).map(lambda told: json.dumps(told).encode())
ANSWERS = st.lists(BODIES | st.binary(max_size=50), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def hostile():
    """A place that first says that it is well, and then what a test wants."""
    answers = {"now": itertools.repeat(b"")}

    def serve(one, _number):
        while told := request(one):
            body = b'{"header":{"cluster_id":"1"},"leader":"1"}'
            if b"maintenance/status" not in told:
                body = next(answers["now"], b"{}")
            one.sendall(answer(body + b"\n"))

    with place(serve) as where:
        yield where, answers


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(answers=ANSWERS)
def test_a_sink(hostile, answers):
    where, told = hostile
    told["now"] = itertools.islice(itertools.cycle(answers), 60)
    client = Client([where.url], Random(1), seconds=10)  # noqa: S311  # no secret
    sink = EtcdSink(client, Keys("/t/"), clock=(clock := Clock()))
    for number in range(3):
        clock.now += 100
        with contextlib.suppress(Undelivered):
            sink.deliver(made("n1", number, jobs=number))
            assert sink.tend() >= 0
    assert client.asked < 200
    sink.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(answers=ANSWERS)
def test_a_reader(hostile, answers):
    where, told = hostile
    told["now"] = itertools.islice(itertools.cycle(answers), 60)
    client = Client([where.url], Random(1), seconds=10)  # noqa: S311  # no secret

    def read():
        for _ in range(100):
            list(client.range(b"/t/")[1])
            for batch in follow(client, b"/t/", 5):
                assert isinstance(batch.revision, int)

    with pytest.raises(EtcdError):
        read()
    assert client.asked < 1000
    client.close()


def test_a_lease_of_no_time_is_no_lease(hostile):
    where, told = hostile
    told["now"] = itertools.repeat(b'{"header":{"cluster_id":"1"},"ID":"7","TTL":"-5"}')
    client = Client([where.url], Random(1))  # noqa: S311  # no secret
    sink = EtcdSink(client, Keys("/t/"))
    assert (
        "grants a lease 7 of -5 seconds"
        in sinks.undelivered(lambda: sink.deliver(made("n1"))).reason
    )
    sink.close()
