"""A fleet's values: what a reader makes of reports, counted and put together again."""

from __future__ import annotations

import fleets
import msgspec
import pytest
from msgspec import structs

from xce_nodeagent import placement
from xce_nodeagent.errors import AgentError
from xce_nodeagent.model.instance import Holder
from xce_nodeagent.model.inventory import with_holders
from xce_nodeagent.model.request import parse
from xce_nodeagent.upstream.fleet import Count, Fleet, Node
from xce_nodeagent.upstream.reading import unavailable

NODES = 120


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return fleets.fleet(NODES)


def nodes(fleet: Fleet) -> dict[int, Node]:
    return {at: fleet.nodes[fleets.name(at)] for at in range(NODES)}


def test_every_inventory_is_put_together_as_its_node_has_it(fleet: Fleet) -> None:
    for at, node in nodes(fleet).items():
        expected = structs.replace(fleets.inventory(at), source="store")
        holders: dict[str, list[Holder]] = {}
        for one in fleets.bindings(at, expected):
            for held in one.instances:
                holders.setdefault(held, []).append(Holder(one.job, one.attempt))
        assert node.faults == ()
        assert msgspec.to_builtins(node.inventory) == msgspec.to_builtins(
            with_holders(expected, holders)
        )


def test_what_is_free_is_what_placement_would_give(fleet: Fleet) -> None:
    """One more than `free` never fits, and `free` always does."""
    seen = set()
    for node in list(nodes(fleet).values())[::3]:
        inventory = node.inventory
        assert inventory is not None
        held = unavailable(node, inventory)
        for kind, count in node.totals.items():
            if kind == "ports":
                continue
            seen.add((kind, count.free > 0, count.held > 0))
            request = parse(f"rusage[{kind}={count.free}]")
            chosen = placement.choose(inventory, request, unavailable=held)
            assert len(chosen.instances) == count.free
            more = parse(f"rusage[{kind}={count.free + 1}]")
            with pytest.raises(AgentError):
                placement.choose(inventory, more, unavailable=held)
    assert {("gpu", True, True), ("mig", True, True), ("nic", True, False)} <= seen


def test_the_counts_of_a_fleet(fleet: Fleet) -> None:
    there = [node for node in fleet.nodes.values() if node.available]
    assert len(there) == NODES - sum(map(fleets.is_stale, range(NODES)))
    for kind, total in fleet.totals.items():
        assert total == sum((n.totals.get(kind, Count()) for n in there), Count())
        assert total.free <= total.healthy <= total.total
    assert fleet.totals["gpu"].held
    assert fleet.totals["ports"].held == 2 * sum(len(n.bindings) == 2 for n in there)


def test_the_digest_is_of_reports_and_not_of_liveness(fleet: Fleet) -> None:
    name, node = next(iter(fleet.nodes.items()))
    asleep = structs.replace(fleet, nodes={**fleet.nodes, name: fleets.away(node)})
    assert asleep.digest == fleet.digest
    backwards = dict(reversed(list(fleet.nodes.items())))
    assert structs.replace(fleet, nodes=backwards).digest == fleet.digest
    assert node.head is not None
    other = structs.replace(node, head=structs.replace(node.head, report="0" * 64))
    assert structs.replace(fleet, nodes={**fleet.nodes, name: other}).digest != fleet.digest
