from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from export.conftest import gpu, inventory
from hypothesis import given
from hypothesis import strategies as st
from recorded.machine import Machine
from recorded.recording import NCCL, read

from xce_nodeagent.cli.local import look
from xce_nodeagent.export.cpus import listed, mask
from xce_nodeagent.export.nccl import topology
from xce_nodeagent.model.inventory import Inventory

_WITHOUT_CLASSES = ("nccl-topo/aws/g5.48xl-topo.xml",)
"""It does not tell what a function is, so nobody can tell cards from drives."""


def _places(text: str) -> dict[str, tuple[str, ...]]:
    """Give the way to each function: the NUMA node, and the switches."""
    found: dict[str, tuple[str, ...]] = {}

    def walk(element: ET.Element, way: tuple[str, ...]) -> None:
        for pci in element.findall("pci"):
            busid = pci.get("busid", "")
            found[busid] = way
            walk(pci, (*way, busid))

    for cpu in ET.fromstring(text).findall("cpu"):  # noqa: S314  # our own
        walk(cpu, (cpu.get("numaid", ""),))
    return found


def _bits(affinity: str) -> int:
    return int(affinity.replace(",", ""), 16)


@pytest.fixture(scope="module")
def seen(recorded: Callable[[str], Path]) -> Callable[[str], Inventory]:
    return lambda name: look(str(recorded(name)), "")


@pytest.mark.needs("recorded")
@pytest.mark.parametrize("name", [name for name in NCCL if name not in _WITHOUT_CLASSES])
def test_what_nccl_recorded_comes_out_again(name: str, seen) -> None:
    """A recorded file, made a sysroot and read by discovery, has the same affinity again."""
    machine = read(name)
    text = topology(seen(name))
    told = _places(text)
    wanted = {address: way for address, way in _recorded(machine).items() if address in told}
    placed = {
        one.address
        for one in machine.functions
        if not one.made_up and (one.kind or 0) >> 8 in (0x02, 0x03, 0x12)
    }
    nics = {one.function for one in (*machine.interfaces, *machine.rdma)}
    assert placed
    assert placed | nics <= told.keys()
    assert {address: told[address] for address in wanted} == wanted
    _same_affinity(machine, text)
    _same_links(machine, text)


def _recorded(machine: Machine) -> dict[str, tuple[str, ...]]:
    """Give the way to each function by the recording: NCCL has every second bridge."""
    found = {}
    for one in machine.functions:
        if one.made_up or one.kind == 0x0604:
            continue
        switches = [bridge for place, bridge in enumerate(one.path[1:-1], 1) if place % 2 == 0]
        found[one.address] = (str(one.numa_node), *switches)
    return found


def _same_affinity(machine: Machine, text: str) -> None:
    cpus = {
        int(cpu.get("numaid", "")): _bits(cpu.get("affinity", "0"))
        for cpu in ET.fromstring(text).findall("cpu")  # noqa: S314  # our own
    }
    for node in machine.nodes:
        if node.number in cpus:
            assert cpus[node.number] == sum(1 << cpu for cpu in node.cpus)


def _same_links(machine: Machine, text: str) -> None:
    told = {
        (pci.get("busid"), link.get("target"), int(link.get("count", "0")))
        for pci in ET.fromstring(text).iter("pci")  # noqa: S314  # our own
        for link in pci.iterfind("gpu/xgmi")
    }
    wanted = {(one.one, one.other, one.count) for one in machine.links if one.kind == "xgmi"}
    assert told == wanted


def test_cards_links_and_nets() -> None:
    topology_ = {
        "cpu": {"arch": "x86_64", "vendor": "GenuineIntel", "family": 6, "model": 143},
        "numa_nodes": [{"id": 0, "cpus": "0-1,4"}, {"id": 1, "cpus": "2-3,5"}],
        "pci": {
            "0000:01:00.0": _function("0000:00:01.0", 0, "030200", "32.0 GT/s PCIe", 16),
            "0000:02:00.0": _function("0000:00:02.0", 1, "030200", "32.0 GT/s PCIe", 16),
            "0000:05:00.0": {**_function("0000:00:05.0", 1, "068000", "16.0 GT/s PCIe", 2)},
        },
        "bridges": {"0000:00:01.0": {"link_speed": "16.0 GT/s PCIe", "link_width": 8}},
        "links": [
            {"kind": "nvlink", "one": "GPU-0", "other": "GPU-1", "count": 4},
            {"kind": "nvlink", "one": "GPU-0", "other": "0000:05:00.0", "count": 2},
        ],
    }
    cards = [
        gpu(0, index=0, compute_capability="10.3", numa_node=0),
        gpu(1, index=1, compute_capability="9.0", numa_node=1),
    ]
    root = ET.fromstring(topology(inventory(*cards, topology=topology_)))  # noqa: S314  # our own
    first, second = root.findall("cpu")
    assert first.attrib == {
        "numaid": "0", "affinity": "00000013", "arch": "x86_64", "vendor": "GenuineIntel",
        "familyid": "6", "modelid": "143",
    }  # fmt: skip
    pci = first.find("pci")
    assert pci is not None
    assert pci.attrib == {
        "busid": "0000:01:00.0", "class": "0x030200", "vendor": "0x10de", "device": "0x2330",
        "link_speed": "16.0 GT/s PCIe", "link_width": "8",
    }  # fmt: skip
    assert [one.attrib for one in pci.iter("gpu")] == [{"dev": "0", "sm": "103"}]
    assert [one.attrib for one in pci.iter("nvlink")] == [
        {"target": "0000:02:00.0", "count": "4", "tclass": "0x030200"},
        {"target": "0000:05:00.0", "count": "2", "tclass": "0x068000"},
    ]
    assert [one.get("target") for one in second.iter("nvlink")] == ["0000:01:00.0"]


def _function(port: str, numa: int, kind: str, speed: str, width: int) -> dict[str, object]:
    return {
        "root": "pci0000:00", "bridges": [port], "numa_node": numa, "class": kind,
        "vendor": "10de", "device": "2330", "link_speed": speed, "link_width": width,
    }  # fmt: skip


@given(st.sets(st.integers(0, 200)))
def test_a_mask_is_read_back(cpus: set[int]) -> None:
    text = mask(cpus)
    assert re.fullmatch(r"[0-9a-f]{8}(,[0-9a-f]{8})*", text)
    assert _bits(text) == sum(1 << cpu for cpu in cpus)


def test_a_list_of_cpus() -> None:
    assert listed("0-3,8, 10-11") == (0, 1, 2, 3, 8, 10, 11)
    assert listed("") == ()


@given(st.text(st.characters()), st.text(st.characters()))
def test_any_name_is_xml(name: str, vendor: str) -> None:
    nic = gpu(0, type="nic", rdma_device=name, speed_mbps=1)
    text = topology(inventory(nic, topology={"cpu": {"vendor": vendor}}))
    root = ET.fromstring(text.encode("utf-8"))  # noqa: S314  # our own
    assert len(list(root.iter("net"))) == bool(name)
