"""The mirror: whatever order the keys come in, and whatever is in them."""

from __future__ import annotations

import random
import sys
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

sys.path.insert(0, str(Path(__file__).parents[1]))

from upstream import fleets

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.fleet import Fleet, Node
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.mirror import MOST_ENTRIES, SETTLE, Change, Mirror
from xce_nodeagent.upstream.report import Head, difference, digest, report

KEYS = Keys()
GRACE = 60.0
NODES = 48
WALL = 1.7e9


live = fleets.live


def state(count: int = NODES) -> dict[bytes, tuple[bytes, int]]:
    return fleets.state(count, KEYS)


class Reader:
    """A mirror, and a clock that a test turns."""

    def __init__(self, start: dict[bytes, tuple[bytes, int]] | None = None) -> None:
        self.mirror = Mirror(KEYS, grace=GRACE)
        self.now = 0.0
        if start is not None:
            self.list(start)

    def list(self, found: dict[bytes, tuple[bytes, int]]) -> Fleet:
        listed = [(key, *rest) for key, rest in found.items()]
        self.mirror.reset(listed, now=self.now, wall=WALL + self.now)
        return self.fleet()

    def take(self, *changes: Change) -> Fleet:
        self.mirror.apply(changes, now=self.now, wall=WALL + self.now)
        return self.fleet()

    def put(self, key: bytes, value: bytes, lease: int = 0) -> Fleet:
        return self.take((key, value, lease))

    def fleet(self, later: float = 0.0) -> Fleet:
        self.now += later
        return self.mirror.fleet(revision=1, cluster="c", now=self.now, wall=WALL + self.now)


def node(fleet: Fleet, at: int) -> Node:
    return fleet.nodes[fleets.name(at)]


def entry(at: int, name: str) -> bytes:
    return KEYS.entry(fleets.name(at), name)


def lasting(fleet: Fleet) -> dict[str, Node]:
    """Give the nodes without when their leases ended: that is what each reader saw."""
    return {name: structs.replace(one, since=0.0) for name, one in fleet.nodes.items()}


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
    changed = reader.put(KEYS.live(fleets.name(3)), live(3, since=7.0), 8)
    assert changed.nodes is not before.nodes
    same = [name for name in before.nodes if changed.nodes[name] is before.nodes[name]]
    assert len(same) == NODES - 1
    shapes = {id(one.shape) for one in changed.nodes.values()}
    assert len(shapes) == len({one.shape_hash for one in changed.nodes.values()})
    again = reader.list({**state(), KEYS.live(fleets.name(3)): (live(3, since=7.0), 8)})
    assert all(again.nodes[name] is changed.nodes[name] for name in changed.nodes)


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


# ---- bad input ----------------------------------------------------------------------------------


def head(at: int, **more: Any) -> bytes:
    return packing.pack(structs.replace(fleets.reported(at).head, **more))


def deep(levels: int) -> bytes:
    return b'{"counters":' + b'{"a":' * levels + b"1" + b"}" * levels + b"}"


STATIC = msgspec.json.decode(packing.plain(fleets.reported(2).entries["static"]))
JOB = "binding/1002.0/1"

BAD = {
    "garbage": ("head", b"\x00\xff garbage", "not a Head"),
    "empty": ("head", b"", "not a Head"),
    "another type": ("head", b"[1,2]", "not a Head"),
    "no UTF-8": ("head", b'{"node":"\xff"}', "not a Head"),
    "deep": ("head", deep(100_000), "not a Head"),
    "future": ("head", head(2, version=9, least=9), "needs a reader of version 9"),
    "another node's": ("head", head(2, node="r000-n03"), "it is of node 'r000-n03'"),
    "generation": ("head", head(2, generation="x:y"), "no generation of boot"),
    "negative number": ("head", head(2, number=-1), "is negative"),
    "negative counter": ("head", head(2, counters={"gpu": {"total": -1}}), "'gpu' is no amount"),
    "bomb": ("static", zlib.compress(b" " * (64 << 20)), "more than 4194304 bytes"),
    "huge": ("static", b"{" + b" " * (5 << 20) + b"}", "at most 4194304 are read"),
    "cut short": ("static", fleets.reported(2).entries["static"][:-9], "cut short"),
    "no such shape": ("static", packing.pack({**STATIC, "shape": "0" * 64}), "not in the store"),
    "fewer": ("static", packing.pack({**STATIC, "ids": STATIC["ids"][1:]}), "but its shape has"),
    "one id twice": (
        "static",
        packing.pack({**STATIC, "ids": [STATIC["ids"][0]] * len(STATIC["ids"])}),
        "two instances have one id",
    ),
    "state": ("state/ff00:29:00.0", b"{", "state/ff00:29:00.0: not a State"),
    "binding": (JOB, b'{"job":1}', f"{JOB}: not a Held"),
    "another job's": (JOB, packing.pack({"job": "7", "state": "bound"}), "it is of job '7'"),
    "problems": ("problems", b"\x78\x9c", "problems: "),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_value_is_told_and_concerns_its_node_alone(what: str) -> None:
    name, value, told = BAD[what]
    reader = Reader(state())
    before = reader.fleet()
    reader.put(entry(2, name), value)
    found = reader.fleet(later=SETTLE + 1)
    bad = node(found, 2)
    assert any(told in fault for fault in bad.faults), bad.faults
    assert bad.available
    assert not bad.eligible
    assert max(map(len, bad.faults)) <= 200
    assert [n for n in before.nodes if found.nodes[n] is not before.nodes[n]] == [bad.name]
    assert bad.inventory is None or bad.inventory.node
    # And it is well again with its own value.
    own = fleets.reported(2).entries.get(name)
    assert node(reader.take((entry(2, name), own, 0)), 2) == node(before, 2)


def test_a_shape_that_is_missing_or_another_is_told_of_every_node_that_has_it() -> None:
    reader = Reader(state())
    before = reader.fleet()
    name = node(before, 0).shape_hash
    concerned = {n for n, one in before.nodes.items() if one.shape_hash == name}
    assert 1 < len(concerned) < NODES
    for value, told in (
        (None, "is not in the store"),
        (packing.pack({}), "is another: its hash is"),
        (b"rubbish", "is another"),
        (b"\x78\x9crubbish", "bytes, or cut short"),
    ):
        found = reader.take((KEYS.shape(name), value, 0))
        assert {n for n, one in found.nodes.items() if one.faults} == concerned
        assert {told in found.nodes[n].faults[0] for n in concerned} == {True}, found
        assert found.digest == before.digest
    assert reader.put(KEYS.shape(name), fleets.reported(0).shape_data).nodes == before.nodes


def test_a_shape_with_references_to_nothing_is_a_fault() -> None:
    reader = Reader(state())
    shape = msgspec.json.decode(packing.plain(fleets.reported(2).shape_data))
    shape["rows"][0]["overlaps"] = ["#99"]
    data = packing.pack(shape)
    reader.put(KEYS.shape(packing.digest(data)), data)
    reader.put(entry(2, "static"), packing.pack({**STATIC, "shape": packing.digest(data)}))
    assert "a reference to instance 99" in node(reader.fleet(later=SETTLE + 1), 2).faults[0]


def test_an_instance_that_two_bindings_hold_is_told() -> None:
    at = 34  # a host with slices
    reader = Reader(state())
    held = node(reader.fleet(), at).bindings[0]
    other = packing.pack(structs.replace(held, job="thief"))
    reader.put(entry(at, "binding/thief/1"), other)
    found = node(reader.fleet(later=SETTLE + 1), at)
    assert any("held by job" in fault and "thief" in fault for fault in found.faults)
    # The card that a held slice is made of, too.
    card = packing.pack(structs.replace(held, job="thief", instances=held.excluded, excluded=()))
    reader.put(entry(at, "binding/thief/1"), card)
    found = node(reader.fleet(), at)
    assert any("held by job" in fault and "thief" in fault for fault in found.faults)


def test_two_agents_of_one_name_are_told() -> None:
    reader = Reader(state())
    rival = KEYS.rival(fleets.name(6), "other-agent")
    found = node(reader.put(rival, live(6, agent="other-agent"), 5), 6)
    assert found.faults == (
        f"who has the name: two agents claim it: {fleets.agent(6)} has it, other-agent would",
    )
    assert node(reader.take((rival, None, 0)), 6).eligible


@pytest.mark.parametrize(
    ("value", "lease", "told"),
    [
        (b"rubbish", 5, "the sign of life is unreadable"),
        (live(7), 5, "the sign of life is of node 'r000-n07'"),
        (live(6), 0, "has no lease"),
        (live(6, agent="new"), 5, "agent new, but its report is of agent"),
        (live(6, boot_id="new"), 5, "of an earlier boot"),
    ],
)
def test_a_sign_of_life_that_is_not_the_reports_is_told(
    value: bytes, lease: int, told: str
) -> None:
    reader = Reader(state())
    found = node(reader.put(KEYS.live(fleets.name(6)), value, lease), 6)
    assert told in found.faults[0]
    assert found.available
    assert not found.eligible


def test_names_that_cannot_be_are_of_no_node() -> None:
    reader = Reader(state())
    before = reader.fleet()
    strange = (
        b"/xce/v1/node/",
        b"/xce/v1/node/a%00b/head",
        b"/xce/v1/node/%ff/head",
        b"/xce/v1/node/a%2Fb/head",
        b"/xce/v1/live/" + b"x" * 300,
        b"/xce/v1/shape/short",
        b"/xce/v1/\xff\xfe",
        b"/elsewhere",
    )
    found = reader.take(*((key, b"{}", 0) for key in strange))
    assert found.nodes == before.nodes
    assert "8 keys below the prefix are of no node" in found.faults[0]
    assert reader.take(*((key, None, 0) for key in strange)).faults == ()


def test_more_entries_than_any_host_has_are_not_read() -> None:
    reader = Reader(state())
    found = reader.take(*((entry(2, f"state/{at}"), b"{}", 0) for at in range(MOST_ENTRIES + 1)))
    assert "at most 4096 are read" in node(found, 2).faults[0]
    assert not node(found, 2).eligible


def test_fields_and_entries_of_a_later_version_are_passed_over() -> None:
    """What an older reader would misunderstand raises `least`; all else it can leave aside."""
    known = fleets.reported(2)
    entries = {**known.entries, "weather/today": b'{"rain":true}'}
    made = packing.unpack(known.entries["head"], dict[str, Any])
    entries["head"] = packing.pack({**made, "version": 7, "mood": [1], "report": digest(entries)})
    reader = Reader(state())
    found = node(reader.take(*((entry(2, n), data, 0) for n, data in entries.items())), 2)
    assert found.eligible
    assert found.totals == node(Reader().list(state()), 2).totals
    assert packing.unpack(known.entries["head"], Head).version == 1


# ---- algebra ------------------------------------------------------------------------------------

FEW = 6
FINAL = state(FEW)
WORTHLESS = [value for _, value, _ in BAD.values() if len(value) < 10_000]


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


NAMES = st.sampled_from(["head", "static", "problems", "state/a", "binding/1/2", "binding/1", "x"])
VALUES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(WORTHLESS),
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inside: (
            st.lists(inside, max_size=3)
            | st.dictionaries(
                st.sampled_from(["node", "shape", "ids", "own", "rows", "type", "job", "changed"]),
                inside,
            )
        ),
        max_leaves=10,
    ).map(packing.pack),
    st.builds(zlib.compress, st.binary(max_size=40)),
)
ANY_KEY = st.one_of(
    st.binary(max_size=30),
    st.builds(KEYS.entry, st.sampled_from(["n1", "n2", "\n"]), NAMES),
    st.sampled_from([KEYS.live("n1"), KEYS.rival("n1", "a"), KEYS.shape("0" * 64)]),
)


@settings(max_examples=150)
@given(st.lists(st.tuples(ANY_KEY, st.none() | VALUES, st.integers(-1, 2)), max_size=30))
def test_rubbish_never_raises(changes: list[Change]) -> None:
    reader = Reader(state(2))
    for change in changes:
        reader.take(change)
    found = reader.fleet(later=SETTLE + GRACE + 1)
    for one in found.nodes.values():
        assert one.inventory is None or one.inventory.node
        assert one.static is None or one.static.ids is not None
    assert found.digest
    assert found.totals is not None
