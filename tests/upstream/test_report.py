"""A report is taken apart and put together, and changes lead to the next, whatever is in it."""

from __future__ import annotations

import json
import string

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from states import after, binding, scanned

from xce_nodeagent.model.instance import DeviceNode, Instance
from xce_nodeagent.model.inventory import Inventory, Problem
from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.report import (
    Series,
    difference,
    digest,
    inventory_of,
    numbered,
    report,
)
from xce_nodeagent.upstream.shape import MOVING, OWN, Shape, join, split

NAMES = st.text(st.sampled_from('#/\\"% 0123\x1b' + "é€🂡ab"), min_size=1, max_size=6)
SCALARS = st.one_of(
    st.booleans(), st.integers(-(1 << 62), 1 << 62), NAMES, st.just("#0"), st.just("#01"),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
)  # fmt: skip
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=4)
WORDS = st.lists(NAMES | st.integers(0, 9), max_size=3)
KEYS = st.sampled_from([*sorted(OWN | MOVING), "model", "pci_address", "x"])
ATTRIBUTES = st.dictionaries(KEYS, SCALARS | WORDS, max_size=6)


@st.composite
def inventories(draw):
    """Give an inventory with any ids, attributes that refer to ids or look as if, and states."""
    ids = draw(st.lists(NAMES, unique=True, max_size=5))
    some = st.sampled_from(ids) if ids else st.nothing()
    instances = tuple(
        Instance(
            id=one,
            type=draw(st.sampled_from(["gpu", "nic", "mig"])),
            provider="p",
            parent=draw(st.none() | some | NAMES),
            overlaps=tuple(draw(st.lists(some | NAMES, max_size=2))),
            healthy=draw(st.booleans()),
            reason=draw(st.sampled_from(["", "XID 79"])),
            drained=draw(st.booleans()),
            changed=draw(st.integers(0, 3)),
            attributes=draw(ATTRIBUTES),
            devices=draw(
                st.sampled_from([(), (DeviceNode(path="/dev/x", type="c", major=1, minor=2),)])
            ),
        )
        for one in ids
    )
    topology = draw(st.dictionaries(NAMES, st.dictionaries(some | NAMES, TREES, max_size=2)))
    return Inventory(
        source="agent", node="n", boot_id="b", generation="b:3", topology=topology,
        attributes=draw(st.dictionaries(NAMES, TREES, max_size=2)), instances=instances,
        counters=draw(st.dictionaries(NAMES, st.integers(0, 9), max_size=2)),
        problems=draw(st.sampled_from([(), (Problem("p", "error", "r", ("gpu",)),)])),
    )  # fmt: skip


def plain(value):
    """Give it as JSON has it, keys sorted."""
    return msgspec.json.encode(value, order="sorted")


@settings(max_examples=50)
@given(inventories())
def test_join_is_the_inverse_of_split(inventory):
    parts = split(inventory)
    bare = structs.replace(
        inventory, types=(), topology={}, control={}, attributes={}, instances=()
    )
    assert plain(join(parts.shape, parts.static, parts.states, bare)) == plain(inventory)


@settings(max_examples=50)
@given(inventories(), st.lists(st.sampled_from("abcdef"), unique=True))
def test_a_reader_has_what_the_node_had(inventory, jobs):
    made = report(inventory, [binding(job) for job in jobs], agent="a")
    shape = packing.unpack(made.shape_data, Shape)
    found = inventory_of(made.entries, shape)
    assert plain(structs.replace(found, source="agent")) == plain(inventory)
    assert made.head.report == digest(made.entries)
    assert made.shape == packing.digest(made.shape_data)


@settings(max_examples=30)
@given(st.lists(st.tuples(inventories(), st.sets(st.sampled_from("abc"))), min_size=1, max_size=4))
def test_changes_lead_from_each_report_to_the_next_and_nothing_else_is_in_them(states):
    series = Series(agent="a")
    entries, before = {}, None
    for inventory, jobs in states:
        made = series.next(inventory, [binding(job) for job in sorted(jobs)])
        alone = report(inventory, made.bindings, agent="a")
        assert made == alone, "what was kept of the report before is what would be made anew"
        delta = difference(before, made)
        assert delta.after == (before.head.report if before else "")
        gone = frozenset(delta.deletes)
        entries = {name: data for name, data in entries.items() if name not in gone}
        entries |= delta.puts
        assert entries == made.entries
        assert digest(entries) == delta.head.report
        if before:
            assert all(before.entries.get(name) != data for name, data in delta.puts.items())
            assert not set(delta.deletes) & set(made.entries)
        before = made


def test_what_did_not_change_is_not_made_again():
    series = Series(agent="a")
    jobs = [binding(str(number)) for number in range(1000)]
    first = series.next(scanned(), jobs)
    jobs[500] = structs.replace(jobs[500], state="releasing")
    second = series.next(scanned(), jobs)
    made = [name for name, data in second.entries.items() if first.entries.get(name) is not data]
    assert sorted(made) == ["binding/500/", "head"]


@pytest.mark.parametrize("profile", ["dgx-h100", "dgx-a100-mig", "gb200", "mi300x"])
def test_a_card_that_turns_sick_is_a_head_and_a_state(profile):
    before = scanned(profile)
    sick = after(before, 0, healthy=False, reason="XID 79: off the bus")
    first, second = report(before, (), agent="a"), report(sick, (), agent="a")
    delta = difference(first, second)
    assert sorted(delta.puts) == ["head", f"state/{before.instances[0].id}"]
    assert not delta.deletes
    assert first.shape == second.shape
    assert sum(map(len, delta.puts.values())) < 800, "whatever the host has"


def test_hosts_of_one_kind_have_one_shape():
    def other(text):
        return text.translate(str.maketrans(string.digits, string.digits[::-1]))

    one = scanned()
    renamed = {i.id: f"GPU-{other(i.id)}" for i in one.instances if i.type == "gpu"}
    text = msgspec.json.encode(one).decode()
    for old, new in renamed.items():
        text = text.replace(old, new)
    two = msgspec.json.decode(text, type=Inventory)
    assert report(one, (), agent="a").shape == report(two, (), agent="b").shape
    assert one != two


def test_the_head_alone_has_number_and_time():
    made = report(scanned(), (), agent="a")
    told = numbered(made, 7, 9.5)
    assert difference(made, told).puts.keys() == {"head"}
    assert told.head.report == made.head.report
    head = json.loads(packing.plain(told.entries["head"]))
    assert (head["number"], head["time"]) == (7, 9.5)


def test_a_later_version_s_fields_and_entries_are_passed_over():
    made = report(scanned(), [binding("1")], agent="a")

    def newer(data):
        return packing.pack({**json.loads(packing.plain(data)), "zz_new": {"a": [1]}})

    entries = {name: newer(data) for name, data in made.entries.items()}
    entries |= {"weather": b"{}", "state/gone": b'{"healthy":false}', "binding/1/2/3": b"[]"}
    shape = packing.unpack(newer(made.shape_data), Shape)
    found = inventory_of(entries, shape)
    assert plain(structs.replace(found, source="agent")) == plain(scanned())
    assert digest(entries) != made.head.report, "and yet nothing is out of the digest's sight"


def test_nothing_of_a_job_s_environment_is_told():
    made = report(scanned(), [binding("1", scanned().instances[0].id)], agent="a")
    told = json.loads(packing.plain(made.entries["binding/1/"]))
    assert told.keys() <= {
        "job", "attempt", "state", "instances", "excluded", "ports", "uid", "generation", "since",
        "reason", "doubtful",
    }  # fmt: skip
