"""What instances are there for, counted: each once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from export.conftest import gpu, inventory
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.export.stock import STATES, stock
from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.plan import HoldPort, Plan


def _binding(*instances: str, state: str = "bound", ports: int = 0, **fields: Any) -> Binding:
    values = {"attempt": "", "asks": (), "excluded": (), "generation": "", "enforcement": "off"}
    steps = tuple(HoldPort(f"ports-{n}", n, "") for n in range(ports))
    return Binding(
        job=f"j{instances}{state}",
        state=state,
        instances=instances,
        since=0.0,
        changed=0.0,
        plan=Plan(steps),
        **values | fields,
    )


def _of(found, kind: str) -> dict[str, int]:
    return {state: found.states[kind, state] for state in STATES if found.states[kind, state]}


def test_each_state() -> None:
    cards = [gpu(n) for n in range(7)]
    cards[2] = gpu(2, healthy=False)
    cards[3] = gpu(3, drained=True)
    cards[4] = gpu(4, reserved="the host's")
    found = stock(
        inventory(*cards),
        [_binding("GPU-0"), _binding("GPU-1", state="quarantined"), _binding(excluded=("GPU-5",))],
    )
    assert _of(found, "gpu") == {
        "free": 1, "held": 1, "quarantined": 1, "unhealthy": 1, "drained": 1, "reserved": 1,
        "excluded": 1,
    }  # fmt: skip


def test_what_is_held_and_ill_is_held_and_counted_as_ill_beside() -> None:
    found = stock(inventory(gpu(0, healthy=False, drained=True)), [_binding("GPU-0")])
    assert _of(found, "gpu") == {"held": 1}
    assert found.unfit == {("gpu", "unhealthy"): 1, ("gpu", "drained"): 1}


def test_a_card_in_slices_is_divided_and_one_of_which_a_slice_is_held_is_excluded() -> None:
    cards = (gpu(0, overlaps=("s0",)), gpu(1, overlaps=("s1",)))
    slices = (
        gpu(2, id="s0", type="mig", parent="GPU-0", overlaps=("GPU-0",)),
        gpu(3, id="s1", type="mig", parent="GPU-1", overlaps=("GPU-1",)),
    )
    found = stock(inventory(*cards, *slices), [_binding("s1")])
    assert _of(found, "gpu") == {"divided": 1, "excluded": 1}
    assert _of(found, "mig") == {"free": 1, "held": 1}


def test_ports_are_counted_by_their_parts() -> None:
    one = gpu(0, id="ports-1", type="ports")
    host = inventory(one, counters={"ports": {"total": 100, "healthy": 98}})
    bindings = [_binding(ports=3), _binding(ports=2, state="quarantined")]
    found = stock(host, bindings)
    assert _of(found, "ports") == {"free": 93, "held": 3, "quarantined": 2, "unhealthy": 2}
    assert found.unfit["ports", "unhealthy"] == 2


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans())), st.data())
def test_the_states_of_a_type_add_up(cards, data) -> None:
    every = [
        gpu(n, healthy=healthy, drained=drained, reserved="it" if reserved else "")
        for n, (healthy, drained, reserved) in enumerate(cards)
    ]
    ids = [one.id for one in every]
    some = st.lists(st.sampled_from(ids)) if ids else st.just([])
    bindings = [
        _binding(*data.draw(some), state=state, excluded=tuple(data.draw(some)))
        for state in ("committed", "bound", "quarantined")
    ]
    found = stock(inventory(*every), bindings)
    totals = Counter({kind: 0 for kind, _ in found.states})
    for (kind, _), count in found.states.items():
        totals[kind] += count
    assert totals == Counter(one.type for one in every)
