"""The client against one real etcd."""

from __future__ import annotations

import threading

import pytest
from asking import Asking

from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcderror import (
    Compacted,
    EtcdError,
    Future,
    Garbage,
    LeaseGone,
    TooLarge,
    Unreachable,
)
from xce_nodeagent.upstream.etcdwatch import follow
from xce_nodeagent.upstream.etcdwire import absent, delete, get, names, newest, put, unchanged
from xce_nodeagent.upstream.pages import FIRST

pytestmark = pytest.mark.needs("etcd")


@pytest.fixture
def client(etcd, chance):
    one = Asking([etcd.url], chance)
    yield one
    one.close()


def written(client, name, value, lease=0):
    told = client.txn([], [put(name, value, lease)])
    assert told.succeeded
    return told.header.revision


def test_what_was_put_is_read_back_with_any_bytes(client):
    value = bytes(range(256))
    revision = written(client, b"/get/\xff\x00", value)
    found = client.get(b"/get/\xff\x00")
    assert (found.key, found.value) == (b"/get/\xff\x00", value)
    assert (found.mod_revision, found.create_revision, found.version) == (revision, revision, 1)
    assert client.get(b"/get/none") is None


def test_a_txn_takes_one_branch_or_the_other(client):
    key = b"/txn/a"
    assert client.txn([absent(key)], [put(key, b"1")], [get(key)]).succeeded
    told = client.txn([absent(key)], [put(key, b"2")], [get(key)])
    assert not told.succeeded
    (kv,) = told.responses[0].response_range.kvs
    assert kv.value == b"1"
    assert client.txn([unchanged(key, kv.mod_revision)], [put(key, b"2")]).succeeded
    assert not client.txn([unchanged(key, kv.mod_revision)], [put(key, b"3")]).succeeded
    written(client, b"/txn/b", b"")
    told = client.txn([], [newest(b"/txn/"), names(b"/txn/", 1), get(b"/txn/a", keys_only=True)])
    last, first, bare = (response.response_range for response in told.responses)
    assert ([kv.key for kv in last.kvs], last.count) == ([b"/txn/b"], 2)
    assert [(kv.key, kv.value) for kv in first.kvs] == [(b"/txn/a", b"")]
    assert first.count == 2
    assert [kv.value for kv in bare.kvs] == [b""]
    client.txn([], [delete(key)])
    assert client.get(key) is None


def test_a_range_comes_in_pages_of_one_revision(client):
    names = [b"/range/%05d" % number for number in range(3 * FIRST + 7)]
    for at in range(0, len(names), 100):
        client.txn([], [put(name, name) for name in names[at : at + 100]])
    before = client.asked
    revision, found = client.range(b"/range/")
    seen = [next(found)]
    client.txn([], [put(names[0], b"new"), put(names[-1], b"new"), delete(names[FIRST + 1])])
    seen += found
    assert [(one.key, one.value) for one in seen] == [(name, name) for name in names]
    assert client.asked - before == 3  # 256, then as many as the size of the values lets
    again, found = client.range(b"/range/", revision=revision)
    assert (again, list(found)) == (revision, seen)
    revision, found = client.range(b"/range/", keys_only=True)
    assert len(list(found)) == len(names) - 1
    assert client.range(b"/nothing/")[1:] != ()
    assert list(client.range(b"/nothing/")[1]) == []


def test_pages_of_large_values_shrink(etcd, client, chance):
    """No answer may have as many bytes as all of them."""
    for number in range(13):
        written(client, b"/large/%02d" % number, bytes([number]) * 100_000)
    small = Client([etcd.url], chance, largest=500_000)
    found = list(small.range(b"/large/")[1])
    assert [one.value[0] for one in found] == list(range(13))
    assert [len(one.value) for one in found] == [100_000] * 13
    small.close()
    tiny = Client([etcd.url], chance, largest=50_000)
    with pytest.raises(TooLarge):
        tiny.range(b"/large/")
    tiny.close()


def test_a_lease_and_its_end(client):
    lease = client.grant(60)
    written(client, b"/lease/a", b"1", lease.ID)
    assert client.get(b"/lease/a").lease == lease.ID
    assert client.keep_alive(lease.ID) == lease.TTL == 60
    assert 0 < client.time_to_live(lease.ID) <= 60
    client.revoke(lease.ID)
    assert client.get(b"/lease/a") is None
    for ask in (client.keep_alive, client.time_to_live, client.revoke):
        with pytest.raises(LeaseGone, match="lease not found"):
            ask(lease.ID)
    with pytest.raises(LeaseGone):
        written(client, b"/lease/a", b"1", lease.ID)


def test_revisions_that_are_gone_or_have_not_been(client):
    revisions = [written(client, b"/old/a", b"%d" % number) for number in range(5)]
    client.compact(revisions[2])
    with pytest.raises(Compacted):
        client.range(b"/old/", revision=revisions[0])
    assert client.range(b"/old/", revision=revisions[3])[0] == revisions[3]
    with pytest.raises(Future):
        client.range(b"/old/", revision=revisions[4] + 1000)
    with pytest.raises(Compacted) as told:
        list(follow(client, b"/old/", revisions[0]))
    assert told.value.revision == revisions[2]
    with pytest.raises(Future):
        list(follow(client, b"/old/", revisions[4] + 1000))


def test_what_is_too_large_is_told(client):
    with pytest.raises(TooLarge):
        written(client, b"/much/a", b"x" * 1_700_000)
    with pytest.raises(TooLarge):
        client.txn([], [put(b"/much/%d" % number, b"") for number in range(129)])


def test_a_watch_tells_whole_revisions_in_order(client, etcd):
    start = client.status().header.revision
    one = written(client, b"/watch/a", b"1")
    lease = client.grant(60).ID
    two = client.txn([], [put(b"/watch/b", b"2", lease), delete(b"/watch/a")]).header.revision
    batches = follow(client, b"/watch/", start)
    assert next(batches).events == ()  # it is open
    seen = []
    while not seen or seen[-1].revision < two:
        seen.append(next(batches))
    told = [(event.kv.key, event.deleted) for batch in seen for event in batch.events]
    assert told == [(b"/watch/a", False), (b"/watch/b", False), (b"/watch/a", True)]
    assert {one, two} >= {batch.revision for batch in seen}
    assert seen[-1].events[-2].kv.lease == lease
    three = written(client, b"/watch/c", b"3")
    written(client, b"/other", b"")
    batch = next(batches)
    assert (batch.revision, [event.kv.value for event in batch.events]) == (three, [b"3"])
    client.revoke(lease)
    assert [event.deleted for event in next(batches).events] == [True]
    batches.close()


def test_a_quiet_watch_goes_on_where_it_was(client):
    start = client.status().header.revision
    batches = follow(client, b"/quiet/", start, quiet_seconds=0.2)
    assert [next(batches).events for _ in range(3)] == [(), (), ()]  # opened three times
    written(client, b"/quiet/a", b"1")
    while not (batch := next(batches)).events:
        pass
    assert [event.kv.value for event in batch.events] == [b"1"]
    batches.close()


def test_a_watch_of_more_than_one_answer_may_have(client):
    """Seven megabytes of history come in fragments; each revision whole."""
    start = client.status().header.revision
    for number in range(5):
        written(client, b"/history/a", bytes([number]) * 1_000_000)
    batches = follow(client, b"/history/", start)
    seen = []
    while len(seen) < 5:
        seen += [event.kv.value[0] for event in next(batches).events]
    assert seen == list(range(5))
    batches.close()
    client.txn([], [delete(b"/history/a")])


def test_a_watch_ends_when_another_thread_closes(client):
    batches = follow(client, b"/close/", client.status().header.revision)
    assert next(batches).events == ()
    ended = []

    def wait():
        with pytest.raises(Unreachable) as told:
            next(batches)
        ended.append(told.value)

    thread = threading.Thread(target=wait)
    thread.start()
    client.close()
    thread.join(30)
    assert ended


def test_a_member_that_dies_and_comes_back(client, etcd):
    """A watch goes on with what it missed; a lease and its key outlive the restart."""
    lease = client.grant(60).ID
    start = written(client, b"/dies/live", b"", lease)
    batches = follow(client, b"/dies/", start)
    next(batches)
    etcd.kill()
    with pytest.raises(Unreachable):
        client.get(b"/dies/live")
    with pytest.raises(EtcdError):
        next(batches)
    etcd.start()
    assert client.keep_alive(lease) == 60
    written(client, b"/dies/a", b"1")
    batches = follow(client, b"/dies/", start)
    while not (batch := next(batches)).events:
        pass
    assert [event.kv.key for event in batch.events] == [b"/dies/a"]
    batches.close()


def test_a_place_that_is_no_etcd(etcd, chance):
    one = Client([etcd.url.replace("http://127.0.0.1", "http://localhost")], chance)
    assert one.status().leader
    one.close()
    one = Client([etcd.peer], chance)  # it speaks HTTP, but not this
    with pytest.raises(Garbage, match="no answer of etcd's v3 gateway"):
        one.status()
    one.close()
