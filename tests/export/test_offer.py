from __future__ import annotations

from export.conftest import gpu, inventory
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from xce_nodeagent.export.counter import counters
from xce_nodeagent.export.offer import offered, usable
from xce_nodeagent.model.instance import Instance


def _graph(edges: set[frozenset[int]], count: int) -> list[Instance]:
    near: dict[int, set[int]] = {number: set() for number in range(count)}
    for edge in edges:
        if len(edge) == 2:
            one, other = edge
            near[one].add(other)
            near[other].add(one)
    return [
        gpu(number, type="fpga", overlaps=tuple(f"GPU-{other}" for other in sorted(near[number])))
        for number in range(count)
    ]


_GRAPHS = st.builds(
    _graph, st.sets(st.frozensets(st.integers(0, 7), min_size=2, max_size=2)), st.just(8)
)


@given(_GRAPHS)
def test_no_two_that_are_offered_share_silicon(instances: list[Instance]) -> None:
    offer = offered(inventory(*instances))
    kept = {one.id for one in offer.instances}
    assert all(not kept.intersection(one.overlaps) for one in offer.instances)
    # And nothing is left out for nothing.
    assert all(kept.intersection(one.instance.overlaps) for one in offer.left_out)
    assert len(offer.instances) + len(offer.left_out) == len(instances)


@given(_GRAPHS, st.sets(st.integers(0, 7)))
def test_counters_allow_just_what_does_not_overlap(
    instances: list[Instance], chosen: set[int]
) -> None:
    every = [one for group in counters(instances) for one in group]
    ids = {f"GPU-{number}" for number in chosen}
    fits = all(sum(one.takes.get(who, 0) for who in ids) <= one.units for one in every)
    apart = all(not ids.intersection(one.overlaps) for one in instances if one.id in ids)
    assert fits == apart


def test_what_no_job_can_have_is_left_out_with_its_reason() -> None:
    offer = usable(
        inventory(
            gpu(0),
            gpu(1, healthy=False, reason="XID 79"),
            gpu(2, drained=True),
            gpu(3, reserved="for the display"),
        )
    )
    assert [one.id for one in offer.instances] == ["GPU-0"]
    assert {one.instance.id: one.why for one in offer.left_out} == {
        "GPU-1": "it is unhealthy: XID 79",
        "GPU-2": "it is drained",
        "GPU-3": "the host keeps it: for the display",
    }


def test_a_card_that_is_cut_is_left_out_also_when_its_slices_are() -> None:
    card = gpu(0, overlaps=("MIG-1",))
    slice_ = gpu(1, id="MIG-1", type="mig", parent="GPU-0", overlaps=("GPU-0",), healthy=False)
    assert offered(inventory(card, slice_)).instances == ()


def test_shares_stay_beside_their_card() -> None:
    card = gpu(0, overlaps=("s0", "s1"))
    shares = [
        gpu(0, id=f"s{number}", type="mps", parent="GPU-0", overlaps=("GPU-0",), mps_percent=50)
        for number in range(2)
    ]
    assert len(offered(inventory(card, *shares)).instances) == 3


def test_cards_are_in_the_order_of_the_bus() -> None:
    cards = [gpu(3), gpu(1), structs.replace(gpu(2), attributes={"pci_address": "10000:00:00.0"})]
    assert [one.id for one in offered(inventory(*cards)).instances] == ["GPU-1", "GPU-3", "GPU-2"]
