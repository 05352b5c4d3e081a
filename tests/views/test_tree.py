"""The tree: every place on the way to a device, each device once, and the links beside PCI."""

from __future__ import annotations

import copy
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from xce_nodeagent.cli.tree import inventory_tree
from xce_nodeagent.host import Host

PROFILES = ("cpu-only", "dgx-a100-mig", "dgx-h100", "gb200", "mi300x")


def levels(shown: str) -> list[tuple[int, str]]:
    """Give each line's depth and its words."""
    return [
        (len(re.match(r"[│├└─ ]*", line)[0]) // 4, line.lstrip("│├└─ "))
        for line in shown.splitlines()
    ]


def above(shown: str, word: str) -> list[str]:
    """Give the lines above the one that has a word, from the root down."""
    lines = levels(shown)
    at = next(number for number, (_, text) in enumerate(lines) if word in text)
    way, depth = [], lines[at][0]
    for level, text in reversed(lines[:at]):
        if level < depth:
            way.insert(0, text)
            depth = level
    return way


@pytest.mark.parametrize("profile", PROFILES)
def test_every_instance_is_there_once(simulated, profile: str) -> None:
    machine = simulated(profile)
    shown = inventory_tree(machine)
    for one in machine["instances"]:
        assert len(re.findall(rf"^[│├└─ ]+{one['type']} {one['id']}\b", shown, re.MULTILINE)) == 1


@pytest.mark.needs("recorded")
def test_every_instance_of_a_recorded_machine_is_there(look, recorded_root: Path) -> None:
    machine = look(Host(recorded_root))
    shown = inventory_tree(machine)
    assert all(f"{one['type']} {one['id']}" in shown for one in machine["instances"])


def test_the_way_to_a_slice(simulated) -> None:
    machine = simulated("dgx-a100-mig")
    machine["node"] = "node7"
    part = next(one for one in machine["instances"] if one["type"] == "mig")
    way = above(inventory_tree(machine), part["id"])
    assert [re.sub(r" [^ ]*$", "", line) for line in way[:4]] == [
        "node7", "NUMA node", "PCIe root", "PCIe switch",
    ]  # fmt: skip
    assert way[4].startswith(f"gpu {part['parent']} NVIDIA A100-SXM4-80GB 80 GiB (2 slices) rail")


@pytest.mark.needs("recorded")
def test_every_switch_on_the_way(look, recorded) -> None:
    """A card of a DGX A100 is below three switches, its NIC below two of them."""
    shown = inventory_tree(look(Host(recorded("checkbox-udev/NVIDIA_DGXA100.txt.xz"))))
    switches = [f"PCIe switch 0000:{bus}:00.0" for bus in ("01", "0a", "0d")]
    assert above(shown, "gpu gpu-0000:0f:00.0")[-3:] == switches
    assert above(shown, "nic 0000:0c:00.0")[-2:] == switches[:2]


def with_links(machine: dict[str, Any], links: list[tuple[int, int, int]]) -> dict[str, Any]:
    machine = copy.deepcopy(machine)
    ids = [one["id"] for one in machine["instances"] if one["type"] == "gpu"]
    machine["topology"]["links"] = [
        {"kind": "nvlink", "one": min(ids[a], ids[b]), "other": max(ids[a], ids[b]), "count": count}
        for a, b, count in links
    ]
    return machine


def test_links_beside_pci(simulated) -> None:
    machine = simulated("dgx-h100")
    assert "NVLink domain, " in inventory_tree(machine)
    pairs = inventory_tree(with_links(machine, [(0, 1, 2), (2, 3, 2), (4, 5, 1)]))
    assert "NVLink, 1 link a pair: GPU 4-5" in pairs
    assert re.search(r"NVLink, 2 links a pair: GPU (0-1|1-0), (2-3|3-2)$|NVLink, 2 links a pair: "
                     r"GPU (2-3|3-2), (0-1|1-0)$", pairs, re.MULTILINE)  # fmt: skip
    mesh = with_links(machine, [(a, b, 4) for a, b in combinations(range(8), 2)])
    assert "NVLink, each with each, 4 links: GPU 0-7" in inventory_tree(mesh)


def test_what_keeps_an_instance_from_a_job_is_said(simulated) -> None:
    machine = copy.deepcopy(simulated("dgx-h100"))
    first, second, third = machine["instances"][:3]
    first.update(healthy=False, reason="XID 79: it has fallen off the bus")
    second.update(reserved="it is the host's console")
    third.update(held_by=[{"job": "17", "attempt": "1"}])
    shown = inventory_tree(machine)
    assert re.search(rf"{first['id']} .* unhealthy$", shown, re.MULTILINE)
    assert f"{first['id']}: unhealthy: XID 79: it has fallen off the bus" in shown
    assert re.search(rf"{second['id']} .* no job$", shown, re.MULTILINE)
    assert re.search(rf"{third['id']} .* held by 17:1$", shown, re.MULTILINE)


def test_instances_within_each_other_are_no_loop(simulated) -> None:
    machine = copy.deepcopy(simulated("dgx-h100"))
    machine["instances"][8]["parent"] = machine["instances"][8]["id"]
    assert inventory_tree(machine)
