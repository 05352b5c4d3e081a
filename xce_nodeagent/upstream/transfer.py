"""What is written so that the store has a report, given what it has. Pure.

A txn takes 128 operations (etcd's --max-txn-ops) and 1.5 MiB (--max-request-bytes). What is more
goes in several. Each of them writes the head, and compares that it is still as the one before left
it: a request that hung somewhere, and arrives after a newer one, changes nothing. The heads before
the last one stand for nothing (`Head.report` is empty): a reader waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import structs

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.etcdwire import Operation, delete, put
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.report import HEAD, Head, Report

MOST_OPERATIONS = 120  # with the head
MOST_BYTES = 512 << 10

Values = Mapping[bytes, bytes]


def wanted(keys: Keys, report: Report) -> dict[bytes, bytes]:
    """Give all keys of a node as the report has them."""
    return {keys.entry(report.head.node, name): data for name, data in report.entries.items()}


def batches(there: Values, wanted: Values, head: bytes) -> list[list[Operation]]:
    """Give the operations, by txns; none where nothing but the head's number and times differs."""
    gone = sorted(there.keys() - wanted.keys())
    changed = sorted(key for key, value in wanted.items() if there.get(key) != value)
    if not gone and changed in ([], [head]) and same_head(there.get(head), wanted[head]):
        return []
    operations = [put(key, wanted[key]) for key in changed if key != head]
    operations += [delete(key) for key in gone]
    cut = list(_cut(operations)) or [[]]
    between = packing.pack(structs.replace(packing.unpack(wanted[head], Head), report=""))
    heads = [between] * (len(cut) - 1) + [wanted[head]]
    return [[*batch, put(head, value)] for batch, value in zip(cut, heads, strict=True)]


def head(batch: list[Operation]) -> bytes:
    """Give the head that one of these writes."""
    last = batch[-1].request_put
    return last.value if last is not None else b""


def size(batch: list[Operation]) -> int:
    """Give the bytes of keys and values in operations."""
    return sum(map(_size, batch))


def same_head(one: bytes | None, other: bytes) -> bool:
    """Say whether two heads tell the same but for their numbers and times."""
    if one is None:
        return False
    try:
        told = packing.unpack(one, Head, packing.SMALL)
    except packing.Unreadable:
        return False
    return _bare(told) == _bare(packing.unpack(other, Head))


def stands_for(value: bytes, report: Report) -> bool:
    """Say whether a head in the store says that all entries of the report are there."""
    try:
        return packing.unpack(value, Head, packing.SMALL).report == report.head.report
    except packing.Unreadable:
        return False


def assumed(keys: Keys, report: Report, head: bytes) -> dict[bytes, bytes]:
    """Give what is in the store where its head stands for the report."""
    return {**wanted(keys, report), keys.entry(report.head.node, HEAD): head}


def _bare(head: Head) -> Head:
    return structs.replace(head, number=0, started=0.0, time=0.0)


def _cut(operations: list[Operation]) -> Iterator[list[Operation]]:
    batch: list[Operation] = []
    total = 0
    for one in operations:
        if batch and (len(batch) >= MOST_OPERATIONS - 1 or total + _size(one) > MOST_BYTES):
            yield batch
            batch, total = [], 0
        batch.append(one)
        total += _size(one)
    if batch:
        yield batch


def _size(one: Operation) -> int:
    if one.request_put is not None:
        return len(one.request_put.key) + len(one.request_put.value)
    return len(one.request_delete_range.key) if one.request_delete_range is not None else 0
