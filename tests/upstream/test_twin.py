"""A copy of a host that runs: two agents with one id and one boot, which no claim tells apart."""

from __future__ import annotations

import contextlib

import pytest
import sinks
from msgspec import structs
from sinks import LEASE, made
from states import chance

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcderror import Unreachable
from xce_nodeagent.upstream.etcdsink import EtcdSink
from xce_nodeagent.upstream.etcdwire import put
from xce_nodeagent.upstream.report import HEAD
from xce_nodeagent.upstream.sink import Undelivered
from xce_nodeagent.upstream.twin import Twin


@pytest.fixture
def there(etcd, request):
    with sinks.place(etcd, sinks.prefix(request)) as one:
        yield one


def look(there, *sinks) -> list[str]:
    there.clock.now += 2 * LEASE
    for one in sinks:
        one.tend()
    return [one.note for one in sinks]


@pytest.mark.needs("etcd")
@pytest.mark.parametrize("started", [1.0, 2.0], ids=["of one memory", "of one folder"])
def test_both_learn_of_the_other_while_they_do_nothing(there, caplog, started):
    one, other = there.sink(), there.sink()
    one.deliver(made("n1", 4, jobs=1))
    other.deliver(made("n1", 5, jobs=2, started=started))
    assert look(there, one, other) == ["", ""]
    assert look(there, one, other)[0]
    for note in look(there, one, other):
        assert "another agent writes here with this one's id, agent-1," in note
        assert "remove agent-id" in note
    told = [one for one in caplog.messages if "with this one's id" in one]
    assert len(told) == 2, "each says it once"
    # The copy is put right: it is forgotten.
    for _ in range(10):
        look(there, one)
    assert one.note == ""


@pytest.mark.needs("etcd")
def test_both_learn_of_the_other_by_their_jobs(there):
    one, other = there.sink(), there.sink()
    for number in range(1, 4):
        one.deliver(made("n1", number, jobs=number))
        other.deliver(made("n1", number, jobs=number + 10, started=2.0))
    assert "with this one's id" in one.note
    assert "with this one's id" in other.note


@pytest.mark.needs("etcd")
def test_a_restart_is_no_twin_and_neither_is_somebody_who_writes_by_hand(there):
    for start in range(1, 5):
        sink = there.sink()
        sink.deliver(made("n1", 1, jobs=start, started=float(start)))
        assert look(there, sink) == [""]
        sink.deliver(made("n1", 2, jobs=start + 10, started=float(start)))
    key = there.keys.entry("n1", HEAD)
    other = packing.pack(structs.replace(made("n1").head, agent="agent-9"))
    for value in (b"rubbish", other) * 3:
        there.reader.txn([], [put(key, value)])
        assert look(there, sink) == [""]


class Deaf(Client):
    """Has its writes carried out, and hears of none."""

    def txn(self, compares, success, failure=()):
        told = super().txn(compares, success, failure)
        if len(compares) == 2:  # that of the name, and of the head
            raise Unreachable("no answer in time")
        return told


@pytest.mark.needs("etcd")
def test_what_was_carried_out_unheard_is_no_twins(there):
    there.sink().deliver(made("n1", 1))
    client = Deaf(there.urls, chance(1))
    with contextlib.closing(EtcdSink(client, there.keys, clock=there.clock)) as sink:
        for number in range(2, 8):
            report = made("n1", number, jobs=number)
            with pytest.raises(Undelivered, match="no answer in time"):
                sink.deliver(report)
            assert there.entries("n1") == report.entries
        assert sink.note == ""


def test_one_meeting_is_forgotten_and_two_are_not():
    twin = Twin()
    heads = [packing.pack(structs.replace(made("n1").head, number=n)) for n in range(1, 4)]
    twin.met(heads[0], "agent-1")
    assert not twin.note
    twin.quiet()
    twin.quiet()
    twin.met(heads[1], "agent-1")
    assert not twin.note
    twin.quiet()
    twin.met(heads[2], "agent-1")
    assert twin.note
