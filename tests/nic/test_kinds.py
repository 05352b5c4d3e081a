"""Each kind of NIC, as its driver shows it: what it is, its nodes, its ports, who is whose."""

from __future__ import annotations

from typing import Any

import pytest

from xce_nodeagent.host import Host
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.provider import Grant
from xce_nodeagent.providers.nic import PROVIDER

A, B, C = "0000:18:00.0", "0000:18:00.1", "0000:3a:00.0"


def environment(*nics: Instance) -> dict[str, str]:
    return dict(PROVIDER.plan(Grant(instances=nics)).environment)


def test_ethernet(machine: Any) -> None:
    machine.netdev("eth0", machine.function(A), carrier="1", speed="25000")
    nic = machine.nics()[A]
    assert nic.text("nic_kind") == nic.text("link_layer") == "ethernet"
    assert nic.attributes["carrier"] is True
    assert nic.number("speed_mbps") == 25000
    assert "vf_count" not in nic.attributes


def test_roce(machine: Any) -> None:
    device = machine.function(A)
    machine.netdev("eth0", device, carrier="0", operstate="down")
    machine.rdma("mlx5_0", device, port_state="1: DOWN", fw_ver="28.36.1010", board_id="MT_0838")
    nic = machine.nics()[A]
    assert nic.text("nic_kind") == "roce"
    assert (nic.attributes["carrier"], nic.attributes["state"]) == (False, "down")
    assert nic.attributes["firmware_version"] == "28.36.1010"
    assert nic.attributes["board_id"] == "MT_0838"


def test_iwarp_is_ethernet_with_an_rdma_device(machine: Any) -> None:
    device = machine.function(A, ("0x8086", "0x1592"))
    machine.netdev("eth0", device)
    machine.rdma("irdma0", device, node_type="4: RNIC")
    nic = machine.nics()[A]
    assert (nic.text("nic_kind"), nic.text("rdma_device")) == ("ethernet", "irdma0")


@pytest.mark.parametrize(
    ("code", "rdma", "kind"),
    [
        ("0x020000", False, "ethernet"),
        ("0x020000", True, "roce"),
        ("0x020700", True, "infiniband"),
        ("0x028000", False, ""),
    ],
)
def test_the_pci_class_tells_where_no_link_layer_is_told(
    machine: Any, code: str, rdma: bool, kind: str
) -> None:
    """Recorded machines lack it often."""
    device = machine.function(A, **{"class": code})
    machine.netdev("net0", device, type="")
    if rdma:
        machine.rdma("mlx5_0", device, layer="", node_type="")
    assert machine.nics()[A].text("nic_kind") == kind


def test_infiniband_is_up_when_its_port_is(machine: Any) -> None:
    """Nobody has to configure IP on a rail for MPI to use it."""
    device = machine.function(A, **{"class": "0x020700"})
    machine.netdev("ib0", device, type="32", operstate="down")
    machine.rdma("mlx5_0", device, layer="InfiniBand")
    nic = machine.nics()[A]
    assert nic.text("nic_kind") == "infiniband"
    assert (nic.text("state"), nic.attributes["carrier"]) == ("up", True)
    machine.file("/sys/class/infiniband/mlx5_0/ports/1/state", "2: INIT")
    assert machine.nics()[A].text("state") == "down"


@pytest.mark.parametrize("driver", ["efa", ""])
def test_efa_has_no_interface(machine: Any, driver: str) -> None:
    device = machine.function(A, ("0x1d0f", "0xefa2"), driver=driver)
    machine.rdma("rdmap24s0", device, node_type="7: unspecified", port_phys_state="2: Polling")
    nic = machine.nics()[A]
    assert (nic.text("nic_kind"), nic.text("model")) == ("efa", "EFA")
    assert nic.attributes["carrier"] is False
    assert [node.path for node in nic.devices] == ["/dev/infiniband/uverbs0"]


def test_slingshot_has_its_own_node(machine: Any) -> None:
    device = machine.function(A, ("0x17db", "0x0501"), driver="cxi_ss1")
    machine.netdev("hsn0", device, speed="200000")
    machine.node("cxi_user", "cxi0", "511:0", device)
    other = machine.function(C, ("0x17db", "0x0501"), driver="cxi_ss1")
    machine.netdev("hsn1", other)
    found = machine.nics()
    assert {nic.text("nic_kind") for nic in found.values()} == {"slingshot"}
    assert [node.path for node in found[A].devices] == ["/dev/cxi0"]
    assert found[C].devices == ()


def omnipath(machine: Any, address: str, name: str, unit: int) -> None:
    device = machine.function(address, ("0x8086", "0x24f0"), driver="hfi1")
    machine.rdma(name, device, layer="InfiniBand", minor=192 + unit, board_id="an HFI")
    machine.node("hfi1_user", f"hfi1_{unit}", f"510:{unit}")


def test_omnipath_has_its_own_node(machine: Any) -> None:
    omnipath(machine, A, "hfi1_0", 0)
    omnipath(machine, C, "hfi1_1", 1)
    machine.node("hfi1", "hfi1_diag", "510:128")
    found = machine.nics()
    assert {nic.text("nic_kind") for nic in found.values()} == {"omnipath"}
    assert [node.path for node in found[C].devices] == ["/dev/infiniband/uverbs1", "/dev/hfi1_1"]
    control = PROVIDER.discover(Host(machine.root)).control
    assert [(one.node.path, one.granted) for one in control] == [("/dev/hfi1_diag", False)]


def test_of_renamed_omnipath_cards_nobody_gets_a_node_that_may_be_anothers(machine: Any) -> None:
    omnipath(machine, A, "opap24s0", 0)
    (nic,) = machine.nics().values()
    assert nic.devices[-1].path == "/dev/hfi1_0"
    omnipath(machine, C, "opap58s0", 1)
    assert all(len(nic.devices) == 1 for nic in machine.nics().values())
    control = PROVIDER.discover(Host(machine.root)).control
    assert {one.node.path for one in control if not one.granted} == {"/dev/hfi1_0", "/dev/hfi1_1"}


def test_a_port_excludes_its_virtual_functions_and_they_do_not_each_other(machine: Any) -> None:
    machine.netdev("eth0", machine.function(A, sriov_numvfs="2", sriov_totalvfs="8"))
    for number in (1, 2):
        machine.netdev(f"eth0v{number}", machine.function(f"0000:18:00.{number}", of=A))
    found = machine.nics()
    port, *virtual = found.values()
    assert port.attributes["vf_count"] == 2
    assert port.overlaps == tuple(one.id for one in virtual)
    for one in virtual:
        assert (one.parent, one.text("physical_function"), one.overlaps) == (A, A, (A,))
        assert "vf_count" not in one.attributes


def test_a_virtual_function_that_a_machine_has_is_counted_and_no_instance(machine: Any) -> None:
    """vfio-pci has it: there is no interface here, and nothing of it that a job could use."""
    machine.netdev("eth0", machine.function(A, sriov_numvfs="1"))
    machine.function(B, of=A, driver="vfio-pci")
    found = machine.nics()
    assert set(found) == {A}
    assert found[A].attributes["vf_count"] == 1


def test_before_linux_3_8_virtual_functions_are_counted_by_their_links(machine: Any) -> None:
    device = machine.function(A)
    machine.netdev("eth0", device)
    machine.link(f"{device}/virtfn0", machine.function(B, of=A))
    assert machine.nics()[A].attributes["vf_count"] == 1


def test_a_subfunction_is_a_nic_of_its_own(machine: Any) -> None:
    device = machine.function(A)
    machine.netdev("eth0", device)
    machine.rdma("mlx5_0", device)
    part = f"{device}/mlx5_core.sf.4"
    machine.file(f"{part}/sfnum", "88")
    machine.link(f"{part}/subsystem", "/sys/bus/auxiliary")
    machine.file("/sys/bus/auxiliary/drivers_autoprobe", "1")
    machine.netdev("eth0s88", part)
    machine.rdma("mlx5_4", part, minor=196)
    found = machine.nics()
    assert {one.id: one.text("rdma_device") for one in found.values()} == {
        A: "mlx5_0", f"{A}-sf88": "mlx5_4",
    }  # fmt: skip
    assert found[f"{A}-sf88"].parent == A
    assert found[f"{A}-sf88"].overlaps == (A,)


def test_members_of_a_bond_are_one_link(machine: Any) -> None:
    for number, address in enumerate((A, B)):
        machine.netdev(f"eth{number}", machine.function(address))
    machine.netdev("eth2", machine.function(C))
    machine.bond("bond0", "eth0", "eth1")
    machine.vlan("bond0.7", "bond0")
    machine.vlan("inner", "bond0.7")
    found = machine.nics()
    assert (found[A].overlaps, found[B].overlaps, found[C].overlaps) == ((B,), (A,), ())
    assert found[A].text("bond") == found[B].text("bond") == "bond0"
    assert found[A].attributes["vlans"] == ["bond0.7", "inner"]
    assert "bond" not in found[C].attributes
    # What is part of a bond has no address of its own.
    assert environment(found[A])["NCCL_SOCKET_IFNAME"] == "=bond0"
    assert environment(found[B], found[C])["UCX_NET_DEVICES"] == "bond0,eth2"


def test_ports_of_a_bridge_are_links_of_their_own(machine: Any) -> None:
    for number, address in enumerate((A, B)):
        machine.netdev(f"eth{number}", machine.function(address))
    machine.netdev("br0")
    machine.file("/sys/class/net/br0/bridge/stp_state", "0")
    machine.on("br0", "eth0", "eth1")
    found = machine.nics()
    assert found[A].overlaps == ()
    assert "bond" not in found[A].attributes


def test_both_functions_of_a_bond_have_its_one_rdma_device(machine: Any) -> None:
    """RoCE LAG: mlx5_bond_0 hangs on the first function, and names the bond."""
    first, second = machine.function(A), machine.function(B)
    machine.netdev("eth0", first)
    machine.netdev("eth1", second)
    machine.bond("bond0", "eth0", "eth1")
    folder = machine.rdma("mlx5_bond_0", first)
    machine.file(f"{folder}/ports/1/gid_attrs/ndevs/0", "bond0")
    found = machine.nics()
    assert {nic.text("rdma_device") for nic in found.values()} == {"mlx5_bond_0"}
    assert found[B].devices == found[A].devices != ()
    assert environment(found[B])["NCCL_IB_HCA"] == "=mlx5_bond_0:1"


def test_rdma_in_software_belongs_to_the_interface_that_it_names(machine: Any) -> None:
    machine.netdev("eth0", machine.function(A))
    machine.netdev("eth1", machine.function(C))
    folder = "/sys/devices/virtual/infiniband/rxe0"
    machine.file(f"{folder}/ports/1/state", "4: ACTIVE")
    machine.file(f"{folder}/ports/1/link_layer", "Ethernet")
    machine.file(f"{folder}/ports/1/gid_attrs/ndevs/0", "eth1")
    machine.link("/sys/class/infiniband/rxe0", folder)
    found = machine.nics()
    assert found[C].text("rdma_device") == "rxe0"
    assert found[C].text("nic_kind") == "roce"
    assert "rdma_device" not in found[A].attributes


def test_two_that_seem_to_be_one_are_both_there(machine: Any) -> None:
    device = machine.function(A)
    machine.netdev("eth0", device)
    machine.netdev("eth1", device)
    assert {nic.text("netdev") for nic in machine.nics().values()} == {"eth0", "eth1"}


def test_an_rdma_device_on_no_pci_bus_has_its_name(machine: Any) -> None:
    """So are the RoCE engines of some ARM servers; one in software is no NIC."""
    platform = "/sys/devices/platform/HISI00D1:00"
    machine.rdma("hns_0", platform)
    machine.rdma("rxe0", "/sys/devices/virtual", minor=193)
    machine.file(f"{platform}/infiniband/hns_0/ports/2/state", "1: DOWN")
    found = machine.nics()
    assert {name: nic.text("nic_kind") for name, nic in found.items()} == {
        "rdma-hns_0": "roce",
        "rdma-hns_0-p1": "",
    }
    assert [node.path for node in found["rdma-hns_0"].devices] == ["/dev/infiniband/uverbs0"]
    assert found["rdma-hns_0"].overlaps == ("rdma-hns_0-p1",)


@pytest.mark.parametrize(
    ("facts", "identity"),
    [
        ({"dev_port": "1"}, f"{A}-p1"),
        ({"dev_id": "0x1"}, f"{A}-p1"),
        ({"dev_port": "0", "dev_id": "0x1"}, A),
        ({"dev_port": "0", "dev_id": "0x1", "type": "32"}, f"{A}-p1"),
        ({"dev_id": "0x20"}, A),
    ],
)
def test_ports_of_one_function(machine: Any, facts: dict[str, str], identity: str) -> None:
    machine.netdev("net0", machine.function(A), **facts)
    assert set(machine.nics()) == {identity}
