"""AMD's cards as others recorded them: what they tell is written as a sysfs, and found again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "machines"
pytestmark = pytest.mark.needs("recorded")


def recorded(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(SHARED)) for path in SHARED.glob(pattern)) or ["absent"]


def amd(inventory) -> list:
    return [one for one in inventory.instances if one.provider == "amd"]


@pytest.mark.parametrize("name", recorded("rocm-smi/*.json"))
def test_cards_of_rocm_smi(machines, look, tmp_path: Path, name: str, compared) -> None:
    told = json.loads((SHARED / name).read_text("utf-8"))
    cards = [told[key] for key in sorted(told) if key.startswith("card")]
    tree = machines.Tree(tmp_path)
    for place, card in enumerate(cards):
        address = card["PCI Bus"].lower()
        device = int(card.get("Device ID", card.get("GPU ID")), 16)
        unique = 0 if card["Unique ID"] == "N/A" else int(card["Unique ID"], 16)
        numa = int(card["(Topology) Numa Node"])
        path = f"pci{address[:7]}/{address}"
        folder = tree.function(path, 0x038000, (0x1002, device), "amdgpu", numa)
        tree.drm(folder, place, 128 + place)
        tree.file(f"{folder}/unique_id", f"{unique:016x}" if unique else "")
        tree.file(f"{folder}/mem_info_vram_total", card["VRAM Total Memory (B)"])
        if card["Serial Number"] != "N/A":  # the driver has no such file then
            tree.file(f"{folder}/serial_number", card["Serial Number"])
        tree.kfd(
            place + 1,
            machines.properties(address, 128 + place, target=90008, units=64, unique_id=unique),
        )
    found = {one.text("pci_address"): one for one in amd(look(tmp_path))}
    assert len(found) == len(cards)
    for card in cards:
        one = found[card["PCI Bus"].lower()]
        assert one.healthy
        assert one.number("memory_bytes") == int(card["VRAM Total Memory (B)"])
        assert one.number("numa_node") == int(card["(Topology) Numa Node"])
        known = card["Unique ID"] != "N/A"
        place = card["PCI Bus"].lower()
        expected = f"GPU-{int(card['Unique ID'], 16):016x}" if known else f"gpu-{place}"
        assert one.id == expected
        assert one.text("uuid") == (expected if known else "")
        given = card["Serial Number"] not in ("0", "N/A")
        assert one.text("serial") == (card["Serial Number"] if given else "")
    compared(name, 5 * len(cards))


def gpus(tree: ET.Element) -> Iterator[tuple[ET.Element, ET.Element, int]]:
    for cpu in tree.iter("cpu"):
        for pci in cpu.iter("pci"):
            if (gpu := pci.find("gpu")) is not None:
                yield pci, gpu, int(cpu.get("numaid", "-1"))


@pytest.mark.parametrize("name", recorded("nccl-topo/rccl/tools/topo_expl/models/*.xml"))
def test_xgmi_links_of_rccl(machines, look, tmp_path: Path, name: str) -> None:
    told = list(gpus(ET.parse(SHARED / name).getroot()))  # noqa: S314  # a file of ours
    tree = machines.Tree(tmp_path)
    nodes = {pci.get("busid"): number for number, (pci, _, _) in enumerate(told, 1)}
    expected: dict[tuple[str, str], int] = {}
    for place, (pci, gpu, numa) in enumerate(told):
        address = str(pci.get("busid"))
        path = f"pci{address[:7]}/{address}"
        kind = int(str(pci.get("class")), 16)
        folder = tree.function(path, kind, (0x1002, 0x66A1), "amdgpu", numa)
        tree.drm(folder, place, 128 + place)
        tree.kfd(place + 1, machines.properties(address, 128 + place, target=90006, units=60))
        for link in gpu.iter("xgmi"):
            other, count = str(link.get("target")), int(str(link.get("count")))
            tree.xgmi(place + 1, nodes[other], count=count, width=50000)
            ends = (min(address, other), max(address, other))
            expected[ends] = max(count, expected.get(ends, 0))
    inventory = look(tmp_path)
    found = {
        (link["one"].removeprefix("gpu-"), link["other"].removeprefix("gpu-")): link["count"]
        for link in inventory.topology["links"]
    }
    assert found == expected
    assert [one.number("numa_node") for one in amd(inventory)] == [
        numa for _, _, numa in sorted(told, key=lambda one: str(one[0].get("busid")))
    ]


def test_eight_mi50_of_hwloc(machines, look, tmp_path: Path) -> None:
    name = "hwloc-xml/mpibind__epyc-corona-p2.xml"
    functions = json.loads((SHARED / "expected/from-hwloc-xml.json").read_text("utf-8"))[name]
    tree = machines.Tree(tmp_path)
    expected = {}
    for one in functions:
        ids = (int(one["vendor"], 16), int(one["device"], 16))
        numa = one["numa"][0]
        path = "/".join((f"pci{one['bridges'][0][:7]}", *one["bridges"], one["pci"]))
        driver = {0x1002: "amdgpu", 0x1A03: "ast"}.get(ids[0], "")
        folder = tree.function(path, int(one["cls"], 16) << 8, ids, driver, numa)
        if ids[0] == 0x1002:
            place = len(expected)
            tree.drm(folder, place, 128 + place)
            tree.kfd(
                place + 1, machines.properties(one["pci"], 128 + place, target=90006, units=60)
            )
            expected[one["pci"]] = (numa, one["bridges"][-2])
    found = {
        one.text("pci_address"): (one.number("numa_node"), one.text("pcie_switch"))
        for one in look(tmp_path).instances
        if one.type == "gpu"
    }
    assert found == expected
    assert len(found) == 8
