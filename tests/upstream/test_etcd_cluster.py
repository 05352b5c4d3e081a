"""Three members: one is killed, hangs, or is cut off, and the report goes on."""

from __future__ import annotations

import etcds
import pytest
import sinks
from sinks import LEASE, eventually, made

from xce_nodeagent.upstream.etcdwatch import follow
from xce_nodeagent.upstream.sink import Undelivered

pytestmark = pytest.mark.needs("etcd")


@pytest.fixture(scope="module")
def members():
    with etcds.cluster(3) as all_of_them:
        yield all_of_them


@pytest.fixture
def there(members, request):
    with sinks.place(members, sinks.prefix(request)) as p:
        yield p


def used(members, sink):
    """Give the member that a sink, or a client, asks first."""
    first = sink._client._first()
    return next(one for one in members if one.url == first)


def again(members, one):
    """Bring a member back, and wait until all are well."""
    one.start(wait=False)
    for each in members:
        each.wait()


@pytest.mark.parametrize("which", ["leader", "used"])
def test_a_member_that_is_killed(members, there, which):
    """Also the leader: the others choose a new one within a second."""
    sink = there.sink(seconds=1.5)
    eventually(lambda: sink.deliver(made("n1", 1, jobs=1)))
    lease = there.reader.get(there.keys.live("n1")).lease
    one = etcds.leader(members) if which == "leader" else used(members, sink)
    one.kill()
    try:
        for number in range(2, 6):
            there.clock.now += 1
            eventually(lambda n=number: sink.deliver(made("n1", n, jobs=n)))
        there.clock.now += LEASE / 3
        eventually(sink.tend)
        there.reader.move([each.url for each in members if each is not one])
        assert there.entries("n1") == made("n1", 5, jobs=5).entries
        assert there.reader.get(there.keys.live("n1")).lease == lease
    finally:
        again(members, one)


def test_the_member_in_use_hangs(members, there):
    sink = there.sink(seconds=1.5, connect_seconds=1.5)
    eventually(lambda: sink.deliver(made("n1", 1, jobs=1)))
    one = used(members, sink)
    one.pause()
    try:
        eventually(lambda: sink.deliver(made("n1", 2, jobs=2)))
        assert used(members, sink) is not one
        eventually(lambda: sink.deliver(made("n1", 3, jobs=3)))
        # The one that hangs is asked when no other is left.
        assert sink._client._endpoints.round(there.clock.now)[-1] == one.url
    finally:
        one.resume()
        for each in members:
            each.wait()
    assert there.entries("n1") == made("n1", 3, jobs=3).entries


def test_a_member_without_the_others_is_passed_over_or_says_so(members, there):
    """Two of three are gone: nothing can be decided, and the reason says that."""
    sink = there.sink(seconds=1.5)
    eventually(lambda: sink.deliver(made("n1", 1, jobs=1)))
    first, second = members[:2]
    first.kill()
    second.kill()
    try:
        told = eventually(lambda: refused(sink, made("n1", 2, jobs=2), "no leader"))
        assert not told.hopeless
        assert "more than half" in told.remedy
        assert "Connection refused" in told.reason
    finally:
        second.start(wait=False)
        again(members, first)
    eventually(lambda: sink.deliver(made("n1", 3, jobs=3)))
    assert there.entries("n1") == made("n1", 3, jobs=3).entries


def test_a_watch_goes_on_at_another_member(members, there):
    sink = there.sink(seconds=1.5)
    eventually(lambda: sink.deliver(made("n1", 1, jobs=1)))
    start = there.revision()
    batches = follow(there.reader, there.keys.node("n1"), start)
    assert next(batches).events == ()
    one = next(each for each in members if each.url == there.reader._first())
    one.kill()
    try:
        eventually(lambda: sink.deliver(made("n1", 2, jobs=2)))
        while not (batch := next(batches)).events:
            pass
        assert {event.kv.key for event in batch.events} == {
            there.keys.entry("n1", "head"), there.keys.entry("n1", "binding/1/1")
        }  # fmt: skip
    finally:
        batches.close()
        again(members, one)


def refused(sink, report, why):
    """Give the failure; another failure, or none, is not yet the one."""
    try:
        sink.deliver(report)
    except Undelivered as failure:
        if why in failure.reason:
            return failure
        raise
    raise Undelivered("it was delivered")
