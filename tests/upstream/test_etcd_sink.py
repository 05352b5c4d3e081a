"""What the sink writes to a real etcd, and what it does not."""

from __future__ import annotations

import math

import pytest
import sinks
from msgspec import structs
from sinks import LEASE, made

from xce_nodeagent.upstream import packing, transfer
from xce_nodeagent.upstream.etcderror import Unreachable
from xce_nodeagent.upstream.etcdwire import delete, put
from xce_nodeagent.upstream.report import HEAD, Head
from xce_nodeagent.upstream.sink import Undelivered

pytestmark = pytest.mark.needs("etcd")


@pytest.fixture
def there(etcd, request):
    with sinks.place(etcd, sinks.prefix(request)) as one:
        yield one


def test_a_first_report_is_all_there_under_the_name(there):
    sink, report = there.sink(), made("n1", jobs=3)
    written = sink.deliver(report)
    assert there.entries("n1") == report.entries
    assert there.reader.get(there.keys.shape(report.shape)).value == report.shape_data
    live = there.live("n1")
    assert (live.agent, live.boot_id, live.node) == ("agent-1", "boot-1", "n1")
    # The entries and the shape outlive the lease; the name does not.
    leases = {one.key: one.lease != 0 for one in there.reader.range(there.keys.prefix)[1]}
    assert [key for key, leased in leases.items() if leased] == [there.keys.live("n1")]
    assert written > sum(map(len, report.entries.values())) + len(report.shape_data)


def test_only_what_changed_is_written(there):
    sink = there.sink()
    full = sink.deliver(made("n1", 1, jobs=3))
    before = there.revision()
    small = sink.deliver(made("n1", 2, jobs=4))
    assert there.revision() == before + 1
    assert small < full / 5
    assert there.entries("n1") == made("n1", 2, jobs=4).entries
    sink.deliver(made("n1", 3, jobs=1))
    assert there.revision() == before + 2
    assert there.entries("n1") == made("n1", 3, jobs=1).entries


def test_a_restarted_agent_writes_nothing_that_is_there(there):
    there.sink().deliver(made("n1", 1, jobs=3))
    before, lease = there.revision(), there.reader.get(there.keys.live("n1")).lease
    again = there.sink()
    # The number and the times alone are no news.
    assert again.deliver(made("n1", 7, jobs=3, started=2.0)) == 0
    assert there.revision() == before
    assert there.reader.get(there.keys.live("n1")).lease == lease
    again.deliver(made("n1", 8, jobs=2, started=2.0))
    assert there.revision() == before + 1
    head = packing.unpack(there.entries("n1")[HEAD], Head)
    assert (head.number, head.started) == (8, 2.0)


def test_a_restarted_agent_that_is_another_version_says_so_under_its_lease(there):
    there.sink().deliver(made("n1"))
    lease = there.reader.get(there.keys.live("n1")).lease
    report = made("n1")
    newer = structs.replace(report, head=structs.replace(report.head, program="2.0"))
    there.sink().deliver(newer)
    assert there.live("n1").program == "2.0"
    assert there.reader.get(there.keys.live("n1")).lease == lease


def test_a_quiet_node_asks_for_one_keep_alive_a_third_and_writes_nothing(there, etcd):
    """Counted by etcd itself: its revision, and what it was asked."""
    sink = there.sink()
    sink.deliver(made("n1"))
    assert sink.tend() == pytest.approx(LEASE / 3)
    revision = there.revision()
    puts, ranges = (etcd.metric(f"etcd_debugging_mvcc_{what}_total") for what in ("put", "range"))
    asked = sink._client.asked
    for third in range(1, 7):
        there.clock.now += LEASE / 3
        assert 0 < sink.tend() <= LEASE / 3 + 1e-6
        # In the sixth third, two leases later, it also looks who else is there: one read.
        assert sink._client.asked - asked == third + (third == 6)
    assert there.revision() == revision
    assert etcd.metric("etcd_debugging_mvcc_put_total") == puts
    assert etcd.metric("etcd_debugging_mvcc_range_total") - ranges == 4  # of one txn


def test_a_large_report_goes_in_several_txns_with_the_head_last(there):
    sink = there.sink()
    big = made("n1", 1, jobs=500)
    sink.deliver(big)
    assert there.entries("n1") == big.entries
    head = there.reader.get(there.keys.entry("n1", HEAD))
    found = list(there.reader.range(there.keys.node("n1"))[1])
    assert head.mod_revision == max(one.mod_revision for one in found)
    assert len({one.mod_revision for one in found}) == math.ceil((len(found) - 1) / 120)
    # And they go in several, too.
    small = made("n1", 2, jobs=1)
    sink.deliver(small)
    assert there.entries("n1") == small.entries


def test_a_large_report_that_was_cut_off_is_made_whole(there):
    """Another head is older than what stands beside it: it is read back, and not believed."""
    sink, report = there.sink(), made("n1", 1, jobs=5)
    sink.deliver(report)
    torn = made("n1", 2, jobs=300)
    wanted = transfer.wanted(there.keys, torn)
    head = there.keys.entry("n1", HEAD)
    first, *_ = transfer.batches(transfer.wanted(there.keys, report), wanted, head)
    there.reader.txn([], first)  # and then it died
    again = there.sink()
    again.deliver(made("n1", 3, jobs=5))  # by now those jobs are over
    assert there.entries("n1") == {**report.entries, HEAD: there.entries("n1")[HEAD]}


@pytest.mark.parametrize(
    "what", ["value", "extra", "gone", "head", "all", "shape", "no shape", "strange"]
)
@pytest.mark.parametrize("comes", [True, False])
def test_garbage_in_its_own_keys_is_put_right(there, what, comes):
    """By an agent that comes, and by one that is there with its next look."""
    sink, report = there.sink(), made("n1", 1, jobs=3)
    sink.deliver(report)
    keys, node = there.keys, there.keys.node("n1")
    shape = keys.shape(report.shape)
    changes = {
        "value": [put(keys.entry("n1", "static"), b"garbage")],
        "extra": [put(keys.entry("n1", "state/of-nobody"), b"\xff" * 5000)],
        "gone": [delete(keys.entry("n1", "binding/1/1"))],
        "head": [put(keys.entry("n1", HEAD), b"{}")],
        "all": [delete(keys.entry("n1", name)) for name in report.entries],
        "shape": [put(shape, b"garbage")],
        "no shape": [delete(shape)],
        "strange": [put(node + b"a//b%zz\xff", b""), put(node, b"")],
    }
    there.reader.txn([], changes[what])
    if comes:
        sink = there.sink()
        sink.deliver(made("n1", 2, jobs=3))
    else:
        there.clock.now += 2 * LEASE
        sink.tend()
    entries = there.entries("n1")
    assert transfer.stands_for(entries[HEAD], report)
    assert entries == {**report.entries, HEAD: entries[HEAD]}
    assert there.reader.get(shape).value == report.shape_data
    before = there.revision()
    there.clock.now += 2 * LEASE
    sink.tend()
    assert there.revision() == before


def test_a_great_many_keys_of_nobody_are_ended_in_turns(there):
    node = there.keys.node("n1")
    for at in range(0, 300, 100):
        there.reader.txn([], [put(node + b"a%04d" % (at + n), b"") for n in range(100)])
    sink, report = there.sink(most_strange=50), made("n1")
    sink.deliver(report)
    assert len(there.entries("n1")) > 200
    for _ in range(10):
        there.clock.now += 2 * LEASE
        sink.tend()
    assert there.entries("n1") == report.entries


def test_what_is_not_this_nodes_is_left(there):
    there.sink().deliver(made("n1", agent="agent-1"))
    there.sink().deliver(made("n10", agent="agent-10"))
    other = there.entries("n10")
    one = there.sink()
    one.deliver(made("n1", 2, jobs=8))
    there.clock.now += 2 * LEASE
    one.tend()
    assert there.entries("n10") == other
    shape = made("n1").shape
    assert there.reader.get(there.keys.shape(shape)).version == 1  # one for both


@pytest.mark.parametrize("jobs", [2, 300])
def test_a_request_that_hung_changes_nothing_when_it_arrives_late(there, jobs):
    """A member that was stopped does what it was asked when it goes on; newer reports are there."""
    sink = there.sink()
    sink.deliver(made("n1", 1, jobs=1))
    late = []

    def hangs(*arguments):
        late.append(arguments)
        raise Unreachable("no answer in time")

    sink._client.txn, txn = hangs, sink._client.txn
    with pytest.raises(Undelivered):
        sink.deliver(made("n1", 2, jobs=jobs))
    sink._client.txn = txn
    sink.deliver(made("n1", 3, jobs=3))
    (one,) = late
    assert not txn(*one).succeeded
    assert there.entries("n1") == made("n1", 3, jobs=3).entries


def test_the_heads_between_stand_for_nothing(there):
    report = made("n1", 1, jobs=300)
    wanted = transfer.wanted(there.keys, report)
    head = there.keys.entry("n1", HEAD)
    *between, last = transfer.batches({}, wanted, head)
    assert between
    for batch in between:
        assert len(batch) <= 120
        assert packing.unpack(batch[-1].request_put.value, Head).report == ""
    assert last[-1].request_put.value == report.entries[HEAD]
    assert sum(len(batch) - 1 for batch in (*between, last)) == len(wanted) - 1
