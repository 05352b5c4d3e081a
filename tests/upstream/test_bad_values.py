"""The mirror, and values that no honest agent writes."""

from __future__ import annotations

import zlib
from typing import Any

import fleets
import msgspec
import pytest
from bad import BAD, STATIC, WORTHLESS
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from reader import GRACE, KEYS, NODES, Reader, entry, live, node, state

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.mirror import MOST_RIVALS, SETTLE, Change, Mirror
from xce_nodeagent.upstream.record import MOST_ENTRIES
from xce_nodeagent.upstream.report import Head, digest


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


@pytest.mark.parametrize("levels", [100, 900, 100_000])
def test_a_topology_without_end_stops_nobody(levels: int) -> None:
    reader = Reader(state())
    shape = packing.plain(fleets.reported(2).shape_data)
    deep = b'{"a":' * levels + b"1" + b"}" * levels
    data = shape[:-1] + b',"topology":' + deep + b"}"
    reader.put(KEYS.shape(packing.digest(data)), data)
    reader.put(entry(2, "static"), packing.pack({**STATIC, "shape": packing.digest(data)}))
    found = reader.fleet(later=SETTLE + 1)
    assert not node(found, 2).eligible
    assert node(found, 2).inventory is None or levels == 100
    assert sum(one.eligible for one in found.nodes.values()) > NODES - 5


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


def test_two_agents_of_one_name_are_told_and_who_has_it_gets_jobs() -> None:
    reader = Reader(state())
    rival = KEYS.rival(fleets.name(6), "other-agent")
    found = node(reader.put(rival, live(6, agent="other-agent"), 5), 6)
    assert (found.faults, found.eligible) == ((), True)
    assert [one.agent for one in found.rivals] == ["other-agent"]
    # A copy of its state folder on another host has its id; its own claim is no rival's.
    twin = KEYS.rival(fleets.name(6), fleets.agent(6))
    found = node(reader.put(twin, live(6, boot_id="another"), 5), 6)
    assert "another" in {one.boot_id for one in found.rivals}
    found = node(reader.put(twin, live(6), 5), 6)
    assert [one.agent for one in found.rivals] == ["other-agent"]
    found = node(reader.put(rival, b"rubbish", 5), 6)
    assert [(one.agent, one.boot_id) for one in found.rivals] == [("other-agent", "")]
    reader.take(*((KEYS.rival(fleets.name(6), f"r{at}"), b"", 5) for at in range(99)))
    assert len(node(reader.fleet(), 6).rivals) <= MOST_RIVALS
    without = [(KEYS.rival(fleets.name(6), f"r{at}"), None, 0) for at in range(99)]
    assert node(reader.take((rival, None, 0), (twin, None, 0), *without), 6).rivals == ()


def test_a_fault_of_a_report_is_one_whatever_its_words_are() -> None:
    """Here they begin as those of a fault of who has the name do."""
    reader = Reader(state())
    held = node(reader.fleet(), 34).bindings[0]
    for job in ("one", "two"):
        thing = "who has the name: nobody"
        told = structs.replace(held, job=job, attempt="1", instances=(thing,), excluded=())
        reader.put(entry(34, f"binding/{job}/1"), packing.pack(told))
    assert any(
        f"{thing} is held by" in one
        for one in reader.fleet(later=SETTLE + 1).nodes[fleets.name(34)].faults
    )


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


def test_a_fault_of_this_program_costs_one_node_alone() -> None:
    class Faulty(Mirror):
        def _read(self, name, record, *, whole, excess):
            if name == fleets.name(6):
                raise ZeroDivisionError(name)
            return super()._read(name, record, whole=whole, excess=excess)

    reader = Reader()
    reader.mirror = Faulty(KEYS, grace=GRACE)
    found = reader.list(state())
    assert node(found, 6).faults == ("a fault of this program: ZeroDivisionError: r000-n06",)
    assert sum(one.eligible for one in found.nodes.values()) > NODES - 5


def test_names_that_cannot_be_are_of_no_node() -> None:
    reader = Reader(state())
    before = reader.fleet()
    strange = (
        b"/xce/v1/node/",
        b"/xce/v1/node/a%00b/head",
        b"/xce/v1/node/%ff/head",
        b"/xce/v1/node/a%2Fb/head",
        b"/xce/v1/node/r000-n02/state%2Fx",
        b"/xce/v1/live/" + b"x" * 300,
        b"/xce/v1/shape/short",
        b"/xce/v1/\xff\xfe",
        b"/elsewhere",
    )
    found = reader.take(*((key, b"{}", 0) for key in strange))
    assert found.nodes == before.nodes
    assert "9 keys below the prefix are of no node" in found.faults[0]
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
