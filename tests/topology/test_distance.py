"""Distances in the words of `nvidia-smi topo -m`."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from topology.trees import card, function, machine, machines

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model.distance import common_switch, rank, shared
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.providers import all_providers

SHARED = Path(__file__).parents[3] / "shared" / "machines"
WORDS = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")


def words(inventory: Inventory) -> dict[tuple[str, str], str]:
    ids = [one.id for one in inventory.instances]
    return {(a, b): inventory.layout.between(a, b) for a in ids for b in ids}


# ---- the way over PCI ------------------------------------------------------------------------

A, B = "0000:05:00.0", "0000:09:00.0"
PORT, UP = ("pci0000:00", "0000:00:01.0"), "0000:01:00.0"


@pytest.mark.parametrize(
    ("one", "other", "word"),
    [
        # two ports of one switch
        ((*PORT, UP, "0000:02:00.0"), (*PORT, UP, "0000:02:01.0"), "PIX"),
        # a second switch below a port of the first
        ((*PORT, UP, "0000:02:00.0"), (*PORT, UP, "0000:02:01.0", "u", "d"), "PXB"),
        # two root ports of one host bridge; a card on the root bus, as in virtual machines
        ((*PORT,), ("pci0000:00", "0000:00:02.0"), "PHB"),
        (("pci0000:00",), ("pci0000:00",), "PHB"),
        # two host bridges
        ((*PORT,), ("pci0000:40", "0000:40:01.0"), "NODE"),
    ],
)
def test_the_words(one: tuple[str, ...], other: tuple[str, ...], word: str) -> None:
    pci = {A: function(*one, numa=0), B: function(*other, numa=0)}
    found = machine([card(A), card(B)], pci).layout
    assert found.between(A, B) == found.between(B, A) == word
    assert found.between(A, A) == "X"


def test_functions_of_one_card_and_parts_of_one_are_as_near_as_can_be() -> None:
    port, virtual = "0000:05:00.1", "0000:05:01.2"
    pci = {one: function(*PORT, numa=0) for one in (A, port, virtual)}
    half = structs.replace(card(A, "mig"), id="half", parent=A, overlaps=(A,))
    whole = structs.replace(card(A), overlaps=("half",))
    found = machine([whole, half, card(port, "nic"), card(virtual, "nic")], pci).layout
    for one, other in itertools.permutations((A, port, virtual, "half"), 2):
        assert found.between(one, other) == "PIX"
    on_the_root_bus = machine([card(A), card(port)], {a: function("pci0:0") for a in (A, port)})
    assert on_the_root_bus.layout.between(A, port) == "PIX"


@pytest.mark.parametrize(
    ("nodes", "one", "other", "word"),
    [
        ((0, 1), 0, 0, "NODE"), ((0, 1), 0, 1, "SYS"), ((0, 8), 8, 8, "NODE"),
        # not told: the worst on a host of several nodes, and the only one on a host of one
        ((0, 1), None, 1, "SYS"), ((0, 1), None, None, "SYS"), ((0,), None, 0, "NODE"),
        ((), None, None, "NODE"),
    ],
)  # fmt: skip
def test_numa_nodes(nodes: tuple[int, ...], one: int | None, other: int | None, word: str) -> None:
    pci = {A: function("pci1:0", numa=one), B: function("pci2:0", numa=other)}
    assert machine([card(A), card(B)], pci, nodes=nodes).layout.between(A, B) == word


def test_a_host_bridge_is_on_one_node_whichever_of_its_functions_tells() -> None:
    pci = {
        A: function("pci1:0", "p", numa=None), B: function("pci2:0", numa=1),
        "0000:0a:00.0": function("pci1:0", "q", numa=1),
    }  # fmt: skip
    for nodes in ((0, 1), ()):
        assert machine([card(A), card(B)], pci, nodes=nodes).layout.between(A, B) == "NODE"
    pci["0000:0b:00.0"] = function("pci1:0", "r", numa=0)
    assert machine([card(A), card(B)], pci).layout.between(A, B) == "SYS"


def test_where_no_nodes_are_told_functions_may_tell_of_several() -> None:
    pci = {A: function("pci1:0", numa=0), B: function("pci2:0", numa=1)}
    pci["0000:0a:00.0"] = function("pci3:0")
    found = machine([card(one) for one in pci], pci, nodes=()).layout
    assert {found.between(A, B), found.between(A, "0000:0a:00.0")} == {"SYS"}


def test_memory_is_as_near_as_its_nearest_cpus() -> None:
    """A card may say that it is near the node that its own memory is, and no CPU is in that."""
    nodes = [
        {"id": 0, "cpus": "0-71", "distances": [10, 40, 80, 120]},
        {"id": 1, "cpus": "72-143", "distances": [40, 10, 120, 80]},
    ]
    pci = {A: function("pci1:0", numa=3), B: function("pci2:0", numa=1)}
    found = machine([card(A), card(B)], pci)
    topology = {**found.topology, "numa_nodes": nodes, "memory_nodes": [2, 3]}
    layout = structs.replace(found, topology=topology).layout
    assert layout.site(A).numa == 1
    assert layout.between(A, B) == "NODE"
    assert (layout.numa_distance(0, 1), layout.numa_distance(1, 1)) == (40, 10)


def test_what_hangs_on_no_bus_is_near_by_its_node_alone() -> None:
    usb = card("", "nic", numa_node=1)
    usb = structs.replace(usb, id="usb")
    found = machine([usb, card(A)], {A: function(*PORT, numa=1)}).layout
    assert (found.between("usb", A), found.between(A, "usb")) == ("NODE", "NODE")
    with pytest.raises(KeyError):
        found.between(A, "no such")


def test_a_32_bit_domain() -> None:
    far = "10000:01:00.0"
    pci = {A: function(*PORT), far: function("pci10000:00", "10000:00:03.0")}
    assert machine([card(A), card(far)], pci, nodes=()).layout.between(A, far) == "NODE"


# ---- links -----------------------------------------------------------------------------------


def two(*links: tuple[str, str, str, int], kind: str = "gpu", **facts: Any) -> Inventory:
    pci = {A: function("pci1:0", numa=0), B: function("pci2:0", numa=0)}
    return machine([card(A, kind, **facts), card(B, kind, **facts)], pci, links=links)


SWITCHES = ("0000:c4:00.0", "0000:c5:00.0")


@pytest.mark.parametrize(
    ("links", "facts", "word"),
    [
        ([("nvlink", A, B, 4)], {}, "NV4"),
        ([("nvlink", A, B, 2), ("nvlink", A, B, 1)], {}, "NV3"),
        ([("nvlink", one, to, 6) for one in (A, B) for to in SWITCHES], {}, "NV12"),
        ([("nvlink", one, "nvswitch", 18) for one in (A, B)], {}, "NV18"),
        # one of both has lost a link
        ([("nvlink", A, SWITCHES[0], 12), ("nvlink", B, SWITCHES[0], 11)], {}, "NV11"),
        ([("nvlink", A, SWITCHES[0], 12)], {}, "NODE"),
        # a link to a card that is gone leads nowhere
        ([("nvlink", A, "GPU-gone", 4), ("nvlink", B, "GPU-gone", 4)], {}, "NODE"),
        ([], {"nvlink_domain": "d", "nvlink_count": 18}, "NV18"),
        ([], {"nvlink_domain": "d"}, "NV"),
        ([], {"nvlink_count": 18}, "NODE"),
        ([("xgmi", A, B, 1)], {"xgmi_hive": "h"}, "XGMI1"),
        ([], {"xgmi_hive": "h"}, "XGMI"),
    ],
)
def test_links_go_before_pci(links: list[Any], facts: dict[str, Any], word: str) -> None:
    found = two(*links, **facts).layout
    assert found.between(A, B) == found.between(B, A) == word
    assert found.between_on_pci(A, B) == "NODE"


def test_two_domains_are_not_joined() -> None:
    links = [("nvlink", one, SWITCHES[0], 18) for one in (A, B)]
    pci = {A: function("pci1:0", numa=0), B: function("pci2:0", numa=0)}
    cards = [card(A, nvlink_domain="a.1"), card(B, nvlink_domain="a.2")]
    assert machine(cards, pci, links=links).layout.between(A, B) == "NODE"


def test_slices_have_no_links_and_shares_have_those_of_their_card() -> None:
    links = [("nvlink", A, B, 12)]
    base = two(*links)
    for kind, word in (("mig", "NODE"), ("gi", "NODE"), ("mps", "NV12")):
        parts = tuple(
            structs.replace(card(one, kind), id=f"part of {one}", parent=one) for one in (A, B)
        )
        found = structs.replace(base, instances=base.instances + parts).layout
        assert found.between(parts[0].id, parts[1].id) == word
        assert found.between(parts[0].id, A) == "PIX"


def test_partitions_of_one_card_are_nearer_than_their_links_say() -> None:
    facts = {"xgmi_hive": "h", "pci_address": A}
    parts = [
        Instance(id=f"part {at}", type="gpu", provider="amd", parent=A, attributes={**facts})
        for at in range(2)
    ]
    far = card(B, xgmi_hive="h")
    found = machine([*parts, far], {A: function("pci1:0"), B: function("pci2:0")}).layout
    assert found.between("part 0", "part 1") == "PIX"
    assert found.between("part 0", B) == "XGMI"


def test_ranks() -> None:
    near_to_far = ("X", "NV18", "NV12", "NV1", "NV", "PIX", "PXB", "PHB", "NODE", "SYS")
    assert sorted(near_to_far, key=rank)[:3] == ["X", "NV18", "NV12"]
    ranks = [rank(word) for word in near_to_far]
    assert ranks == sorted(ranks)
    assert rank("XGMI2") == rank("NV2") < rank("XGMI1")


# ---- laws ------------------------------------------------------------------------------------


@given(machines())
def test_a_distance_is_the_same_both_ways_and_x_is_the_thing_itself(inventory: Inventory) -> None:
    for (one, other), word in words(inventory).items():
        assert word in WORDS
        assert word == inventory.layout.between(other, one)
        assert (word == "X") == (one == other)


@given(machines())
def test_no_way_round_is_shorter(inventory: Inventory) -> None:
    """Of three, the two longest distances are equal: the words are levels of a tree.

    Where a NUMA node is not told, it is near to nothing; so the law holds below that.
    """
    layout, found = inventory.layout, words(inventory)
    untold = [one.id for one in inventory.instances if layout.site(one.id).numa == -1]
    levels = {key: min(rank(w), rank("NODE")) if untold else rank(w) for key, w in found.items()}
    for a, b, c in itertools.product([one.id for one in inventory.instances[:7]], repeat=3):
        assert levels[a, c] <= max(levels[a, b], levels[b, c])
        near = min(shared(layout.site(a), layout.site(b)), shared(layout.site(b), layout.site(c)))
        assert shared(layout.site(a), layout.site(c)) >= near


@given(machines())
def test_a_switch_in_common_is_on_both_ways_and_none_is_further_down(inventory: Inventory) -> None:
    layout = inventory.layout
    for a, b in itertools.combinations([one.id for one in inventory.instances], 2):
        one, other = layout.site(a), layout.site(b)
        switch = common_switch(one, other)
        both = [s for s in one.switches if s in other.switches]
        assert switch == (both[-1] if both else "")
        if switch:
            assert layout.between(a, b) in ("PIX", "PXB")


@given(machines(), st.randoms(use_true_random=False))
def test_the_order_of_instances_makes_no_difference(inventory: Inventory, random: Any) -> None:
    mixed = list(inventory.instances)
    random.shuffle(mixed)
    assert words(structs.replace(inventory, instances=tuple(mixed))) == words(inventory)


@given(machines())
def test_nearness_sorts_as_the_words_do(inventory: Inventory) -> None:
    ids = [one.id for one in inventory.instances]
    for a, b, c in itertools.islice(itertools.product(ids, repeat=3), 200):
        if rank(inventory.layout.between(a, b)) < rank(inventory.layout.between(a, c)):
            assert inventory.layout.nearness(a, b) < inventory.layout.nearness(a, c)


# ---- machines that were recorded --------------------------------------------------------------


@pytest.mark.needs("recorded")
def test_an_sr680a_as_nvidia_smi_shows_it(compared) -> None:
    """Each of eight GPUs has a NIC below its switch; three ports more are on host bridges."""
    text = (SHARED / "k8s-launch-kit/SR680a-V3-BF3.nvidia-smi-topo-mp.txt").read_text("utf-8")
    gpus = [f"0000{bus.lower()}" for bus in re.findall(r"^\d+, 0000(\S+)$", text, re.MULTILINE)]
    nics = dict(re.findall(r"^(0000:\S+)\|(\d)$", text, re.MULTILINE))
    pci: dict[str, Any] = {}
    for at, (nic, numa) in enumerate(nics.items()):
        root = f"pci0000:{0x10 + at if nic[-1] == '0' else 0x10 + at - 1:02x}"
        pci[nic] = function(root, f"{root}-port", numa=int(numa))
    beside = [nic for nic in nics if nic[5:7] not in ("5a", "d8")]
    for gpu, nic in zip(gpus, beside, strict=True):
        root, numa = pci[nic]["root"], pci[nic]["numa_node"]
        for place, one in enumerate((gpu, nic)):
            path = (root, f"{root}-port", f"{root}-up", f"{root}-down{place}")
            pci[one] = function(*path, numa=numa)
    order = gpus + list(nics)
    rows = re.findall(r"^(?:GPU|NIC)\d+\t(.+)$", text, re.MULTILINE)
    assert len(rows) == len(order) == 19
    found = machine([card(one) for one in order], pci).layout
    for one, row in zip(order, rows, strict=True):
        told = [word.strip() for word in row.split("\t")][: len(order)]
        assert [found.between(one, other) for other in order] == told
    compared("SR680a-V3-BF3", len(order) ** 2)


@pytest.mark.needs("recorded")
def test_a_gb300_of_a_cloud_as_nvidia_smi_shows_it(compared) -> None:
    """Every device has a host bridge of its own, and the NVSwitches are in another host."""
    text = (SHARED / "dranet-slices/azure_aks_examples_gb300.README.md").read_text("utf-8")
    rows = re.findall(r"^\| (?:GPU|NIC)\d \|(.+)\|$", text, re.MULTILINE)[:5]
    gpus = re.findall(r"^\| gpu-\d \| (\S+) \| (\d) \| (\S+) \|$", text, re.MULTILINE)
    nics = re.findall(r"^\| pci-\S+ \| (\S+) \| \S+ \| (\d) \|$", text, re.MULTILINE)
    pci = {gpu: function(root, numa=int(node)) for gpu, node, root in gpus}
    pci |= {nic: function(f"pci{nic[:7]}", numa=int(node)) for nic, node in nics}
    facts: dict[str, Any] = {"nvlink_domain": "cluster.1", "nvlink_count": 18}
    cards = [card(gpu, **facts) for gpu, *_ in gpus] + [card(nic, "nic") for nic, _ in nics]
    found = machine(cards, pci).layout
    order = [one.id for one in cards]
    assert len(order) == 8
    table = [[word.strip() for word in row.split("|")] for row in rows]
    table = [row for row in table if "X" in row]
    assert len(table) == 4
    for gpu, row in zip(order, table, strict=False):
        assert [found.between(gpu, other) for other in order] == row
    compared("dranet-slices/azure_aks_examples_gb300", len(table) * len(order))


@pytest.mark.parametrize(
    ("profile", "word"),
    [("dgx-h100", "PIX"), ("gb200", "NODE"), ("mi300x", "PIX")],
)
def test_a_simulated_nic_is_beside_its_card(profile: str, word: str) -> None:
    inventory = scan(Host("/nonexistent", simulate=profile), all_providers(("simulated",)))
    gpu = next(one for one in inventory.instances if one.type == "gpu")
    nic = next(one for one in inventory.instances if one.text("rail") == "0")
    assert inventory.layout.between(gpu.id, nic.id) == word
