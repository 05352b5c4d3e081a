"""The mirror: whatever order the keys come in, the same keys give the same fleet."""

from __future__ import annotations

import random
import sys
import uuid

import fleets
import msgspec
from bad import JOB, WORTHLESS
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from reader import GRACE, KEYS, NODES, WALL, Reader, entry, lasting, live, node, state

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.mirror import SETTLE, Change
from xce_nodeagent.upstream.report import difference, report


def test_it_makes_the_fleet_that_the_nodes_reported() -> None:
    found = Reader().list(state())
    expected = fleets.fleet(NODES)
    assert lasting(found) == lasting(expected)
    assert found.digest == expected.digest
    assert list(found.nodes) == sorted(found.nodes)
    assert found.faults == ()
    assert {one.since for one in found.nodes.values()} == {0.0, WALL}


def test_what_did_not_change_is_the_same_object() -> None:
    reader = Reader(state())
    before = reader.fleet()
    changed = reader.put(KEYS.live(fleets.name(3)), live(3, boot_id="7"), 8)
    assert changed.nodes is not before.nodes
    same = [name for name in before.nodes if changed.nodes[name] is before.nodes[name]]
    assert len(same) == NODES - 1
    shapes = {id(one.shape) for one in changed.nodes.values()}
    assert len(shapes) == len({one.shape_hash for one in changed.nodes.values()})
    idle = [one for one in changed.nodes.values() if not one.bindings and not one.states]
    assert len({id(one.totals) for one in idle}) <= len({one.shape_hash for one in idle})
    again = reader.list({**state(), KEYS.live(fleets.name(3)): (live(3, boot_id="7"), 8)})
    assert all(again.nodes[name] is changed.nodes[name] for name in changed.nodes)
    renewed = reader.put(KEYS.live(fleets.name(4)), live(4), 999)
    assert renewed.nodes[fleets.name(4)] is again.nodes[fleets.name(4)]


def test_an_older_fleet_never_changes() -> None:
    reader = Reader(state())
    before = reader.fleet()
    kept = msgspec.json.encode(dict(before.nodes))
    for at in range(8):
        reader.put(entry(at, "state/new"), packing.pack({"healthy": False}))
        reader.take((entry(at, "static"), None, 0))
        reader.take((KEYS.live(fleets.name(at)), None, 0))
    reader.fleet(later=2 * GRACE)
    assert msgspec.json.encode(dict(before.nodes)) == kept


# ---- liveness -----------------------------------------------------------------------------------


def test_a_lost_lease_counts_after_the_grace_time_and_a_new_one_at_once() -> None:
    reader = Reader(state())
    lost = reader.take((KEYS.live(fleets.name(1)), None, 0))
    assert (node(lost, 1).available, node(lost, 1).since) == (True, WALL)
    assert reader.mirror.due() == GRACE
    assert node(reader.fleet(later=GRACE - 0.001), 1).available
    gone = reader.fleet(later=0.002)
    assert (node(gone, 1).available, node(gone, 1).since) == (False, WALL)
    assert reader.mirror.due() == float("inf")
    back = node(reader.put(KEYS.live(fleets.name(1)), live(1), 9), 1)
    assert (back.available, back.since) == (True, 0.0)
    assert back == structs.replace(node(Reader().list(state()), 1))


def test_a_new_list_begins_no_grace_time_anew_and_ends_none() -> None:
    """After a compaction everything is listed again: who was away already stays away."""
    present = state()
    reader = Reader(present)
    without = {key: value for key, value in present.items() if key != KEYS.live(fleets.name(1))}
    reader.list(without)
    reader.fleet(later=GRACE / 2)
    reader.list(without)
    assert node(reader.fleet(later=GRACE / 2 - 1), 1).available
    assert not node(reader.fleet(later=2), 1).available
    reader.list(without)
    assert not node(reader.fleet(), 1).available


# ---- reports that are not whole -----------------------------------------------------------------


def changed_report(at: int) -> list[Change]:
    """Give the next report of a node: a card more is drained."""
    found = fleets.inventory(at)
    first = structs.replace(found.instances[0], drained=True, reason="tried")
    after = structs.replace(found, instances=(first, *found.instances[1:]))
    made = report(after, fleets.bindings(at, found), agent=fleets.agent(at))
    puts = difference(fleets.reported(at), made).puts
    return [(entry(at, name), data, 0) for name, data in sorted(puts.items(), reverse=True)]


def test_a_report_in_several_transactions_is_seen_when_it_is_whole() -> None:
    reader = Reader(state())
    before = node(reader.fleet(), 4)
    first, *rest = changed_report(4)
    assert node(reader.take(first), 4) == before
    after = node(reader.take(*rest), 4)
    assert after.totals["gpu"].drained == 1
    assert after.faults == ()


def test_a_report_that_stays_torn_is_a_fault_that_goes_away() -> None:
    reader = Reader(state())
    first, *rest = changed_report(4)
    reader.take(first)
    assert node(reader.fleet(later=SETTLE - 0.1), 4).faults == ()
    torn = node(reader.fleet(later=0.2), 4)
    assert torn.available
    assert not torn.eligible
    assert "are not those that its head names" in torn.faults[0]
    assert torn.totals["gpu"].drained == 1
    assert node(reader.take(*rest), 4).eligible


def test_a_new_reader_does_not_trust_half_a_report() -> None:
    half = {**state(), entry(4, "state/x"): (packing.pack({}), 0)}
    assert not node(Reader().list(half), 4).eligible


# ---- algebra ------------------------------------------------------------------------------------

FEW = 6
FINAL = state(FEW)


def test_names_of_entries_go_with_them() -> None:
    """Some Pythons keep what is interned for ever; and what each node has is one object."""
    reader = Reader(state(2))
    name = f"binding/{uuid.uuid4()}/1"
    reader.put(entry(1, name), b"{}")
    fleet = reader.fleet(SETTLE)  # its head does not have it
    assert name in node(fleet, 1).entries
    assert sys.intern(name) is name
    one, other = (next(k for k in node(fleet, at).entries if k == "static") for at in (0, 1))
    assert one is other


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.data())
def test_any_order_that_ends_alike_gives_the_same_fleet(seed: int, data: st.DataObject) -> None:
    """Keys come one by one, are replaced by rubbish and put right, vanish, and come back."""
    chance = random.Random(seed)  # noqa: S311  # a history that can be told again
    history: list[Change] = []
    final = dict(FINAL)
    if data.draw(st.booleans()):
        final[entry(chance.randrange(FEW), chance.choice(("head", "static", JOB)))] = (
            chance.choice(WORTHLESS),
            0,
        )
    keys = list(final)
    chance.shuffle(keys)
    for key in keys:
        for _ in range(chance.randrange(3)):
            value = chance.choice([None, *WORTHLESS])
            history += [(key, value, chance.choice((0, 7)))]
    history += [(key, *final[key]) for key in keys]
    extra = KEYS.entry(fleets.name(1), "state/gone")
    history += [(extra, b"{}", 0), (extra, None, 0)]
    reader = Reader()
    at = 0
    while at < len(history):
        step = chance.randrange(1, 30)
        reader.mirror.apply(history[at : at + step], now=reader.now, wall=WALL)
        at = min(at + step, len(history))
        if chance.random() < 0.3:
            reader.fleet(later=chance.random() * 10)
        if chance.random() < 0.05:
            reader.list({key: value for key, value in final.items() if chance.random() < 0.8})
            history += [(key, *value) for key, value in final.items()]
    reader.fleet()
    once = Reader(final)
    once.fleet()
    later = max(GRACE, SETTLE) + 1
    found, expected = reader.fleet(later=later), once.fleet(later=later)
    assert lasting(found) == lasting(expected)
    assert found.digest == expected.digest
    assert list(found.nodes) == list(expected.nodes)
