"""Which nodes are shown, in which order, and which are alike."""

from __future__ import annotations

import fleets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.cli.fleet.order import (
    KEYS,
    Wanted,
    chosen,
    exceptional,
    few,
    groups,
    ordered,
    shape,
)
from xce_nodeagent.cli.fleet.view import FleetView, NodeView, added, summary

_FEW = ("gpu", "nic")


def names(nodes) -> list[str]:
    return [node.name for node in nodes]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_sort_keeps_every_node(view: FleetView, key: str, reverse: bool) -> None:
    assert sorted(names(ordered(view.nodes, key, reverse=reverse))) == sorted(names(view.nodes))


def test_most_and_worst_come_first(view: FleetView) -> None:
    assert ordered(view.nodes, "state")[0].state == "stale"
    assert ordered(view.nodes, "unhealthy")[0].state == "unhealthy"
    held = [sum(one.held for one in node.instances) for node in ordered(view.nodes, "jobs")]
    assert held[0] > 0
    assert held[-1] == 0
    free = [{one.type: one.free for one in added(n.instances)} for n in ordered(view.nodes, "free")]
    assert free[0]["gpu"] == 8
    changed = [node.reported for node in ordered(view.nodes, "changed")]
    assert changed == sorted(changed, reverse=True)
    assert names(ordered(view.nodes, "name"))[:2] == [fleets.name(0), fleets.name(1)]


def test_a_filter_keeps_what_was_asked_for_and_nothing_else(view: FleetView) -> None:
    def kept(**asked) -> list[NodeView]:
        found = chosen(view.nodes, Wanted(**asked))
        assert found
        return list(found)

    assert {node.state for node in kept(stale=True)} == {"stale"}
    assert {node.state for node in kept(unhealthy=True)} == {"unhealthy"}
    for node in kept(free=(("gpu", 8), ("nic", 12))):
        free = {one.type: one.free for one in added(node.instances)}
        assert (free["gpu"], free["nic"]) == (8, 12)
    assert all(node.name.startswith("r001-") for node in kept(names=("r001-*", "nothing")))
    assert {node.block for node in kept(blocks=("b0[01]",))} == {"b00", "b01"}
    assert not chosen(view.nodes, Wanted(free=(("gpu", 1), ("fpga", 1))))
    assert chosen(view.nodes, Wanted()) == view.nodes
    assert not Wanted()
    assert Wanted(stale=True)


@given(data=st.data(), by_block=st.booleans())
def test_every_node_is_in_one_group(view: FleetView, data: st.DataObject, by_block: bool) -> None:
    some = data.draw(st.lists(st.sampled_from(view.nodes), unique_by=lambda node: node.name))
    found = groups(some, by_block=by_block)
    assert sum(group.nodes for group in found) == len(some)
    assert len({(group.block, group.shape) for group in found}) == len(found)
    assert added(one for group in found for one in group.instances) == summary(some).instances
    for group in found:
        assert sum(count for _, count in group.states) == group.nodes


def test_what_is_exceptional_is_what_somebody_should_look_at(view: FleetView) -> None:
    found = exceptional(view.nodes)
    assert {node.state for node in found} == {"stale", "unhealthy"}
    assert found[0].state == "stale"


def test_a_shape_is_told_in_the_words_of_its_cards(view: FleetView) -> None:
    told = {shape(node, short=True) for node in view.nodes}
    assert "8 H100 80GB HBM3" in told
    assert "8 A100-SXM4-80GB, 13 mig" in told
    assert "no cards" in told


@pytest.mark.parametrize("count", [0, 1, 4, 5, 99])
def test_of_many_exceptions_each_kind_is_shown(view: FleetView, count: int) -> None:
    every = exceptional(view.nodes)
    found = few(every, count)
    assert len(found) == min(count, len(every))
    assert [node for node in every if node in found] == list(found), "in their order"
    shown = [node.state for node in found]
    assert abs(shown.count("stale") - shown.count("unhealthy")) <= 1
