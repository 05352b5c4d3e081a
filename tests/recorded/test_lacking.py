"""Trees that lack something, or say too much: old kernels, and recordings by other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recorded import tree
from recorded.machine import Cpu, Function, Interface, Machine, Node

from xce_nodeagent.cli.local import look
from xce_nodeagent.host import Host, cpulist, pci

NIC = "0000:81:00.0"
TWO = Machine(
    functions=(
        Function(address="0000:80:01.0", path=("pci0000:80",), kind=0x0604, below=(0x81, 0x81)),
        Function(
            address=NIC,
            path=("pci0000:80", "0000:80:01.0"),
            kind=0x0200,
            vendor=0x15B3,
            device=0x1003,
            numa_node=1,
            cpus=frozenset({2, 3}),
        ),
    ),
    interfaces=(Interface(name="eth0", function=NIC, mac="02:00:00:00:00:01"),),
    cpus=tuple(Cpu(number=n, package=n // 2, core=n, threads=frozenset({n})) for n in range(4)),
    nodes=(
        Node(number=0, cpus=frozenset({0, 1}), distances=(10, 20)),
        Node(number=1, cpus=frozenset({2, 3}), distances=(20, 10)),
    ),
)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """The root of a small machine of two sockets; a test takes something away from it."""
    return tree.write(TWO, tmp_path / "two")


def nics(root: Path) -> dict[str, dict[str, Any]]:
    return {one.id: dict(one.attributes) for one in look(str(root), "").instances}


def function(root: Path) -> Path:
    return root / "sys/devices/pci0000:80/0000:80:01.0" / NIC


def test_nothing_lacks(two: Path) -> None:
    told = nics(two)[NIC]
    assert (told["netdev"], told["numa_node"], told["local_cpus"]) == ("eth0", 1, "2-3")
    assert look(str(two), "").topology["numa_nodes"][1]["cpus"] == "2-3"


def test_the_cpus_tell_the_node_where_there_is_no_numa_node(two: Path) -> None:
    (function(two) / "numa_node").unlink()
    assert nics(two)[NIC]["numa_node"] == 1


def test_cpus_of_two_nodes_tell_no_node(two: Path) -> None:
    (function(two) / "numa_node").unlink()
    (function(two) / "local_cpulist").write_text("1-2\n")
    assert "numa_node" not in nics(two)[NIC]


def test_firmware_that_knows_no_node_is_believed(two: Path) -> None:
    (function(two) / "numa_node").write_text("-1\n")
    assert "numa_node" not in nics(two)[NIC]


def test_a_mask_will_do_where_there_is_no_list(two: Path) -> None:
    (function(two) / "local_cpulist").unlink()
    assert nics(two)[NIC]["local_cpus"] == "2-3"


def test_the_folder_tells_what_an_interface_is_of_where_its_link_is_missing(two: Path) -> None:
    (function(two) / "net/eth0/device").unlink()
    (two / "sys/devices/virtual/net/br0").mkdir(parents=True)
    (two / "sys/class/net/br0").symlink_to("../../devices/virtual/net/br0")
    assert nics(two)[NIC]["netdev"] == "eth0"
    assert len(nics(two)) == 1


def test_no_interface_is_lost_because_a_driver_tells_no_ports_apart(tmp_path: Path) -> None:
    both = (*TWO.interfaces, Interface(name="ib0", function=NIC))
    root = tree.write(Machine(functions=TWO.functions, interfaces=both), tmp_path / "two")
    assert {told["netdev"]: name for name, told in nics(root).items()} == {
        "eth0": NIC,
        "ib0": f"{NIC}-p1",
    }


def test_a_cpu_that_is_offline_is_nowhere(two: Path) -> None:
    """Old kernels leave it its folder and its place in the node."""
    (two / "sys/devices/system/cpu/online").write_text("0-2\n")
    found = look(str(two), "").topology
    assert [one["cpus"] for one in found["numa_nodes"]] == ["0-1", "2"]
    assert [one["cpus"] for one in found["packages"]] == ["0-1", "2"]
    assert found["cores"] == ["0", "1", "2"]


def test_a_list_may_be_padded(two: Path) -> None:
    (two / "sys/devices/system/node/node1/cpulist").write_bytes(b"2-3\n\0\0")
    assert look(str(two), "").topology["numa_nodes"][1]["cpus"] == "2-3"


def test_cores_are_told_without_packages(two: Path) -> None:
    for cpu in range(4):
        package = two / f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"
        package.write_text("-1\n") if cpu < 2 else package.unlink()
    found = look(str(two), "").topology
    assert (found["packages"], found["cores"]) == ([], ["0", "1", "2", "3"])


@pytest.mark.parametrize("text", ["0-99999999999", "0-4294967295", "٣", "3-1,", "-1", "0,x"])
def test_what_is_no_list_of_cpus_is_empty(text: str) -> None:
    assert cpulist.read(text) == ()


def test_a_mask_without_an_end_is_read_to_the_last_cpu_that_can_be(tmp_path: Path) -> None:
    (tmp_path / "cpumap").write_text("f" * 100_000)
    assert len(cpulist.inside(Host(tmp_path), "/", "cpu")) == cpulist.LIMIT


def test_a_bridge_to_conventional_pci_is_no_port_of_a_switch() -> None:
    root_port, upstream, downstream, bridge = (f"0000:0{n}:00.0" for n in range(4))
    below = pci.Place("0000:04:00.0", "pci0000:00", (root_port, upstream, downstream, bridge))
    assert below.switch == upstream
    assert pci.Place("0000:04:00.0", "pci0000:00", (root_port, bridge)).switch == ""
