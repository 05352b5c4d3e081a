from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Iterable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from xce_nodeagent.discovery import scan
from xce_nodeagent.errors import (
    BadPort,
    BadRequest,
    Busy,
    NeverFits,
    NoFitNow,
    NotReady,
    Unhealthy,
)
from xce_nodeagent.host import Host
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory, overlapping
from xce_nodeagent.model.request import Need, Request, Rusage, parse
from xce_nodeagent.model.wire import PortAsk
from xce_nodeagent.placement import Choice, choose, choose_ports
from xce_nodeagent.providers import all_providers
from xce_nodeagent.providers.simulated import names


@cache
def machine(profile: str) -> Inventory:
    host = Host("/nonexistent", simulate=profile, port_range=(20000, 20999))
    return scan(host, all_providers(("nvidia", "nic", "ports", "simulated")))


def blocked(inventory: Inventory, held: Collection[str]) -> frozenset[str]:
    """What may not be given while `held` are held: those, and what overlaps them."""
    return frozenset(held).union(*(overlapping(inventory.by_id(), one) for one in held))


def short(inventory: Inventory, chosen: Iterable[str]) -> list[str]:
    """Name what was chosen: gpu0, mig4.7 (card and GPU instance), nic3 (rail), or the netdev."""
    by_id = inventory.by_id()
    return [
        f"gpu{one.attributes['index']}" if one.type == "gpu"
        else f"mig{one.attributes['index']}.{one.attributes['gpu_instance']}" if one.type == "mig"
        else f"nic{one.attributes['rail']}" if "rail" in one.attributes
        else one.text("netdev")
        for one in map(by_id.__getitem__, chosen)
    ]  # fmt: skip


def gpus(inventory: Inventory, *indexes: int) -> set[str]:
    return {
        i.id for i in inventory.instances if i.type == "gpu" and i.attributes["index"] in indexes
    }


def edit(inventory: Inventory, chosen: set[str], **more) -> Inventory:
    return structs.replace(
        inventory,
        instances=tuple(
            structs.replace(i, **more) if i.id in chosen else i for i in inventory.instances
        ),
    )


def ask(profile: str, text: str, held: Iterable[str] = ()) -> list[str]:
    inventory = machine(profile)
    choice = choose(inventory, parse(text), unavailable=blocked(inventory, set(held)))
    return short(inventory, choice.instances)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("rusage[gpu=1:nic=1]", ["gpu0", "nic0"]),
        ("rusage[gpu=2:nic=2]", ["gpu0", "gpu1", "nic0", "nic1"]),
        # one NIC for two cards, then a second one each on the same node
        ("rusage[gpu=2:nic=1]", ["gpu0", "gpu1", "nic0"]),
        ("rusage[gpu=1:nic=2]", ["gpu0", "nic0", "nic1"]),
        ("rusage[gpu=8:nic=8]", [f"gpu{n}" for n in range(8)] + [f"nic{n}" for n in range(8)]),
        # fewer NICs than cards: one on each NUMA node
        ("rusage[gpu=8:nic=2]", [f"gpu{n}" for n in range(8)] + ["nic0", "nic4"]),
        ("rusage[gpu=0:nic=0]", []),
    ],
)
def test_cards_and_their_rails(text: str, chosen: list[str]) -> None:
    assert ask("dgx-h100", text) == chosen


def test_a_job_without_cards_leaves_the_rails_to_those_with() -> None:
    assert ask("dgx-h100", "rusage[nic=2]") == ["simeth0", "simeth1"]


def test_cards_stay_on_one_numa_node() -> None:
    inventory = machine("dgx-h100")
    held = gpus(inventory, 0)
    # four are left on the second node and three on the first
    assert ask("dgx-h100", "rusage[gpu=4]", held) == ["gpu4", "gpu5", "gpu6", "gpu7"]
    # the smaller group is large enough, so the larger one stays whole
    assert ask("dgx-h100", "rusage[gpu=3]", held) == ["gpu1", "gpu2", "gpu3"]


def test_cards_stay_below_one_switch() -> None:
    inventory = machine("dgx-a100-mig")
    # 0, 1 and 4 are cut into slices; 2 and 3 share a switch
    assert ask("dgx-a100-mig", "rusage[gpu=2]") == ["gpu2", "gpu3"]
    assert ask("dgx-a100-mig", "rusage[gpu=1]") == ["gpu5"]
    assert ask("dgx-a100-mig", "rusage[gpu=2]", gpus(inventory, 2)) == ["gpu6", "gpu7"]


def test_the_smallest_slices_are_taken_and_of_one_size_those_of_one_card() -> None:
    # 1g.10gb: two on card 1, seven on card 4; 2g.20gb: one; 3g.40gb: one on card 1, two on card 0
    assert ask("dgx-a100-mig", "rusage[mig=1]") == ["mig1.9"]
    assert ask("dgx-a100-mig", "rusage[mig=2]") == ["mig1.9", "mig1.10"]
    assert ask("dgx-a100-mig", "rusage[mig=5]") == [f"mig4.{gi}" for gi in range(7, 12)]
    small = ["mig1.9", "mig1.10", *(f"mig4.{gi}" for gi in range(7, 14))]
    assert set(ask("dgx-a100-mig", "rusage[mig=9]")) == set(small)
    assert set(ask("dgx-a100-mig", "rusage[mig=10]")) == {*small, "mig1.3"}
    # cards 0 and 1 are below one switch, so the large ones are equally near
    assert set(ask("dgx-a100-mig", "rusage[mig=11]")) == {*small, "mig1.3", "mig0.1"}


def test_a_slice_that_does_not_tell_its_size_comes_last() -> None:
    inventory = machine("dgx-a100-mig")
    first = next(i for i in inventory.instances if i.attributes.get("gpu_instance") == 9)
    facts = {name: value for name, value in first.attributes.items() if name != "memory_bytes"}
    untold = edit(inventory, {first.id}, attributes=facts)
    assert first.id not in choose(untold, parse("rusage[mig=12]")).instances
    assert first.id in choose(untold, parse("rusage[mig=13]")).instances


def test_a_held_slice_leaves_the_others_to_be_had() -> None:
    inventory = machine("dgx-a100-mig")
    first = next(i for i in inventory.instances if i.type == "mig")
    taken = blocked(inventory, {first.id})
    assert taken == {first.id, first.parent}
    choice = choose(inventory, parse("rusage[mig=12]"), unavailable=taken)
    assert first.id not in choice.instances


def test_a_held_card_holds_its_slices() -> None:
    inventory = machine("dgx-a100-mig")
    chosen = ask("dgx-a100-mig", "rusage[mig=6]", gpus(inventory, 0, 1))
    assert all(one.startswith("mig4.") for one in chosen)


def test_a_card_that_is_cut_is_not_counted_as_a_card() -> None:
    assert len(ask("dgx-a100-mig", "rusage[gpu=5]")) == 5
    cut = r"5 \(3 more are cut into MIG slices\)"
    with pytest.raises(NeverFits, match=f"gpu=6, but this host has {cut}"):
        ask("dgx-a100-mig", "rusage[gpu=6]")
    inventory = machine("dgx-a100-mig")
    with pytest.raises(NoFitNow, match=f"gpu=5, but of this host's {cut} only 4 can be had now"):
        ask("dgx-a100-mig", "rusage[gpu=5]", gpus(inventory, 2))


def test_the_nearest_nic_is_found_by_numa_node_where_there_is_no_switch() -> None:
    inventory = machine("gb200")
    assert ask("gb200", "rusage[gpu=2:nic=2]") == ["gpu0", "gpu1", "nic0", "nic1"]
    assert ask("gb200", "rusage[gpu=2:nic=2]", gpus(inventory, 1)) == [
        "gpu2", "gpu3", "nic2", "nic3",
    ]  # fmt: skip


def test_what_a_job_has_already_draws_the_rest_near() -> None:
    inventory = machine("dgx-h100")
    near = gpus(inventory, 6)
    choice = choose(inventory, parse("rusage[gpu=1:nic=1]"), near=near)
    assert short(inventory, choice.instances) == ["gpu4", "nic6"]
    assert not near & set(choice.instances)


def test_the_hosts_own_nic_is_never_chosen() -> None:
    inventory = machine("dgx-h100")
    rail0 = next(i for i in inventory.instances if i.attributes.get("rail") == 0)
    own = edit(inventory, {rail0.id}, reserved="the host's default route goes out by it")
    choice = choose(own, parse("rusage[gpu=1:nic=1]"))
    assert short(own, choice.instances) == ["gpu0", "nic1"]
    assert rail0.id not in choose(own, parse("rusage[nic=11]")).instances
    with pytest.raises(NeverFits, match=r"this host has 11 \(and 1 of the host's own: .*offer"):
        choose(own, parse("rusage[nic=12]"))
    with pytest.raises(NoFitNow, match="only 10 can be had now: 1 held") as caught:
        choose(own, parse("rusage[nic=11]"), unavailable=set(choice.instances))
    assert rail0.id not in caught.value.details["reasons"]


def test_a_port_that_has_virtual_functions_comes_late() -> None:
    """Who made them means them to be given, and the whole port excludes all of them."""
    inventory = machine("dgx-h100")
    rails = {one.attributes["rail"]: one for one in inventory.instances if "rail" in one.attributes}
    virtual = edit(inventory, {rails[1].id}, parent=rails[0].id)
    choice = choose(virtual, parse("rusage[gpu=1:nic=1]"))
    assert short(virtual, choice.instances) == ["gpu0", "nic1"]


def test_a_link_that_is_down_comes_late() -> None:
    inventory = machine("dgx-h100")
    rail0 = next(i for i in inventory.instances if i.attributes.get("rail") == 0)
    down = edit(inventory, {rail0.id}, attributes={**rail0.attributes, "state": "down"})
    choice = choose(down, parse("rusage[gpu=1:nic=1]"))
    assert short(down, choice.instances) == ["gpu0", "nic1"]


@pytest.mark.parametrize("more", [{"healthy": False, "reason": "XID 79"}, {"drained": True}])
def test_what_cannot_be_had_now_is_no_reason_to_give_a_job_up(more: dict) -> None:
    inventory = machine("dgx-h100")
    sick = edit(inventory, gpus(inventory, 3), **more)
    assert "gpu3" not in short(sick, choose(sick, parse("rusage[gpu=7]")).instances)
    with pytest.raises(NoFitNow, match="of this host's 8 only 7") as caught:
        choose(sick, parse("rusage[gpu=8]"))
    (why,) = caught.value.details["reasons"].values()
    assert why in ("unhealthy: XID 79", "drained")


def test_never_and_not_now_differ() -> None:
    inventory = machine("dgx-h100")
    with pytest.raises(NeverFits, match="gpu=9, but this host has 8"):
        ask("dgx-h100", "rusage[gpu=9]", gpus(inventory, 0))
    with pytest.raises(NeverFits, match=r"fpga=1, but this host has 0; it has gpu, nic$"):
        ask("dgx-h100", "rusage[fpga=1]")
    with pytest.raises(NoFitNow, match="1 held") as caught:
        ask("dgx-h100", "rusage[gpu=8]", gpus(inventory, 0))
    assert set(caught.value.details["reasons"]) == gpus(inventory, 0)


def test_ports_are_not_counted_as_instances() -> None:
    with pytest.raises(BadRequest, match="--ports"):
        ask("dgx-h100", "rusage[ports=4]")


@st.composite
def situations(draw: st.DrawFn) -> tuple[Inventory, set[str], set[str], Request]:
    inventory = machine(draw(st.sampled_from(names())))
    ids = [i.id for i in inventory.instances if i.type != "ports"]
    some = st.sets(st.sampled_from(ids), max_size=8)
    inventory = edit(inventory, draw(some), healthy=False)
    inventory = edit(inventory, draw(some), drained=True)
    held = draw(some)
    near = {one for one in draw(some) if one not in blocked(inventory, held)}
    counts = draw(
        st.dictionaries(st.sampled_from(["gpu", "mig", "nic"]), st.integers(0, 9), min_size=1)
    )
    return inventory, held, near, Request((Rusage(tuple(Need(*one) for one in counts.items())),))


@given(situations(), st.randoms(use_true_random=False))
def test_a_choice_is_free_whole_and_the_same_again(situation, random) -> None:
    inventory, held, near, request = situation
    taken = blocked(inventory, held)
    choice = outcome(inventory, request, taken, near)
    # neither the order of a set nor who asks makes a difference
    shuffled = list(taken)
    random.shuffle(shuffled)
    assert outcome(inventory, request, shuffled, near) == choice
    if not isinstance(choice, Choice):
        return
    by_id: dict[str, Instance] = inventory.by_id()
    chosen = [by_id[one] for one in choice.instances]
    assert {t: [c.type for c in chosen].count(t) for t in request.counts()} == request.counts()
    assert len(chosen) == sum(request.counts().values())
    assert all(one.healthy and not one.drained for one in chosen)
    assert not set(choice.instances) & (taken | near)
    for one in chosen:
        assert not set(one.overlaps) & (set(choice.instances) | held | near)


def outcome(
    inventory: Inventory, request: Request, taken: Collection[str], near: set[str]
) -> Choice | tuple[str, str, dict]:
    try:
        return choose(inventory, request, unavailable=taken, near=near)
    except (NoFitNow, NeverFits) as error:
        return error.code, error.message, error.details


def test_choosing_is_cheap_enough_for_the_path_of_a_prepare() -> None:
    """16 instances of a node with 32; a bound of 1.5 ms, some ten times what it takes."""
    inventory = machine("dgx-a100-mig")
    request = parse("rusage[gpu=5:mig=3:nic=8]")
    times = []
    for _ in range(101):
        start = time.perf_counter()
        choose(inventory, request)
        times.append(time.perf_counter() - start)
    assert statistics.median(times) < 0.0015


# ---- ports ----------------------------------------------------------------------------------

PARTS = (range(20000, 20010),)


def test_counted_ports_are_neighbours_where_that_can_be() -> None:
    assert choose_ports(PARTS, [PortAsk(count=3)], held={20000, 20002}) == (
        (20003, ""), (20004, ""), (20005, ""),
    )  # fmt: skip
    every_other = set(range(20000, 20010, 2))
    assert choose_ports(PARTS, [PortAsk(count=2, name="a")], in_use=every_other) == (
        (20001, "a"), (20003, "a"),
    )  # fmt: skip


def test_ports_come_in_the_order_asked_and_named_ones_first_have_their_own() -> None:
    asks = [PortAsk(count=2), PortAsk(port=20001, name="http"), PortAsk(count=1, name="x")]
    assert choose_ports(PARTS, asks) == (
        (20002, ""), (20003, ""), (20001, "http"), (20000, "x"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asks", "error", "why"),
    [
        ([PortAsk(port=19999)], BadPort, "this host manages 20000-20009"),
        ([PortAsk(port=20005), PortAsk(port=20005)], BadPort, "twice"),
        ([PortAsk(port=20000)], Busy, "held by another job"),
        ([PortAsk(port=20001)], Unhealthy, "a process outside any job"),
        ([PortAsk(count=11)], NeverFits, "11 ports wanted, but this host manages 10"),
        ([PortAsk(count=10), PortAsk(port=20005)], NeverFits, "11 ports wanted"),
        ([PortAsk(count=9)], NoFitNow, "only 8 of 10"),
    ],
)
def test_ports_that_cannot_be_had(asks: list[PortAsk], error: type, why: str) -> None:
    with pytest.raises(error, match=why):
        choose_ports(PARTS, asks, held={20000}, in_use={20001})


@given(
    st.sets(st.integers(20000, 20009)),
    st.sets(st.integers(20000, 20009)),
    st.lists(st.integers(1, 4), max_size=4),
)
def test_chosen_ports_are_free_and_none_is_given_twice(
    held: set[int], in_use: set[int], counts: list[int]
) -> None:
    asks = [PortAsk(count=count) for count in counts]
    free = set(PARTS[0]) - held - in_use
    try:
        chosen = [port for port, _ in choose_ports(PARTS, asks, held=held, in_use=in_use)]
    except NeverFits:
        assert sum(counts) > 10
    except NoFitNow:
        assert len(free) < sum(counts) <= 10
    else:
        assert len(chosen) == len(set(chosen)) == sum(counts)
        assert set(chosen) <= free


@pytest.mark.parametrize(("late", "sick", "error"), [(2, 1, NotReady), (1, 2, NoFitNow)])
def test_what_comes_right_by_itself_is_waited_for_where_it_would_be_enough(
    late: int, sick: int, error: type[Exception]
) -> None:
    inventory = machine("dgx-h100")
    waiting, ill = gpus(inventory, *range(late)), gpus(inventory, *range(late, late + sick))
    inventory = edit(inventory, waiting, healthy=False, reason="not yet: its fabric is coming up")
    inventory = edit(inventory, ill, healthy=False, reason="XID 79; not yet: its fabric")
    assert len(choose(inventory, parse("rusage[gpu=5]")).instances) == 5
    with pytest.raises(error, match=f"{late} unhealthy: not yet: its fabric"):
        choose(inventory, parse("rusage[gpu=7]"))
