"""A choice over a fleet: which node, which of its instances, and why not the others."""

from __future__ import annotations

import random

import fleets
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from xce_nodeagent import placement
from xce_nodeagent.errors import BadRequest, NeverFits, NoFitNow
from xce_nodeagent.model.request import parse
from xce_nodeagent.upstream.assignment import AWAY, DOUBTED, assign, fits
from xce_nodeagent.upstream.claim import Live
from xce_nodeagent.upstream.fleet import Fleet
from xce_nodeagent.upstream.reading import unavailable

NODES = 160


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return fleets.fleet(NODES)


def test_the_node_with_the_fewest_left_over_is_taken(fleet: Fleet) -> None:
    found = fits(fleet, parse("rusage[gpu=4]"))
    left = [node.totals["gpu"].free - 4 for node in found.nodes]
    assert left == sorted(left)
    assert left[0] == 0
    assert assign(fleet, parse("rusage[gpu=4]")).node == found.nodes[0].name


def test_a_node_whose_name_another_agent_claims_gets_jobs(fleet: Fleet) -> None:
    """It is fenced by its lease; a clone that boots somewhere costs no node."""
    name = assign(fleet, parse("rusage[gpu=4]")).node
    rival = Live(agent="clone", boot_id="b2", node=name)
    twin = structs.replace(fleet.nodes[name], rivals=(rival,))
    there = structs.replace(fleet, nodes={**fleet.nodes, name: twin})
    assert assign(there, parse("rusage[gpu=4]")) == assign(fleet, parse("rusage[gpu=4]"))


def test_who_needs_no_card_takes_none_away(fleet: Fleet) -> None:
    got = fleet.nodes[assign(fleet, parse("rusage[nic=2]")).node]
    assert "gpu" not in got.totals
    assert all(count.free >= 2 for kind, count in got.totals.items() if kind == "nic")


@pytest.mark.parametrize(
    "text", ["rusage[gpu=1]", "rusage[gpu=8:nic=8]", "rusage[mig=2]", "rusage[gpu=2:mig=1]"]
)
def test_what_is_assigned_is_free_and_is_what_its_agent_would_choose(
    fleet: Fleet, text: str
) -> None:
    got = assign(fleet, parse(text))
    node = fleet.nodes[got.node]
    inventory = node.inventory
    assert inventory is not None
    assert node.head is not None
    assert got.generation == node.head.generation
    for one in map(inventory.by_id().__getitem__, got.instances):
        assert one.healthy
        assert not one.drained
        assert not one.held_by
    taken = unavailable(node, inventory)
    assert got.instances == placement.choose(inventory, parse(text), unavailable=taken).instances


def test_one_after_another_until_all_are_given_away(fleet: Fleet) -> None:
    """What was given away is given once, and all that is free of a node can be given."""
    some = {name: node for name, node in fleet.nodes.items() if "mig" in node.totals}
    few = structs.replace(fleet, nodes=dict(list(some.items())[:5]))
    free = sum(node.totals["mig"].free for node in few.nodes.values() if node.eligible)
    request = parse("rusage[mig=1]")
    given: dict[str, set[str]] = {}
    for _ in range(free):
        got = assign(few, request, given=given)
        assert given.get(got.node, set()).isdisjoint(got.instances)
        given.setdefault(got.node, set()).update(got.instances)
    assert free > 40
    with pytest.raises(NoFitNow, match="5 mig: not so many are free"):
        assign(few, request, given=given)


def test_every_node_that_does_not_fit_is_counted_with_its_reason(fleet: Fleet) -> None:
    doubted = structs.replace(fleet.nodes["r000-n00"], faults=("torn",))
    some = structs.replace(fleet, nodes={**fleet.nodes, "r000-n00": doubted})
    found = fits(some, parse("rusage[gpu=8]"))
    assert len(found.nodes) + sum(found.reasons.values()) == NODES
    assert found.reasons[AWAY] == sum(map(fleets.is_stale, range(NODES)))
    assert found.reasons[DOUBTED] == 1
    assert found.reasons["gpu: not so many are free"] > 10
    assert found.reasons["gpu: it has not so many"] > 10
    assert doubted not in found.nodes


def test_never_is_said_only_where_no_node_could(fleet: Fleet) -> None:
    with pytest.raises(NeverFits, match="none of 160 nodes has so much"):
        assign(fleet, parse("rusage[gpu=9]"))
    cut = {name: node for name, node in fleet.nodes.items() if "mig" in node.totals}
    with pytest.raises(NeverFits):  # five of its eight cards are whole
        assign(structs.replace(fleet, nodes=cut), parse("rusage[gpu=6]"))
    asleep = {name: fleets.away(node) for name, node in fleet.nodes.items()}
    with pytest.raises(NoFitNow, match="160 no sign of life"):
        assign(structs.replace(fleet, nodes=asleep), parse("rusage[gpu=1]"))
    with pytest.raises(NoFitNow, match="no nodes"):
        assign(Fleet(), parse("rusage[gpu=1]"))
    with pytest.raises(BadRequest, match="--ports"):
        assign(fleet, parse("rusage[ports=1]"))


FLEET = fleets.fleet(40)


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 4))
def test_the_order_in_which_nodes_came_decides_nothing(seed: int, gpus: int, nics: int) -> None:
    fleet = FLEET
    names = list(fleet.nodes)
    random.Random(seed).shuffle(names)  # noqa: S311  # an order that can be had again
    shuffled = structs.replace(fleet, nodes={name: fleet.nodes[name] for name in names})
    request = parse(f"rusage[gpu={gpus}:nic={nics}]")
    assert fits(shuffled, request) == fits(fleet, request)
    assert assign(shuffled, request) == assign(fleet, request)
