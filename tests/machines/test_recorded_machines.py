"""Discovery against machines that were recorded by others; what is right is in the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host, pci, topology
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.request import parse
from xce_nodeagent.placement import choose
from xce_nodeagent.providers import all_providers

pytestmark = pytest.mark.needs("recorded")

SHARED = Path(__file__).parents[3] / "shared" / "machines"
XEON = "hwloc/32em64t-2n8c+dax+nvme+mic+dimms.tar.bz2"
DGX = "checkbox-udev/NVIDIA_DGXA100.txt.xz"


def look(root: Path) -> Inventory:
    return scan(Host(root), all_providers(("nvidia", "nic")))


def test_a_cluster_node_with_infiniband(recorded) -> None:
    nics = {nic.id: nic for nic in look(recorded(XEON)).instances}
    assert set(nics) == {"0000:02:00.0", "0000:02:00.3", "0000:82:00.0"}
    ib0 = nics["0000:82:00.0"]
    assert ib0.attributes["numa_node"] == 1
    assert ib0.attributes["rdma_device"] == "mlx4_0"
    assert ib0.attributes["netdev"] == "ib0"
    assert ib0.attributes["link_layer"] == "infiniband"
    assert ib0.attributes["local_cpus"] == "8-15"
    assert [nics[f"0000:02:00.{n}"].attributes["netdev"] for n in (0, 3)] == ["eth0", "eth1"]
    assert [nics[f"0000:02:00.{n}"].attributes["numa_node"] for n in (0, 3)] == [0, 0]


def test_bridges_and_vlans_are_no_hardware(recorded) -> None:
    root = recorded(XEON)
    assert {"lo", "br0", "eth0.1015", "mic0"} < set(Host(root).names("/sys/class/net"))
    names = {nic.text("netdev") for nic in look(root).instances}
    assert names == {"eth0", "eth1", "ib0"}


def test_packages_cores_and_nodes(recorded) -> None:
    found = topology.read(Host(recorded(XEON)))
    assert [package["cpus"] for package in found["packages"]] == ["0-7", "8-15"]
    assert [node["cpus"] for node in found["numa_nodes"]] == ["0-7", "8-15"]
    assert len(found["cores"]) == 16
    assert found["memory_nodes"] == []


def test_the_memory_of_gpus_is_no_cpu_node(recorded) -> None:
    found = topology.read(Host(recorded("hwloc/nvidiagpunumanodes.tar.bz2")))
    assert [node["id"] for node in found["numa_nodes"]] == [0, 8]
    assert found["memory_nodes"] == list(range(250, 256))


def test_a_32_bit_pci_domain(recorded) -> None:
    host = Host(recorded("hwloc/2pa-pcidomain32bits.tar.bz2"))
    disk = pci.place(host, "/sys/bus/pci/devices/10000:00:04.0")
    assert disk == pci.Place("10000:00:04.0", "pci10000:00")
    (nic,) = look(host.root).instances
    assert (nic.id, nic.attributes["netdev"]) == ("0000:00:03.0", "ens3")


@pytest.mark.parametrize(
    "name", ["NVIDIA_DGXA100", "NVIDIA_DGX_STATION", "DELL_IDRAC", "bmc_network_vs_network"]
)
def test_where_cards_hang_on_real_servers(recorded, name: str) -> None:
    record = f"checkbox-udev/{name}.txt.xz"
    host = Host(recorded(record))
    expected: list[dict[str, Any]] = json.loads(
        (SHARED / "expected/from-udev.json").read_text("utf-8")
    )[record]
    nics = {nic.id: nic for nic in look(host.root).instances if nic.type == "nic"}
    for card in expected:
        place = pci.place(host, f"/sys/bus/pci/devices/{card['pci']}")
        assert [place.root, *place.bridges] == card["path"]
        if card["net"] or card["rdma"]:
            assert nics[card["pci"]].text("netdev") == "".join(card["net"])
            assert nics[card["pci"]].text("rdma_device") == "".join(card["rdma"])
    on_pci = {card["pci"] for card in expected if card["net"] or card["rdma"]}
    assert {nic.id for nic in nics.values() if "pci_address" in nic.attributes} == on_pci


def test_cards_without_a_driver_are_there_and_unhealthy(recorded) -> None:
    inventory = look(recorded(DGX))
    gpus = [one for one in inventory.instances if one.type == "gpu"]
    assert [gpu.text("pci_address")[5:7] for gpu in gpus] == [
        "07", "0f", "47", "4e", "87", "90", "b7", "bd",
    ]  # fmt: skip
    assert not any(gpu.healthy for gpu in gpus)
    assert all("no driver is bound" in gpu.reason for gpu in gpus)
    (problem,) = inventory.problems
    assert (problem.provider, problem.state) == ("nvidia", "error")
    assert "8 NVIDIA cards" in problem.reason


def test_nics_follow_their_cards_through_nested_switches(recorded) -> None:
    """On a DGX A100 GPUs 07 and 0f share a switch with NICs 0c and 12, and so on."""
    inventory = look(recorded(DGX))
    gpus = [one.id for one in inventory.instances if one.type == "gpu"]
    pairs = (("0c", "12"), ("4b", "54"), ("8d", "94"), ("ba", "cc"))
    for place, near in enumerate(pairs):
        both = gpus[2 * place : 2 * place + 2]
        choice = choose(inventory, parse("rusage[nic=2]"), near=both)
        assert choice.instances == tuple(f"0000:{bus}:00.0" for bus in near)
    every = choose(inventory, parse("rusage[nic=8]"), near=gpus)
    assert every.instances == tuple(f"0000:{bus}:00.0" for pair in pairs for bus in pair)


def test_the_rails_of_a_dgx_are_those_below_its_gpus_switches(recorded) -> None:
    """mlx5_8 and mlx5_9 are of the same kind, and on a host bridge that no GPU is on."""
    inventory = look(recorded(DGX))
    rails = {one.text("rdma_device"): one.attributes["rail"] for one in inventory.instances
             if "rail" in one.attributes}  # fmt: skip
    assert rails == {f"mlx5_{number}": number for number in range(8)}
    gpus = [one.id for one in inventory.instances if one.type == "gpu"]
    assert inventory.topology["rails"]["gpus"] == {gpu: at for at, gpu in enumerate(gpus)}
    distance = inventory.layout.between
    assert {distance(gpus[0], nic) for nic in ("0000:0c:00.0", "0000:12:00.0")} == {"PXB"}
    # the record does not tell NUMA nodes, and not that there is more than one
    assert distance(gpus[0], "0000:e1:00.0") == "NODE"
    assert distance("0000:e1:00.0", "0000:e1:00.1") == "PIX"


def test_verbs_nodes_belong_to_their_function(recorded) -> None:
    nics = [nic for nic in look(recorded(DGX)).instances if nic.text("rdma_device")]
    assert len(nics) == 10
    for nic in nics:
        (node,) = nic.devices
        assert node.path.startswith("/dev/infiniband/uverbs")
        assert node.major == 231
    assert len({nic.devices for nic in nics}) == 10
