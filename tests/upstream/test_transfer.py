from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.upstream import packing, transfer
from xce_nodeagent.upstream.report import Head

HEAD = b"/n/head"
NAMES = st.integers(0, 400).map(lambda number: b"/n/%03d" % number)
VALUES = st.sampled_from([b"", b"a", b"b", b"x" * 70_000])
KEYS = st.dictionaries(NAMES, VALUES, max_size=400)
HEADS = st.sampled_from([None, b"garbage", packing.pack(Head(
    node="n", agent="a", boot_id="b", generation="b:1", digest="d", report="r0",
))])  # fmt: skip


def head(report, **more):
    fields = {"node": "n", "agent": "a", "boot_id": "b", "generation": "b:1", "digest": "d"}
    return packing.pack(Head(**fields, report=report, **more))


def applied(there, batch):
    """Do what etcd does with a txn."""
    now = dict(there)
    for one in batch:
        if one.request_put is not None:
            now[one.request_put.key] = one.request_put.value
        else:
            del now[one.request_delete_range.key]
    return now


@given(KEYS, HEADS, KEYS)
def test_the_txns_lead_from_one_to_the_other_each_with_a_head(there, old, wanted):
    if old is not None:
        there = {**there, HEAD: old}
    wanted = {**wanted, HEAD: head("r1")}
    now = there
    batches = transfer.batches(there, wanted, HEAD)
    for at, batch in enumerate(batches):
        assert 1 <= len(batch) <= transfer.MOST_OPERATIONS
        assert transfer.size(batch[:-1]) <= transfer.MOST_BYTES
        assert batch[-1].request_put.key == HEAD
        keys = [(one.request_put or one.request_delete_range).key for one in batch]
        assert len(keys) == len(set(keys)), "etcd takes no key twice"
        now = applied(now, batch)
        told = packing.unpack(now[HEAD], Head)
        assert told.report == ("r1" if at == len(batches) - 1 else "")
    assert now == wanted
    # And what is the same in both is not written.
    written = {one.request_put.key for batch in batches for one in batch if one.request_put}
    assert written - {HEAD} == {k for k, v in wanted.items() if there.get(k) != v and k != HEAD}


@given(KEYS)
def test_numbers_and_times_alone_are_no_news(entries):
    there = {**entries, HEAD: head("r1", number=1, time=1.0, started=1.0)}
    wanted = {**entries, HEAD: head("r1", number=9, time=2.0, started=5.0)}
    assert transfer.batches(there, wanted, HEAD) == []
    assert transfer.batches(there, {**entries, HEAD: head("r2")}, HEAD) != []
