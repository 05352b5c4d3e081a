from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.upstream import etcderror
from xce_nodeagent.upstream.etcderror import (
    AuthDisabled,
    Compacted,
    Denied,
    EtcdError,
    Future,
    Garbage,
    LeaseGone,
    NoLeader,
    NoSpace,
    StaleToken,
    TooLarge,
    Unauthenticated,
)

# As etcd 3.4.23 said them, asked for each.
SAID = [
    (11, "etcdserver: mvcc: required revision is a future revision", Future),
    (11, "etcdserver: mvcc: required revision has been compacted", Compacted),
    (8, "etcdserver: mvcc: database space exceeded", NoSpace),
    (8, "grpc: received message larger than max (2000009 vs. 624288)", TooLarge),
    (3, "etcdserver: request is too large", TooLarge),
    (3, "etcdserver: too many operations in txn request", TooLarge),
    (3, "etcdserver: duplicate key given in txn request", EtcdError),
    (3, "etcdserver: user name is empty", Unauthenticated),
    (3, "etcdserver: authentication failed, invalid user ID or password", Unauthenticated),
    (9, "etcdserver: authentication is not enabled", AuthDisabled),
    (16, "etcdserver: invalid auth token", StaleToken),
    (5, "etcdserver: requested lease not found", LeaseGone),
    (7, "etcdserver: permission denied", Denied),
    (14, "etcdserver: no leader", NoLeader),
    (14, "etcdserver: request timed out", NoLeader),
    (4, "context deadline exceeded", NoLeader),
    (0, "rpc error: code = PermissionDenied desc = etcdserver: permission denied", Denied),
]


@pytest.mark.parametrize(("code", "message", "kind"), SAID)
def test_what_etcd_says(code, message, kind):
    assert type(etcderror.of("place", code, message)) is kind
    plain = json.dumps({"error": message, "code": code, "message": message})
    streamed = json.dumps({"error": {"grpc_code": code, "http_code": 503, "message": message}})
    for body in (plain, streamed):
        found = etcderror.read("place", 500, body.encode())
        assert type(found) is kind
        assert found.reason.startswith("place: ")


@given(st.integers(0, 20), st.text(max_size=50))
def test_every_refusal_is_one_of_the_set(code, message):
    assert isinstance(etcderror.of("place", code, message), EtcdError)


@given(st.binary(max_size=200))
def test_no_body_of_an_error_is_trusted(body):
    assert isinstance(etcderror.read("place", 500, body), EtcdError)


def test_what_is_not_etcds_is_garbage():
    for body in (b"", b"Not Found\n", b"[]", b'{"error": 1}', b"[" * 10_000):
        assert isinstance(etcderror.read("place", 404, body), Garbage)
