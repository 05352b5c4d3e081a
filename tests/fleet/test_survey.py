"""What is shown of a node is what its reader has of it."""

from __future__ import annotations

import fleets
import msgspec
import pytest
from msgspec import structs

from xce_nodeagent.cli.fleet.survey import Survey
from xce_nodeagent.cli.fleet.view import STATES, WORST, Tally, added, natural
from xce_nodeagent.upstream.claim import Live
from xce_nodeagent.upstream.fleet import Fleet, Node
from xce_nodeagent.upstream.shape import State


def shown(node: Node):
    return Survey(lambda *_: "").view(Fleet(nodes={node.name: node})).nodes[0]


def test_the_numbers_add_up_and_are_those_of_the_reader(fleet, view) -> None:
    names = {node.name: node for node in view.nodes}
    assert names.keys() == fleet.nodes.keys()
    for name, node in fleet.nodes.items():
        tallies = {one.type: one for one in added(names[name].instances)}
        assert tallies.keys() == {kind for kind, count in node.totals.items() if count.total}
        for kind, count in node.totals.items():
            one = tallies.get(kind, Tally(type=kind))
            assert sum(getattr(one, state) for state in STATES) == one.total
            assert one.total == count.total + count.reserved
            assert (one.free, one.away) == ((count.free, 0) if node.available else (0, count.free))
            assert one.unhealthy == count.total - count.healthy


def test_an_instance_is_in_the_state_that_its_inventory_shows(fleet, view) -> None:
    names = {node.name: node for node in view.nodes}
    for name, node in fleet.nodes.items():
        inventory = node.inventory
        assert inventory is not None
        ill = {one.id for one in inventory.instances if not one.healthy or one.drained}
        assert {one.id for one in names[name].wrong} == ill


def test_states_of_nodes_are_the_worst_of_what_they_are(view) -> None:
    states = {node.name: node.state for node in view.nodes}
    assert states[fleets.name(0)] == "ok"
    assert states[fleets.name(5)] == "unhealthy"
    assert states[fleets.name(11)] == "drained"
    assert states[fleets.name(17)] == "stale"
    one = next(fleets.nodes(1))
    for fault in ("head: number -1 is negative", "binding/two agents/1: it is of job 'x'"):
        assert shown(structs.replace(one, faults=(fault,))).state == "faulty"
    rival = Live(agent="other", boot_id="b2", node=one.name)
    twin = structs.replace(one, rivals=(rival,))
    assert (shown(twin).state, shown(twin).rivals) == ("two agents", ("agent other (boot b2)",))
    named = structs.replace(one, rivals=(structs.replace(rival, host="rack1-b"),))
    assert shown(named).rivals == ("agent other of host rack1-b (boot b2)",)
    assert shown(structs.replace(twin, faults=("x",))).state == "faulty"
    assert one.head is not None
    copied = structs.replace(one, rivals=(structs.replace(rival, agent=one.head.agent),))
    assert shown(copied).rivals == ("boot b2 of a host with the same agent id",)
    assert shown(copied).complaints == (f"{shown(copied).rivals[0]} claims its name, too",)
    assert shown(Node(name="x", faults=("there is no head",))).state == "unreadable"
    gone = structs.replace(one, available=False)
    assert shown(structs.replace(gone, shape=None, faults=("no shape",))).state == "unreadable"
    assert WORST[-1] == "ok"


def test_a_card_that_is_cut_shows_what_its_slices_do() -> None:
    at = next(at for at in range(200) if "mig" in next_node(at).totals and at % 4 == 2)
    node = shown(next_node(at))
    slices = next(one for one in added(node.instances) if one.type == "mig")
    assert slices.held > 0
    assert "p" in node.cards
    cards = next(one for one in added(node.instances) if one.type == "gpu")
    assert len(node.cards) == cards.total
    cut = {one.parent for one in next_node(at).inventory.instances if one.type == "mig"}
    assert cards.divided == len(cut) > 0, "the cut ones are not for jobs"
    assert (cards.reserved, cards.usable) == (0, cards.total - len(cut))


def next_node(at: int) -> Node:
    return list(fleets.nodes(at + 1))[at]


def test_a_sick_card_and_a_held_one_have_letters_of_their_own() -> None:
    sick, held, gone = next_node(5), next_node(2), next_node(17)
    assert shown(sick).cards == "ufffffff"
    assert sorted(shown(held).cards) == sorted("fffffhhh")
    assert shown(gone).cards == "a" * 8


def test_what_did_not_change_is_not_made_again(fleet) -> None:
    survey = Survey(lambda *_: "")
    first = survey.view(fleet)
    name = fleets.name(3)
    changed = structs.replace(fleet.nodes[name], states={"x": State(drained=True)})
    other = structs.replace(fleet, nodes={**fleet.nodes, name: changed})
    second = survey.view(other, "the store is away")
    same = [one is two for one, two in zip(first.nodes, second.nodes, strict=True)]
    assert same.count(False) == 1
    assert second.outdated == "the store is away"


def test_nodes_are_in_the_order_in_which_people_count() -> None:
    names = ["n10", "n9", "rack2-n1", "rack10-n1", "n1a", "n1"]
    ordered = ["n1", "n1a", "n9", "n10", "rack2-n1", "rack10-n1"]
    assert sorted(names, key=natural) == ordered
    assert natural("9" * 5000)
    assert sorted(["1", "a", "", "²"], key=natural)


@pytest.mark.parametrize("model", ["\x1b[31mred", ["a", 1], True])
def test_whatever_a_model_is_it_is_shown_and_not_obeyed(model) -> None:
    node = next(fleets.nodes(1))
    assert node.shape is not None
    rows = tuple(
        structs.replace(row, attributes={**row.attributes, "model": model})
        for row in node.shape.rows
    )
    evil = structs.replace(node, shape=structs.replace(node.shape, rows=rows), shape_hash="evil")
    assert all(one.model.isprintable() for one in shown(evil).instances)


def test_a_node_whose_shape_refers_to_nothing_is_shown_without_instances() -> None:
    """The reader gives none of these: it tells them as faults."""
    node = next(fleets.nodes(1))
    assert node.shape is not None
    rows = tuple(
        structs.replace(row, overlaps=("#99999", "#x", "3", "#"), parent="#-1", type="mig")
        for row in node.shape.rows
    )
    evil = structs.replace(node, shape=structs.replace(node.shape, rows=rows), shape_hash="evil")
    assert {one.type for one in shown(evil).instances} == {"ports"}, "which its head counts"
    msgspec.json.encode(shown(evil))


def test_what_others_wrote_is_cut_and_shown_and_not_obeyed() -> None:
    evil = "\x1b]0;x\x07" + "y" * 5000
    node = structs.replace(next(fleets.nodes(6)), faults=(evil,))
    states = {"GPU": State(healthy=False, reason=evil)}
    view = Survey(lambda *_: evil).view(
        Fleet(nodes={"n": structs.replace(node, states=states)}, faults=(evil,)), evil
    )
    told = msgspec.json.encode(view).decode()
    assert "\\u001b" not in told
    assert "\\u0007" not in told
    assert len(max(told.split('"'), key=len)) < 500
