"""Which NIC is on which rail by the structure of a host, and where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from topology.rails import CONNECTX, STORAGE, below, rail_optimized, rails
from topology.trees import card, function, machine

from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.rail import Rails, with_rails
from xce_nodeagent.model.request import parse
from xce_nodeagent.placement import choose


def test_each_gpu_has_its_own_nic() -> None:
    found = rails(rail_optimized())
    assert found.by == "structure"
    assert found.nics == {f"0000:{n}3:00.0": n - 1 for n in range(1, 5)}
    assert found.gpus == {f"0000:{n}1:00.0": n - 1 for n in range(1, 5)}


@pytest.mark.parametrize(
    "other",
    [
        {"model": "ConnectX-6 Lx"},
        {"board_id": "another"},
        {"bond": "bond0"},
        {"rdma_device": ""},
    ],
)
def test_a_nic_of_another_kind_that_is_as_near_is_on_no_rail(other: dict[str, Any]) -> None:
    found = rails(rail_optimized(extra=[(1, STORAGE, CONNECTX | other)]))
    assert found.nics == rails(rail_optimized()).nics


def test_a_board_is_told_apart_by_its_subsystem_too() -> None:
    inventory = rail_optimized(extra=[(1, STORAGE, CONNECTX)])
    inventory.topology["pci"][STORAGE]["subsystem_device"] = "0042"
    assert rails(inventory).nics == rails(rail_optimized()).nics


def test_a_card_of_two_ports_is_of_another_kind_than_cards_of_one() -> None:
    extra = [(1, STORAGE, CONNECTX), (1, STORAGE[:-1] + "1", CONNECTX)]
    assert rails(rail_optimized(extra=extra)).nics == rails(rail_optimized()).nics


def test_where_two_could_be_a_gpus_own_neither_is_and_the_others_keep_theirs() -> None:
    found = rails(rail_optimized(extra=[(1, STORAGE, CONNECTX)]))
    assert found.nics == {f"0000:{n}3:00.0": n - 1 for n in (1, 3, 4)}
    assert found.gpus["0000:21:00.0"] == 1


def test_of_two_kinds_the_faster_one_that_knows_rdma_makes_the_rails() -> None:
    slow = {"vendor": "intel", "model": "E810", "speed_mbps": 25_000}
    extra = [(at, f"0000:{at + 1}5:00.0", slow) for at in range(4)]
    assert rails(rail_optimized(extra=extra)).nics == rails(rail_optimized()).nics
    twins = [(at, one, CONNECTX | {"model": "ConnectX-6"}) for at, one, _ in extra]
    assert rails(rail_optimized(extra=twins)) == Rails()


def test_a_port_that_is_down_or_of_another_link_layer_stays_on_its_rail() -> None:
    """On a DGX A100 some ports are InfiniBand and some Ethernet, as somebody configured them."""
    inventory = rail_optimized()
    changed = [
        structs.replace(one, attributes={**one.attributes, **more})
        for one, more in zip(
            inventory.instances,
            ({}, {"state": "down"}, {}, {"link_layer": "ethernet", "speed_mbps": 1}) * 2,
            strict=True,
        )
    ]
    assert rails(structs.replace(inventory, instances=tuple(changed))) == rails(inventory)


@given(st.integers(3, 8), st.data())
def test_a_nic_that_is_gone_takes_no_number_from_the_others(count: int, data: Any) -> None:
    whole = rail_optimized(count)
    gone = data.draw(st.sampled_from([one.id for one in whole.instances if one.type == "nic"]))
    left = structs.replace(whole, instances=tuple(i for i in whole.instances if i.id != gone))
    expected = {one: number for one, number in rails(whole).nics.items() if one != gone}
    assert rails(left) == structs.replace(rails(whole), nics=expected)


@given(st.integers(2, 8), st.randoms(use_true_random=False))
def test_the_order_of_instances_makes_no_difference(count: int, random: Any) -> None:
    inventory = rail_optimized(count, [(1, STORAGE, CONNECTX | {"model": "another"})])
    mixed = list(inventory.instances)
    random.shuffle(mixed)
    assert rails(structs.replace(inventory, instances=tuple(mixed))) == rails(inventory)


def test_virtual_functions_are_on_the_rail_of_their_physical_one() -> None:
    inventory = rail_optimized()
    physical = "0000:13:00.0"
    inventory.topology["pci"]["0000:13:00.7"] = inventory.topology["pci"][physical]
    virtual = card("0000:13:00.7", "nic", physical_function=physical, **CONNECTX)
    more = structs.replace(inventory, instances=(*inventory.instances, virtual))
    assert rails(more).nics == rails(inventory).nics | {virtual.id: 0}


def test_two_gpus_may_share_a_rail() -> None:
    """DGX-2: two GPUs and one NIC below each switch."""
    pci: dict[str, Any] = {}
    cards = []
    for bus in (0x10, 0x20, 0x30):
        cards += [card(below(pci, bus, f"0000:{bus + at:02x}:00.0")) for at in (1, 2)]
        cards.append(card(below(pci, bus, f"0000:{bus + 3:02x}:00.0"), "nic", **CONNECTX))
    found = rails(machine(cards, pci))
    assert list(found.nics.values()) == [0, 1, 2]
    assert list(found.gpus.values()) == [0, 0, 1, 1, 2, 2]


def test_what_is_no_structure_of_rails() -> None:
    assert rails(rail_optimized(1)) == Rails()
    assert rails(machine([], {})) == Rails()
    nics = [one for one in rail_optimized().instances if one.type == "nic"]
    assert rails(structs.replace(rail_optimized(), instances=tuple(nics))) == Rails()
    # three GPUs and two NICs below one switch
    pci: dict[str, Any] = {}
    cards = [card(below(pci, 0x10, f"0000:1{n}:00.0")) for n in (1, 2, 3)]
    cards += [card(below(pci, 0x10, f"0000:1{n}:00.0"), "nic", **CONNECTX) for n in (4, 5)]
    assert rails(machine(cards, pci)) == Rails()


# ---- machines that hide their switches -------------------------------------------------------


def hidden(nodes: Sequence[int | None], nics_on: Sequence[int | None], **facts: Any) -> Inventory:
    """Give a host whose devices have a host bridge each."""
    pci: dict[str, Any] = {}
    for kind, where in (("0", nodes), ("1", nics_on)):
        for at, numa in enumerate(where):
            one = f"{kind}{at:03d}:00:00.0"
            pci[one] = function(f"pci{one[:7]}", numa=numa)
    cards = [
        card(one, "gpu" if one[0] == "0" else "nic", **(facts if one[0] == "1" else {}))
        for one in pci
    ]
    return machine(cards, pci, nodes=sorted({numa for numa in nodes if numa is not None}))


def test_by_numa_node_where_there_is_a_nic_for_each_gpu() -> None:
    found = rails(hidden([0, 0, 1, 1], [0, 1, 1, 0], **CONNECTX))
    assert [found.nics[f"1{at:03d}:00:00.0"] for at in range(4)] == [0, 2, 3, 1]
    without_nodes = rails(hidden([None] * 2, [None] * 2, **CONNECTX))
    assert list(without_nodes.nics.values()) == [0, 1]


@pytest.mark.parametrize(
    ("gpus", "nics", "facts"),
    [
        ([0, 0, 1, 1], [0, 1], CONNECTX),  # no NIC for each
        ([0, 0, 1, 1], [0, 0, 1], CONNECTX),  # one is gone, and nothing says which
        ([0, 0, 1, 1], [0, 0, 1, 1], {"vendor": "virtio"}),
        ([0, None], [0, 1], CONNECTX),
        ([0], [0], CONNECTX),
    ],
)
def test_without_switches_nothing_is_guessed(gpus: Any, nics: Any, facts: Any) -> None:
    assert rails(hidden(gpus, nics, **facts)) == Rails()


def test_placement_takes_a_cards_own_nic_where_another_is_as_near() -> None:
    inventory = rail_optimized(extra=[(1, STORAGE, CONNECTX | {"model": "DPU"})])
    found = rails(inventory)
    inventory = structs.replace(
        inventory,
        instances=with_rails(inventory.instances, found),
        topology={**inventory.topology, "rails": {"nics": {}, "gpus": found.gpus}},
    )
    choice = choose(inventory, parse("rusage[nic=1]"), near={"0000:21:00.0"})
    assert choice.instances == ("0000:23:00.0",)
    # two cards below one switch, and a rail each
    pair = "0000:25:00.0"
    pci = inventory.topology["pci"]
    below(pci, 0x20, pair)
    own = below(pci, 0x20, "0000:26:00.0")
    both = structs.replace(
        inventory,
        instances=(*inventory.instances, card(pair), card(own, "nic", rail=9, **CONNECTX)),
        topology={
            **inventory.topology, "pci": pci, "rails": {"gpus": {**found.gpus, pair: 9}},
        },
    )  # fmt: skip
    choice = choose(both, parse("rusage[nic=2]"), near={"0000:21:00.0", pair})
    assert set(choice.instances) == {"0000:23:00.0", own}
    assert choose(both, parse("rusage[nic=1]"), near={pair}).instances == (own,)


def of_two_ports(*, beside: bool) -> Inventory:
    """Give a host of two sockets with four GPUs and two cards of two ports each.

    Below each of its switches are two GPUs; one card of each socket is there too, if `beside`.
    """
    pci: dict[str, Any] = {}
    cards = []
    for node in (0, 1):
        for at in range(4):
            bus = 0x80 * node + 0x20 * (at // 2 + 1)
            cards.append(card(below(pci, bus, f"0000:{bus + 1 + at % 2:02x}:00.0", node)))
        for place in (0, 1):
            bus = 0x80 * node + 0x20 * (place + 1)
            for port in (0, 1):
                address = f"0000:{bus + 5:02x}:00.{port}"
                if place and beside:
                    below(pci, bus, address, node)
                else:
                    pci[address] = function(f"pci0000:{bus + 4:02x}", f"{bus}-port", numa=node)
                cards.append(card(address, "nic", **CONNECTX))
    return machine(cards, pci)


def test_ports_are_rails_where_there_is_one_for_each_gpu() -> None:
    found = rails(of_two_ports(beside=True))
    nics = ("0000:25:00.0", "0000:25:00.1", "0000:45:00.0", "0000:45:00.1",
            "0000:a5:00.0", "0000:a5:00.1", "0000:c5:00.0", "0000:c5:00.1")  # fmt: skip
    assert found.nics == {nic: rail for rail, nic in enumerate(nics)}
    assert list(found.gpus.values()) == list(range(8))
    # Below the same switch as the two GPUs whose rails they are.
    assert (found.gpus["0000:41:00.0"], found.gpus["0000:42:00.0"]) == (2, 3)


def test_as_many_ports_as_gpus_are_no_rails_if_none_is_beside_one() -> None:
    assert rails(of_two_ports(beside=False)) == Rails()


def test_a_card_of_two_ports_below_the_switch_of_two_gpus_has_a_rail_for_each() -> None:
    pci: dict[str, Any] = {}
    cards = []
    for bus in (0x20, 0x40):
        cards += [card(below(pci, bus, f"0000:{bus + at:02x}:00.0")) for at in (1, 2)]
        ports = (f"0000:{bus + 5:02x}:00.{port}" for port in (0, 1))
        cards += [card(below(pci, bus, port), "nic", **CONNECTX) for port in ports]
    function_of_one = card("0000:45:00.4", "nic", physical_function="0000:45:00.1", **CONNECTX)
    below(pci, 0x40, "0000:45:00.4")
    found = rails(machine([*cards, function_of_one], pci))
    assert found.nics == {
        "0000:25:00.0": 0, "0000:25:00.1": 1,
        "0000:45:00.0": 2, "0000:45:00.1": 3, "0000:45:00.4": 3,
    }  # fmt: skip
    assert found.gpus["0000:42:00.0"] == 3


def test_slingshot_makes_rails_without_rdma_devices() -> None:
    """Four cards, each with its NIC on its own host bridge, and a port for management on one."""
    pci: dict[str, Any] = {}
    cards = []
    slingshot = {"vendor": "cray", "model": "Slingshot 200", "nic_kind": "slingshot"}
    for node in range(4):
        root = f"pci0000:{node * 0x40:02x}"
        for place, facts in ((1, slingshot), (2, None)):
            address = f"0000:{node * 0x40 + place:02x}:00.0"
            pci[address] = function(root, f"{root}-port{place}", numa=node)
            cards.append(card(address, "nic" if facts else "gpu", **(facts or {})))
    pci["0000:30:00.0"] = function("pci0000:2f", numa=0)
    cards.append(card("0000:30:00.0", "nic", vendor="intel", model="I210"))
    found = rails(machine(cards, pci, nodes=range(4)))
    assert found.nics == {f"0000:{at:02x}:00.0": at // 0x40 for at in (1, 0x41, 0x81, 0xC1)}
    assert list(found.gpus.values()) == [0, 1, 2, 3]


def of_two_dies(*, with_nic: Sequence[int]) -> Inventory:
    """Give a host of eight dies, each on its host bridge, which tell no NUMA node."""
    pci: dict[str, Any] = {}
    cards = []
    for at in range(8):
        root, bus = f"pci0000:{0xC0 + at * 4:02x}", 0xC0 + at * 4
        pci[die := f"0000:{bus + 2:02x}:00.0"] = function(root, f"{root}-07.1")
        cards.append(card(die))
        if at in with_nic:
            pci[nic := f"0000:{bus + 1:02x}:00.0"] = function(root, f"{root}-01.1")
            cards.append(card(nic, "nic", model="Slingshot 200", nic_kind="slingshot"))
    return machine(cards, pci, nodes=range(4))


def test_two_dies_of_a_card_share_the_nic_that_is_beside_one_of_them() -> None:
    found = rails(of_two_dies(with_nic=(1, 3, 5, 7)))
    assert list(found.nics.values()) == [0, 1, 2, 3]
    assert list(found.gpus.values()) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("with_nic", [(1, 2, 5, 7), (1, 3, 5), (1,)])
def test_nics_beside_some_dies_are_no_rails(with_nic: Sequence[int]) -> None:
    assert rails(of_two_dies(with_nic=with_nic)) == Rails()
