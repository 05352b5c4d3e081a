"""NICs of this machine, with ip(8) as the oracle; odd ones in small trees made here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from xce_nodeagent.host import Host
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.provider import Grant
from xce_nodeagent.providers.nic import PROVIDER


def nics(root: Path) -> dict[str, Instance]:
    return {nic.id: nic for nic in PROVIDER.discover(Host(root)).instances}


@pytest.mark.needs("ip")
def test_this_machines_nics_are_those_that_ip_shows() -> None:
    links = json.loads(subprocess.check_output(["ip", "-d", "-j", "link"]))
    routes = json.loads(subprocess.check_output(["ip", "-j", "route", "show", "default"]))
    hardware = {link["ifname"]: link for link in links if "parentbus" in link}
    found = {nic.text("netdev"): nic for nic in PROVIDER.discover(Host()).instances}
    assert set(found) == set(hardware)
    for name, nic in found.items():
        assert nic.text("mac") == hardware[name].get("permaddr", hardware[name]["address"])
        assert nic.text("state") == hardware[name]["operstate"].lower()
        assert (nic.text("link_layer") == "ethernet") == (hardware[name]["link_type"] == "ether")
    carrying = {route["dev"] for route in routes} & set(hardware)
    assert carrying <= {name for name, nic in found.items() if "default_route" in nic.attributes}
    assert all(nic.reserved for nic in found.values() if "default_route" in nic.attributes)


def function(root: Path, address: str, **more: str) -> Path:
    """Make a PCI function below a root port of its own."""
    folder = root / f"sys/devices/pci0000:00/0000:00:01.0/{address}"
    folder.mkdir(parents=True)
    facts = {"class": "0x020000", "vendor": "0x15b3", "device": "0x1021", "numa_node": "-1"} | more
    for name, value in facts.items():
        (folder / name).write_text(value + "\n")
    link(root / f"sys/bus/pci/devices/{address}", folder)
    return folder


def netdev(root: Path, name: str, device: Path, **facts: str) -> Path:
    folder = device / "net" / name
    folder.mkdir(parents=True)
    for key, value in ({"type": "1", "operstate": "up", "speed": "-1"} | facts).items():
        (folder / key).write_text(value + "\n")
    link(root / f"sys/class/net/{name}", folder)
    link(folder / "device", device)
    return folder


def rdma(root: Path, name: str, device: Path, ports: int = 1) -> None:
    folder = device / "infiniband" / name
    for port in range(1, ports + 1):
        (folder / f"ports/{port}").mkdir(parents=True)
        (folder / f"ports/{port}/state").write_text("4: ACTIVE\n")
        (folder / f"ports/{port}/rate").write_text("400 Gb/sec (4X NDR)\n")
        (folder / f"ports/{port}/link_layer").write_text("InfiniBand\n")
    link(root / f"sys/class/infiniband/{name}", folder)
    link(folder / "device", device)
    verbs = root / f"sys/class/infiniband_verbs/uverbs{name[-1]}"
    verbs.mkdir(parents=True)
    (verbs / "ibdev").write_text(f"{name}\n")
    (verbs / "dev").write_text(f"231:{192 + int(name[-1])}\n")


def link(name: Path, to: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.symlink_to(to)


def test_what_is_not_known_is_absent(tmp_path: Path) -> None:
    netdev(tmp_path, "eth0", function(tmp_path, "0000:01:00.0"))
    (nic,) = nics(tmp_path).values()
    assert nic.attributes == {
        "pci_address": "0000:01:00.0",
        "pcie_root": "pci0000:00",
        "vendor": "mellanox",
        "model": "ConnectX-7",
        "netdev": "eth0",
        "state": "up",
        "link_layer": "ethernet",
        "nic_kind": "ethernet",
    }


def test_a_virtio_nic_is_known_by_the_function_above_it(tmp_path: Path) -> None:
    above = function(tmp_path, "0000:01:00.0", vendor="0x1af4", device="0x1041")
    (above / "virtio2").mkdir()
    netdev(tmp_path, "eth0", above / "virtio2")
    assert list(nics(tmp_path)) == ["0000:01:00.0"]


def test_a_nic_on_no_pci_bus_is_known_by_its_name(tmp_path: Path) -> None:
    device = tmp_path / "sys/devices/platform/dwmac.0"
    device.mkdir(parents=True)
    netdev(tmp_path, "eth7", device)
    (nic,) = nics(tmp_path).values()
    assert (nic.id, nic.attributes["netdev"]) == ("net-eth7", "eth7")
    assert "pci_address" not in nic.attributes


def test_a_nic_on_usb_is_not_its_controller(tmp_path: Path) -> None:
    device = function(tmp_path, "0000:01:00.0", **{"class": "0x0c0330"}) / "usb1/1-1/1-1:1.0"
    device.mkdir(parents=True)
    (tmp_path / "sys/bus/usb").mkdir(parents=True)
    (device / "subsystem").symlink_to(tmp_path / "sys/bus/usb")
    netdev(tmp_path, "usb0", device)
    assert list(nics(tmp_path)) == ["net-usb0"]


def test_two_ports_of_one_function_exclude_each_other(tmp_path: Path) -> None:
    """The mlx4 driver has both ports of a card on one function, and one node opens both."""
    device = function(tmp_path, "0000:82:00.0", device="0x1003")
    netdev(tmp_path, "ib0", device, type="32", dev_port="0")
    netdev(tmp_path, "ib1", device, type="32", dev_port="1")
    rdma(tmp_path, "mlx4_0", device, ports=2)
    found = nics(tmp_path)
    assert {one.id: (one.text("netdev"), one.number("rdma_port")) for one in found.values()} == {
        "0000:82:00.0": ("ib0", 1),
        "0000:82:00.0-p1": ("ib1", 2),
    }
    assert found["0000:82:00.0"].overlaps == ("0000:82:00.0-p1",)
    assert found["0000:82:00.0-p1"].overlaps == ("0000:82:00.0",)


def test_the_gid_table_says_which_port_is_an_interfaces(tmp_path: Path) -> None:
    device = function(tmp_path, "0000:01:00.0")
    netdev(tmp_path, "eth0", device)
    rdma(tmp_path, "mlx5_0", device, ports=2)
    names = device / "infiniband/mlx5_0/ports/2/gid_attrs/ndevs"
    names.mkdir(parents=True)
    (names / "0").write_text("eth0\n")
    found = nics(tmp_path)
    assert found["0000:01:00.0"].attributes["rdma_port"] == 2


def test_an_rdma_device_without_an_interface_is_a_nic(tmp_path: Path) -> None:
    rdma(tmp_path, "efa_0", function(tmp_path, "0000:01:00.0", vendor="0x1d0f", device="0xefa2"))
    (nic,) = nics(tmp_path).values()
    assert nic.attributes["rdma_device"] == "efa_0"
    assert nic.attributes["speed_mbps"] == 400000
    assert "netdev" not in nic.attributes
    (node,) = nic.devices
    assert (node.path, node.major, node.minor) == ("/dev/infiniband/uverbs0", 231, 192)


def test_a_virtual_function_names_its_physical_one(tmp_path: Path) -> None:
    physical = function(tmp_path, "0000:01:00.0")
    netdev(tmp_path, "eth0", physical)
    virtual = function(tmp_path, "0000:01:00.1", device="0x101e")
    netdev(tmp_path, "eth0v0", virtual)
    (virtual / "physfn").symlink_to(physical)
    found = nics(tmp_path)
    assert found["0000:01:00.1"].attributes["physical_function"] == "0000:01:00.0"
    assert found["0000:01:00.1"].parent == "0000:01:00.0"
    assert "physical_function" not in found["0000:01:00.0"].attributes


def test_representors_and_children_are_no_nics(tmp_path: Path) -> None:
    device = function(tmp_path, "0000:01:00.0")
    netdev(tmp_path, "eth0", device, phys_port_name="p0", ifindex="2", iflink="2")
    netdev(tmp_path, "eth0_0", device, phys_port_name="pf0vf0", ifindex="3", iflink="3")
    netdev(tmp_path, "ib0.8001", device, ifindex="4", iflink="2")
    assert [nic.text("netdev") for nic in nics(tmp_path).values()] == ["eth0"]


def test_management_nodes_are_fenced_and_never_granted(tmp_path: Path) -> None:
    device = function(tmp_path, "0000:01:00.0")
    rdma(tmp_path, "mlx5_0", device)
    for folder, numbers in (("infiniband_mad/umad0", "231:0"), ("misc/rdma_cm", "10:58")):
        (tmp_path / "sys/class" / folder).mkdir(parents=True)
        (tmp_path / "sys/class" / folder / "dev").write_text(numbers + "\n")
    found = PROVIDER.discover(Host(tmp_path))
    control = {c.node.path: c.granted for c in found.control}
    assert control == {"/dev/infiniband/rdma_cm": True, "/dev/infiniband/umad0": False}
    granted = tuple(c.node for c in found.control if c.granted)
    plan = PROVIDER.plan(Grant(instances=found.instances, control=granted))
    assert [str(rule.device) for rule in plan.grants] == ["c 231:192", "c 10:58"]


def test_a_nic_without_rdma_needs_no_node(tmp_path: Path) -> None:
    netdev(tmp_path, "eth0", function(tmp_path, "0000:01:00.0"))
    found = PROVIDER.discover(Host(tmp_path))
    plan = PROVIDER.plan(Grant(instances=found.instances))
    assert plan.grants == ()
    assert plan.environment == {
        "XCE_NICS": "0000:01:00.0",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "UCX_NET_DEVICES": "eth0",
    }
