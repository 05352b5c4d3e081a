"""Whose a node's name is: leases that end, and two agents that want one name."""

from __future__ import annotations

import math
import time

import pytest
import sinks
from etcds import running
from sinks import LEASE, made

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.claim import Live
from xce_nodeagent.upstream.etcdwatch import follow
from xce_nodeagent.upstream.etcdwire import delete, put
from xce_nodeagent.upstream.sink import Undelivered

pytestmark = pytest.mark.needs("etcd")


@pytest.fixture
def there(etcd, request):
    with sinks.place(etcd, sinks.prefix(request)) as one:
        yield one


FIRST = {"agent": "agent-1", "boot": "boot-1"}
SECOND = {"agent": "agent-2", "boot": "boot-2"}


def two(there):
    """Have one agent report, and another one fail to."""
    first, second = there.sink(host="rack1-a"), there.sink(host="rack1-b")
    first.deliver(made("n1", jobs=2, **FIRST))
    with pytest.raises(Undelivered) as told:
        second.deliver(made("n1", jobs=0, **SECOND))
    return first, second, told.value


def test_the_second_agent_reports_nothing_and_names_the_first(there):
    _, _, failure = two(there)
    assert failure.hopeless
    assert "the name n1 is that of agent agent-1 of host rack1-a (boot boot-1)" in failure.reason
    assert "[agent] node" in failure.remedy
    assert there.entries("n1") == made("n1", jobs=2, **FIRST).entries
    assert there.live("n1").agent == "agent-1"
    rival = there.reader.get(there.keys.rival("n1", "agent-2"))
    assert packing.unpack(rival.value, Live).boot_id == "boot-2"
    assert rival.lease  # it ends when that agent does


def test_the_first_agent_learns_of_the_second_and_goes_on(there):
    first, _, _ = two(there)
    there.clock.now += 2 * LEASE
    first.tend()
    assert first.note == "agent agent-2 of host rack1-b (boot boot-2) claims the name n1, too"
    there.reader.txn([], [delete(there.keys.rival("n1", "agent-2"))])
    there.clock.now += 2 * LEASE
    first.tend()
    assert first.note == ""


def test_rubbish_of_any_size_among_the_rivals_stops_nobody(there):
    first, _, _ = two(there)
    rubbish = [there.keys.rival("n1", f"a{at}") for at in range(10)]
    for key in rubbish:
        there.reader.txn([], [put(key, b"x" * 1_400_000)])
    there.clock.now += 2 * LEASE
    first.tend()
    assert first.note == "agent a0, agent a1, agent a2 and 8 more claims the name n1, too"
    there.reader.txn([], [delete(key) for key in rubbish])


def test_neither_flaps(there):
    """However often both try, nothing is written any more."""
    first, second, _ = two(there)

    def written() -> dict[bytes, int]:
        # Not the store's revision: it rises when a lease of an earlier test ends.
        _, found = there.reader.range(there.keys.prefix)
        return {one.key: one.mod_revision for one in found}

    before = written()
    for _ in range(10):
        there.clock.now += LEASE
        first.tend()
        first.deliver(made("n1", jobs=2, **FIRST))
        second.tend()
        with pytest.raises(Undelivered, match="agent-1"):
            second.deliver(made("n1", jobs=0, **SECOND))
    assert written() == before


def test_the_rivals_key_is_kept_while_its_report_waits(there):
    _, second, failure = two(there)
    assert 0 < failure.meanwhile <= LEASE / 3  # that is when delivery tends it
    lease = there.reader.get(there.keys.rival("n1", "agent-2")).lease
    there.clock.now += failure.meanwhile
    asked = second._client.asked
    assert 0 < second.tend() <= LEASE / 3 + 1e-6
    assert second._client.asked == asked + 1
    assert there.reader.time_to_live(lease) > LEASE - 5


def test_the_second_takes_over_when_the_first_is_gone(there):
    _, second, _ = two(there)
    there.reader.revoke(there.reader.get(there.keys.live("n1")).lease)
    there.clock.now += 2 * LEASE
    with pytest.raises(Undelivered, match="the name n1 is free by now") as told:
        second.tend()
    assert not told.value.hopeless  # tried again soon
    second.deliver(made("n1", jobs=0, **SECOND))
    assert there.live("n1").agent == "agent-2"
    assert there.entries("n1") == made("n1", jobs=0, **SECOND).entries
    assert there.reader.get(there.keys.rival("n1", "agent-2")) is None


def test_another_boot_of_the_same_agent_waits_for_the_lease(there):
    there.sink().deliver(made("n1", agent="agent-1", boot="boot-1"))
    after = there.sink()
    with pytest.raises(Undelivered, match="in another boot, until its lease ends") as told:
        after.deliver(made("n1", agent="agent-1", boot="boot-2"))
    assert not told.value.hopeless
    assert "copy" in told.value.remedy
    there.reader.revoke(there.reader.get(there.keys.live("n1")).lease)
    after.deliver(made("n1", agent="agent-1", boot="boot-2"))
    assert there.live("n1").boot_id == "boot-2"


def test_a_lease_that_ended_is_claimed_anew(there):
    sink, report = there.sink(), made("n1", jobs=2)
    sink.deliver(report)
    before = there.entries("n1")
    there.reader.revoke(there.reader.get(there.keys.live("n1")).lease)
    assert there.live("n1") is None
    assert there.entries("n1") == before  # they outlive it
    there.clock.now += LEASE / 3
    assert sink.tend() == pytest.approx(LEASE / 3)
    assert there.live("n1").agent == "agent-1"
    there.reader.revoke(there.reader.get(there.keys.live("n1")).lease)
    sink.deliver(made("n1", 2, jobs=3))  # and where that is what notices it
    assert there.live("n1").agent == "agent-1"
    assert there.entries("n1") == made("n1", 2, jobs=3).entries


def test_a_lease_ends_by_the_stores_clock(there, etcd):
    """Nobody asks for it to be kept; what the agent's clock says is no matter."""
    sink = there.sink(lease=2)
    sink.deliver(made("n1"))
    end = time.monotonic() + 60
    batches = follow(there.reader, there.keys.live("n1"), there.revision(), quiet_seconds=10)
    while not any(event.deleted for event in next(batches).events):
        assert time.monotonic() < end
    batches.close()
    there.clock.now += 1
    sink.tend()
    assert there.live("n1") is not None


@pytest.mark.parametrize("by", ["tend", "deliver"])
def test_a_name_that_another_took_meanwhile_is_lost(there, by):
    """The first was away for longer than its lease: what it would write is refused."""
    first, second = there.sink(), there.sink()
    first.deliver(made("n1", jobs=2, **FIRST))
    there.reader.revoke(there.reader.get(there.keys.live("n1")).lease)
    second.deliver(made("n1", jobs=0, **SECOND))
    there.clock.now += LEASE / 3
    act = {"tend": first.tend, "deliver": lambda: first.deliver(made("n1", 2, jobs=3, **FIRST))}
    with pytest.raises(Undelivered, match="agent-2") as told:
        act[by]()
    assert told.value.hopeless
    assert there.entries("n1") == made("n1", jobs=0, **SECOND).entries


def test_a_name_is_lost_before_the_lease_is_due(there):
    """Somebody ended `live/` by hand, and another agent came first: each txn compares."""
    first, second = there.sink(), there.sink()
    first.deliver(made("n1", jobs=2, **FIRST))
    there.reader.txn([], [delete(there.keys.live("n1"))])
    second.deliver(made("n1", jobs=0, **SECOND))
    with pytest.raises(Undelivered, match="agent-2"):
        first.deliver(made("n1", 2, jobs=5, **FIRST))
    assert there.entries("n1") == made("n1", jobs=0, **SECOND).entries


@pytest.mark.parametrize("value", [b"", b"garbage", b"{}", b'{"agent":1}', b"\x78\x9c\xff"])
def test_garbage_in_the_name_is_nobodys(there, value):
    there.reader.txn([], [put(there.keys.live("n1"), value, there.reader.grant(60).ID)])
    there.sink().deliver(made("n1"))
    assert there.live("n1").agent == "agent-1"


def test_a_claim_without_a_lease_is_nobodys(there):
    """It would never end."""
    other = packing.pack(Live(agent="agent-9", boot_id="boot-9", node="n1"))
    there.reader.txn([], [put(there.keys.live("n1"), other)])
    there.sink().deliver(made("n1"))
    assert there.live("n1").agent == "agent-1"
    assert there.reader.get(there.keys.live("n1")).lease


@pytest.mark.parametrize(("old", "new"), [(LEASE, 2 * LEASE), (2 * LEASE, LEASE)])
def test_a_lease_of_another_length_is_changed(there, old, new):
    there.sink(lease=old).deliver(made("n1"))
    before = there.reader.get(there.keys.live("n1")).lease
    there.sink(lease=new).deliver(made("n1"))
    after = there.reader.get(there.keys.live("n1")).lease
    assert after != before
    assert new / 2 < there.reader.time_to_live(after) <= new


def test_a_lease_that_the_store_made_longer_is_kept():
    """It gives none of less than one and a half times of what an election may take."""
    slow = ("--heartbeat-interval", "400", "--election-timeout", "4000")
    with running(*slow) as etcd, sinks.place(etcd, "/t/") as there:
        there.sink(lease=2).deliver(made("n1"))
        before, live = there.revision(), there.reader.get(there.keys.live("n1"))
        assert there.reader.time_to_live(live.lease) > 2
        there.sink(lease=2).deliver(made("n1"))
        assert there.revision() == before
        assert there.reader.get(there.keys.live("n1")).lease == live.lease


def test_without_a_report_nothing_is_due(there):
    assert there.sink().tend() == math.inf
