"""What the host keeps of its NICs, and what goes with that: decided from values alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.model.config import NicConfig
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.reservation import decided

ROUTE = "the host's default route goes out by it"


def nic(name: str, *overlaps: str, parent: str | None = None, reserved: str = "") -> Instance:
    return Instance(
        id=name, type="nic", provider="nic", overlaps=overlaps, parent=parent, reserved=reserved,
        attributes={"netdev": f"net{name}", "rdma_device": f"mlx5_{name}", "pci_address": name}
        | ({"physical_function": parent} if parent else {}),
    )  # fmt: skip


def kept(*found: Instance, **config: tuple[str, ...]) -> dict[str, str]:
    return {one.id: one.reserved for one in decided(found, NicConfig(**config)) if one.reserved}


def test_what_the_host_needs_is_kept_and_nothing_else() -> None:
    assert kept(nic("0", reserved=ROUTE), nic("1")) == {"0": ROUTE}


def test_the_other_port_of_one_device_goes_with_it() -> None:
    found = kept(nic("0", "1", reserved=ROUTE), nic("1", "0"), nic("2"))
    assert found == {"0": ROUTE, "1": "it overlaps 0, which is the host's own"}


def test_a_port_goes_with_the_virtual_function_that_the_host_needs() -> None:
    port = nic("pf", "v0", "v1")
    virtual = [nic("v0", "pf", parent="pf", reserved=ROUTE), nic("v1", "pf", parent="pf")]
    found = kept(port, *virtual)
    assert found == {"v0": ROUTE, "pf": "its virtual function v0 is the host's own"}


def test_virtual_functions_of_the_hosts_port_are_for_jobs() -> None:
    port = nic("pf", "v0", "v1", reserved=ROUTE)
    virtual = [nic("v0", "pf", parent="pf"), nic("v1", "pf", parent="pf")]
    assert kept(port, *virtual) == {"pf": ROUTE}


def test_a_site_keeps_more_and_offers_some() -> None:
    found = (nic("0", reserved=ROUTE), nic("1"), nic("2"), nic("3"))
    assert set(kept(*found, reserve=("net[12]",))) == {"0", "1", "2"}
    assert set(kept(*found, reserve=("mlx5_3",))) == {"0", "3"}
    assert "`[nic] reserve`" in kept(*found, reserve=("1",))["1"]
    assert kept(*found, offer=("*",)) == {}
    assert set(kept(*found, offer=("*",), reserve=("0",))) == {"0"}


def test_what_is_offered_draws_nothing_after_it() -> None:
    assert kept(nic("0", "1", reserved=ROUTE), nic("1", "0"), offer=("0",)) == {}


def test_a_pattern_takes_no_card_that_is_no_nic() -> None:
    card = Instance(id="GPU-1", type="gpu", provider="nvidia")
    assert decided([card], NicConfig(reserve=("*",))) == (card,)


@st.composite
def hosts(draw: st.DrawFn) -> tuple[list[Instance], NicConfig]:
    count = draw(st.integers(1, 6))
    names = [str(number) for number in range(count)]
    pairs = draw(st.sets(st.tuples(st.sampled_from(names), st.sampled_from(names))))
    overlaps: dict[str, set[str]] = {name: set() for name in names}
    for one, other in pairs:
        if one != other:
            overlaps[one].add(other)
            overlaps[other].add(one)
    found = [
        nic(
            name,
            *sorted(overlaps[name]),
            parent=draw(st.sampled_from([None, *sorted(overlaps[name])])),
            reserved=draw(st.sampled_from(["", ROUTE])),
        )
        for name in names
    ]
    some = st.lists(st.sampled_from(names), max_size=2).map(tuple)
    return found, NicConfig(offer=draw(some), reserve=draw(some))


@given(hosts())
def test_the_rules_hold_on_every_host(host: tuple[list[Instance], NicConfig]) -> None:
    found, config = host
    after = {one.id: one for one in decided(found, config)}
    offered = set(config.offer) - set(config.reserve)
    assert list(after) == [one.id for one in found]
    for one in found:
        mine = after[one.id]
        if one.id in config.reserve or (one.reserved and one.id not in offered):
            assert mine.reserved
        if one.id in offered:
            assert not mine.reserved
        if mine.reserved:
            for other in one.overlaps:
                assert after[other].reserved or other in offered or after[other].parent == one.id
    # To decide again changes nothing: what was known before may come in again.
    assert list(decided(after.values(), config)) == list(after.values())
