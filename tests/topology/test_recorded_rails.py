"""Rails of machines that others recorded."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from topology.rails import CONNECTX, below, rails
from topology.trees import card, function, machine

from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory

SHARED = Path(__file__).parents[3] / "shared" / "machines"


def of_launch_kit(name: str, *, boards: bool) -> tuple[Inventory, dict[str, int]]:
    """Read what NVIDIA's Kubernetes launch kit says of a host's ports, and place them so."""
    text = (SHARED / f"k8s-launch-kit/{name}.topology.yaml").read_text("utf-8")
    pci: dict[str, Any] = {}
    cards = [card(below(pci, 0x10 * (at + 1), f"0000:{at + 1}1:00.0", at // 4)) for at in range(8)]
    expected = {}
    for entry in text.split("  - deviceID: ")[1:]:
        facts = dict(
            re.findall(r"^ *(\w+): *\"?([^\"\n]*)\"?$", "deviceID: " + entry, re.MULTILINE)
        )
        address, numa = facts["pciAddress"], int(facts["numaNode"])
        if facts["gpuProximity"] == "PIX":
            below(pci, 0x10 * (int(facts["connectedGPU"][3:]) + 1), address, numa)
        else:
            root = f"pci{address[:7]}"
            pci[address] = function(root, f"{root}-port", numa=numa)
        more = {"rdma_device": facts["rdmaDevice"]} if facts["rdmaDevice"] else {}
        more |= {"board_id": facts["psid"] or facts["partNumber"]} if boards else {}
        cards.append(card(address, "nic", vendor="mellanox", model=facts["deviceID"], **more))
        if "rail" in facts:
            expected[address] = int(facts["rail"])
    return machine(cards, pci), expected


@pytest.mark.needs("recorded")
@pytest.mark.parametrize("name", ["PowerEdge-XE9680", "ThinkSystem-SR680a-V3"])
@pytest.mark.parametrize("boards", [True, False])
def test_rails_of_real_hosts(name: str, boards: bool, compared) -> None:  # a parameter
    inventory, expected = of_launch_kit(name, boards=boards)
    assert len(expected) == 8
    assert rails(inventory).nics == expected
    assert list(rails(inventory).gpus.values()) == list(range(8))
    compared(name, len(expected) + 8)


EFA = {"vendor": "amazon", "model": "EFA", "rdma_device": "rdmap"}


@pytest.mark.needs("recorded")
@pytest.mark.parametrize(
    ("name", "facts", "count"),
    [("aws/p4d-24xl-topo", EFA, 4), ("azure/ndv4-topo", CONNECTX, 8)],
)
def test_rails_of_cloud_machines_whose_switches_are_hidden(
    name: str, facts: dict[str, Any], count: int
) -> None:
    """The file tells NCCL of switches; the guest sees host bridges and NUMA nodes alone."""
    tree = ET.parse(SHARED / f"nccl-topo/{name}.xml")  # noqa: S314  # a file of our own folder
    pci: dict[str, Any] = {}
    cards: list[Instance] = []
    switches: list[list[str]] = []
    for cpu in tree.iter("cpu"):
        for switch in cpu.findall("pci"):
            switches.append([])
            for one in switch.findall("pci"):
                address = one.attrib["busid"]
                pci[address] = function(f"pci{address[:7]}", numa=int(cpu.attrib["numaid"]))
                gpu = one.attrib["class"].startswith("0x03")
                cards.append(card(address, "gpu" if gpu else "nic", **({} if gpu else facts)))
                switches[-1].append(address)
    nodes = sorted({one["numa_node"] for one in pci.values()})
    found = rails(machine(cards, pci, nodes=nodes))
    assert sorted(found.nics.values()) == list(range(count))
    assert len(found.gpus) == 8
    for below_one in switches:  # a rail joins what the file has below one switch
        of_gpus = {found.gpus[one] for one in below_one if one in found.gpus}
        assert of_gpus == {found.nics[one] for one in below_one if one in found.nics}
