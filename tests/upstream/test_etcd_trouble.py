"""Stores in trouble: full, made anew, moved, of another cluster, slow, away for hours."""

from __future__ import annotations

import contextlib

import etcds
import pytest
import sinks
from places import place, request
from sinks import LEASE, eventually, made, undelivered

from xce_nodeagent.upstream.sink import Undelivered

pytestmark = pytest.mark.needs("etcd")


@pytest.fixture
def own():
    """An etcd that the test may break, and a place in it."""
    with etcds.running() as one, sinks.place(one, "/t/") as there:
        yield one, there


def fails(sink, report) -> Undelivered:
    return sinks.undelivered(lambda: sink.deliver(report))


def fill(etcd):
    """Write until the quota is reached."""
    with contextlib.suppress(RuntimeError):
        for _ in range(60):
            etcd.ctl("put", "filling", text="x" * 100_000)
    assert "NOSPACE" in etcd.ctl("alarm", "list")


def test_a_full_database(caplog):
    """Nothing is written; the lease lives on; and all goes on by itself when there is space."""
    with etcds.running("--quota-backend-bytes", "3000000") as etcd, sinks.place(etcd, "/t/") as t:
        sink = t.sink()
        sink.deliver(made("n1", jobs=1))
        lease = t.reader.get(t.keys.live("n1")).lease
        fill(etcd)
        told = fails(sink, made("n1", 2, jobs=2))
        assert told.hopeless
        assert "database space exceeded" in told.reason
        assert "etcdctl alarm disarm" in told.remedy
        assert 0 <= told.meanwhile <= LEASE / 3
        t.clock.now += told.meanwhile
        assert sink.tend() > 0
        assert t.reader.time_to_live(lease) > LEASE - 5
        t.clock.now += 2 * LEASE
        undelivered(sink.tend)  # it looks, and tries again
        assert "somebody else" not in caplog.text
        fails(t.sink(), made("n2"))  # one that comes only now does not get in

        etcd.ctl("compact", str(etcd.revision()))
        etcd.ctl("defrag")
        etcd.ctl("alarm", "disarm")
        sink.deliver(made("n1", 3, jobs=3))
        assert t.entries("n1") == made("n1", 3, jobs=3).entries
        assert t.reader.get(t.keys.live("n1")).lease == lease


@pytest.mark.parametrize("token", ["", "another"])
@pytest.mark.parametrize("by", ["deliver", "tend"])
def test_a_store_that_was_made_anew_gets_all(own, by, token, caplog):
    """The only member is of another cluster: it is believed, and logged. One may look the same."""
    etcd, there = own
    sink, report = there.sink(), made("n1", jobs=3)
    sink.deliver(report)
    etcd.kill()
    etcd.wipe(token)
    etcd.start()
    if by == "deliver":
        report = made("n1", 2, jobs=4)
        sink.deliver(report)
    else:
        there.clock.now += LEASE / 3
        sink.tend()
    assert there.entries("n1") == report.entries
    assert there.live("n1").agent == "agent-1"
    assert there.reader.get(there.keys.shape(report.shape)).value == report.shape_data
    assert ("all are of cluster" in caplog.text) == bool(token)


def test_a_pinned_cluster_is_the_only_one(own):
    etcd, there = own
    found = there.reader.status().header.cluster_id
    there.sink(pinned=frozenset({found})).deliver(made("n1"))
    told = fails(there.sink(pinned=frozenset({found + 1})), made("n1", 2))
    assert told.hopeless
    assert f"it is of cluster {found}, and the configuration names another" in told.reason
    # Also where the store is made anew.
    pinned = there.sink(pinned=frozenset({found}))
    pinned.deliver(made("n1"))
    etcd.kill()
    etcd.wipe("another")
    etcd.start()
    assert "names another" in fails(pinned, made("n1", 2, jobs=2)).reason
    assert etcd.keys() == []


def test_a_member_of_another_cluster_is_passed_over(own):
    etcd, there = own
    with etcds.running() as other:
        for _ in range(4):  # whichever comes first
            sink = there.sink(urls=[etcd.url])
            sink.deliver(made("n1"))
            sink._client.move([other.url, etcd.url])
            sink._client.blame(etcd.url)
            sink.deliver(made("n1", 2, jobs=2))
            assert there.entries("n1") == made("n1", 2, jobs=2).entries
        etcd.kill()
        told = fails(sink, made("n1", 3, jobs=3))
        assert f"{other.url}: it is of cluster" in told.reason
        assert "Connection refused" in told.reason
        assert other.keys() == []
        etcd.start()
        sink.deliver(made("n1", 3, jobs=3))
        assert there.entries("n1") == made("n1", 3, jobs=3).entries


def test_a_new_store_is_taken_when_it_alone_is_named(own):
    """As long as a member of the old one may come back, it is not."""
    etcd, there = own
    now = [etcd.url]
    sink = there.sink(renew=lambda: now)
    sink.deliver(made("n1"))
    etcd.kill()
    with etcds.running() as other:
        now[:] = [etcd.url, other.url]
        told = fails(sink, made("n1", 2, jobs=2))
        assert "Connection refused" in told.reason
        assert f"{other.url}: it is of cluster" in told.reason
        assert other.keys() == []
        now[:] = [other.url]
        sink.deliver(made("n1", 2, jobs=2))
        there.reader.move(now)
        assert there.entries("n1") == made("n1", 2, jobs=2).entries


def test_endpoints_that_changed_are_taken(own):
    """The store moved; the configuration file says where to; nobody restarts the agent."""
    etcd, there = own
    now = [etcd.url]
    sink = there.sink(renew=lambda: now)
    sink.deliver(made("n1"))
    etcd.kill()
    assert "Connection refused" in fails(sink, made("n1", 2, jobs=2)).reason
    client, peer = etcds.free_ports(2)
    etcd.url, etcd.peer = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    etcd.start()
    now[:] = [etcd.url]
    sink.deliver(made("n1", 2, jobs=2))
    assert sink.where == f"{etcd.url}/t/"
    there.reader.move([etcd.url])
    assert there.entries("n1") == made("n1", 2, jobs=2).entries


def test_an_outage_of_hours_ends_with_the_newest(own):
    etcd, there = own
    sink = there.sink()
    sink.deliver(made("n1", 1, jobs=1))
    etcd.kill()
    for number in range(2, 40):
        there.clock.now += 300
        told = fails(sink, made("n1", number, jobs=number % 7))
        assert not told.hopeless
        assert told.meanwhile > there.clock.now  # its lease is over by then
    etcd.start()
    sink.deliver(made("n1", 40, jobs=5))
    assert there.entries("n1") == made("n1", 40, jobs=5).entries


def test_a_store_is_away_until_it_answers_though_there_is_nothing_new(own):
    etcd, there = own
    sink, same = there.sink(), made("n1", jobs=1)
    sink.deliver(same)
    revision = there.revision()
    etcd.kill()
    there.clock.now += LEASE / 3
    sinks.undelivered(sink.tend)
    for _ in range(3):
        assert "refused" in fails(sink, same).reason
    etcd.start()
    assert sink.deliver(same) == 0
    assert there.revision() == revision


def test_that_it_is_back_is_not_said_before_it_answered(own):
    """There is nothing to write, and no lease is due: it is asked all the same."""
    etcd, there = own
    sink, report = there.sink(), made("n1", 1, jobs=1)
    sink.deliver(report)
    etcd.kill()
    there.clock.now += LEASE / 3
    assert "Connection refused" in undelivered(sink.tend).reason
    for _ in range(3):
        there.clock.now += 1
        assert "Connection refused" in fails(sink, report).reason
    etcd.start()
    # If its lease ended meanwhile, the node is alive again with that, and not a third of it later.
    there.reader.revoke(there.reader.get(there.keys.live("n1")).lease)
    assert sink.deliver(report) == 0
    assert there.live("n1") is not None
    asked = sink._client.asked
    assert sink.deliver(report) == 0
    assert sink._client.asked == asked


def test_a_restart_with_its_data_is_not_even_noticed(own):
    etcd, there = own
    sink = there.sink()
    sink.deliver(made("n1", 1, jobs=3))
    etcd.restart()
    before = there.revision()
    there.clock.now += LEASE / 3
    sink.tend()
    sink.deliver(made("n1", 2, jobs=4))
    assert there.revision() == before + 1


def test_a_compaction_is_no_matter_to_the_sink(own):
    _, there = own
    sink = there.sink()
    for number in range(3):
        sink.deliver(made("n1", number, jobs=number))
    there.reader.compact(there.revision())
    sink.deliver(made("n1", 4, jobs=4))
    there.sink().deliver(made("n1", 5, jobs=2))
    assert there.entries("n1") == made("n1", 5, jobs=2).entries


def test_a_store_that_hangs(own):
    etcd, there = own
    sink = there.sink(seconds=0.5, connect_seconds=0.5)
    eventually(lambda: sink.deliver(made("n1")))
    etcd.pause()
    try:
        assert "no answer in time" in fails(sink, made("n1", 2, jobs=2)).reason
    finally:
        etcd.resume()
    eventually(lambda: sink.deliver(made("n1", 3, jobs=3)))
    assert there.entries("n1") == made("n1", 3, jobs=3).entries


def test_a_place_that_answers_a_byte_at_a_time_for_ever(own):
    _, there = own

    def serve(one, _number):
        request(one)
        one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while one.send(b" "):
            one.settimeout(0.05)
            try:
                if not one.recv(1):
                    return
            except TimeoutError:
                pass

    with place(serve) as slow:
        sink = there.sink(urls=[slow.url], seconds=0.5, connect_seconds=0.5)
        told = fails(sink, made("n1"))
        assert "no answer in time" in told.reason
        # With one that is well beside it, it is left at once.
        sink = there.sink(urls=[slow.url, *there.urls], seconds=0.5, connect_seconds=0.5)
        eventually(lambda: sink.deliver(made("n1")))
        assert there.entries("n1") == made("n1").entries


def test_what_is_no_etcd_is_named(own):
    etcd, there = own
    told = fails(there.sink(urls=[etcd.peer]), made("n1"))
    assert told.hopeless
    assert "no answer of etcd's v3 gateway" in told.reason
    assert "client URLs" in told.remedy
