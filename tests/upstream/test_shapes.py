"""Shapes that nobody names are deleted, and no other, whatever agents do meanwhile."""

from __future__ import annotations

from random import Random

import pytest
import sinks
from msgspec import structs
from sinks import LEASE, made

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcdwire import delete, put
from xce_nodeagent.upstream.report import HEAD, STATIC, VERSION
from xce_nodeagent.upstream.shape import Static
from xce_nodeagent.upstream.shapes import Collected, collect

pytestmark = pytest.mark.needs("etcd")

OLD = "a" * 64
DATA = b"x" * 3000


@pytest.fixture
def there(etcd, request):
    with sinks.place(etcd, sinks.prefix(request)) as one:
        one.reader.txn([], [put(one.keys.shape(OLD), DATA)])
        yield one


def shapes(there):
    return [one.key for one in there.reader.range(there.keys.all("shape"))[1]]


def test_what_no_node_names_is_deleted(there):
    report = made("n1")
    there.sink().deliver(report)
    told = Collected(shapes=(OLD,), bytes=len(there.keys.shape(OLD)) + len(DATA))
    assert collect(there.reader, there.keys, dry_run=True) == told
    assert len(shapes(there)) == 2
    assert collect(there.reader, there.keys) == told
    assert shapes(there) == [there.keys.shape(report.shape)]
    before = there.revision()
    assert collect(there.reader, there.keys) == Collected()
    assert there.revision() == before


def test_a_node_whose_agent_is_gone_keeps_its_shape(there):
    there.sink().deliver(made("n1"))
    there.reader.txn([], [delete(there.keys.live("n1"))])
    assert collect(there.reader, there.keys).shapes == (OLD,)


@pytest.mark.parametrize("later", [False, True])
def test_nothing_is_deleted_where_a_node_cannot_be_read(there, later):
    report = made("n1")
    there.sink().deliver(report)
    head = packing.pack(structs.replace(report.head, least=VERSION + 1))
    name, value = (HEAD, head) if later else (STATIC, b"rubbish")
    there.reader.txn([], [put(there.keys.entry("n1", name), value)])
    assert collect(there.reader, there.keys) == Collected(unread=("n1",))
    assert len(shapes(there)) == 2


class Busy(Client):
    """A client beside which an agent does something once a shape was asked to be deleted."""

    def __init__(self, urls, meanwhile):
        super().__init__(urls, Random(1))  # noqa: S311  # no secret
        self.meanwhile = meanwhile

    def txn(self, compares, success, failure=()):
        told = super().txn(compares, success, failure)
        self.meanwhile()
        return told


def test_a_shape_that_is_named_meanwhile_is_put_back(there):
    named = put(there.keys.entry("n1", STATIC), packing.pack(Static(shape=OLD)))
    busy = Busy(there.urls, lambda: there.reader.txn([], [named]))
    assert collect(busy, there.keys) == Collected()
    assert there.reader.get(there.keys.shape(OLD)).value == DATA
    busy.close()


def test_a_shape_that_was_written_anew_meanwhile_stays(there):
    key = there.keys.shape(OLD)

    class Late(Client):
        def txn(self, compares, success, failure=()):
            there.reader.txn([], [put(key, DATA)])
            return super().txn(compares, success, failure)

    late = Late(there.urls, Random(1))  # noqa: S311  # no secret
    assert collect(late, there.keys) == Collected()
    assert there.reader.get(key).value == DATA
    late.close()


def test_an_agent_puts_back_what_it_misses(there):
    """It had seen its shape there, and named it after that was judged."""
    sink, report = there.sink(), made("n1")
    sink.deliver(report)
    there.reader.txn([], [delete(there.keys.entry("n1", STATIC))])
    assert report.shape in collect(there.reader, there.keys).shapes
    there.clock.now += 2 * LEASE
    sink.tend()
    assert there.reader.get(there.keys.shape(report.shape)).value == report.shape_data
    assert there.entries("n1")[STATIC] == report.entries[STATIC]
    assert collect(there.reader, there.keys) == Collected()
