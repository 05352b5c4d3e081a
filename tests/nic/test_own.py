"""The host's own NICs on recorded machines: the way to the default route, and what goes with it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.host.route import Route, Rule, recorded, ways
from xce_nodeagent.host.stack import Stack
from xce_nodeagent.providers import all_providers

A, B, C = "0000:18:00.0", "0000:18:00.1", "0000:3a:00.0"


def own(machine: Any, **config: tuple[str, ...]) -> set[str]:
    return {one.id for one in machine.nics(**config).values() if one.reserved}


def three(machine: Any) -> None:
    for name, address in (("eth0", A), ("eth1", B), ("eth2", C)):
        machine.netdev(name, machine.function(address))


def test_without_a_default_route_nothing_is_known_to_be_needed(machine: Any) -> None:
    three(machine)
    assert own(machine) == set()
    assert own(machine, reserve=("eth1",)) == {B}


def test_the_way_is_kept_and_only_that(machine: Any) -> None:
    three(machine)
    machine.default_route("eth0")
    nics = machine.nics()
    assert nics[A].reserved == "the host's IPv4 default route goes out by it"
    assert nics[A].attributes["default_route"] is True
    assert own(machine) == {A}
    assert own(machine, offer=("eth0",)) == set()
    assert machine.nics(offer=("eth0",))[A].attributes["default_route"] is True


def test_a_vlan_on_a_bond_needs_its_members(machine: Any) -> None:
    three(machine)
    machine.bond("bond0", "eth0", "eth1")
    machine.vlan("bond0.7", "bond0")
    machine.default_route("bond0.7")
    assert own(machine) == {A, B}
    assert machine.nics()[B].reserved.endswith("default route goes out by bond0.7, and so by it")


def test_a_switch_in_software_needs_all_its_ports(machine: Any) -> None:
    """Open vSwitch: the host's address is on a port of it, which stands on nothing."""
    three(machine)
    for name in ("ovs-system", "br-ex"):
        machine.netdev(name)
        machine.file(f"/sys/class/net/{name}/uevent", f"DEVTYPE=openvswitch\nINTERFACE={name}")
    machine.on("ovs-system", "br-ex", "eth1")
    for name in ("br-ex", "eth1"):
        machine.link(f"/sys/class/net/{name}/master", "/sys/class/net/ovs-system")
    machine.default_route("br-ex")
    assert own(machine) == {B}


def test_members_of_a_vrf_have_nothing_in_common(machine: Any) -> None:
    three(machine)
    machine.netdev("vrf0")
    machine.file("/sys/class/net/vrf0/uevent", "DEVTYPE=vrf\nINTERFACE=vrf0")
    machine.on("vrf0", "eth0", "eth1")
    for name in ("eth0", "eth1"):
        machine.link(f"/sys/class/net/{name}/master", "/sys/class/net/vrf0")
    machine.default_route("eth0")
    assert own(machine) == {A}


def test_hyper_v_sends_by_the_virtual_function_below(machine: Any) -> None:
    """The way of Azure: the interface of VMBus has the address, and is master of a card's."""
    device = "/sys/devices/LNXSYSTM:00/VMBUS:00/f8b3781a"
    machine.file(f"{device}/class_id", "{f8615163}")
    machine.netdev("eth0", device)
    machine.netdev("enP1", machine.function(A))
    machine.on("eth0", "enP1")
    machine.link("/sys/class/net/enP1/master", "/sys/class/net/eth0")
    machine.default_route("eth0")
    found = machine.nics()
    assert set(found) == own(machine) == {"net-eth0", A}
    assert found[A].overlaps == ("net-eth0",)


def test_a_virtual_function_that_carries_it_keeps_its_port_but_not_the_others(machine: Any) -> None:
    machine.netdev("pf", machine.function(A))
    for number in (1, 2):
        machine.netdev(f"vf{number}", machine.function(f"0000:18:00.{number}", of=A))
    machine.default_route("vf1")
    assert own(machine) == {A, B}
    machine.default_route("pf")
    assert own(machine) == {A}


def test_the_other_port_of_one_rdma_device_is_kept_too(machine: Any) -> None:
    """An mlx4 card; the way goes by IP over InfiniBand, on a child with a partition of its own."""
    device = machine.function(A, ("0x15b3", "0x1003"))
    first = machine.netdev("ib0", device, type="32", dev_port="0")
    machine.netdev("ib1", device, type="32", dev_port="1")
    folder = machine.rdma("mlx4_0", device, layer="InfiniBand")
    machine.file(f"{folder}/ports/2/link_layer", "InfiniBand")
    machine.netdev("eth2", machine.function(C))
    machine.default_route("ib0")
    assert own(machine) == {A, f"{A}-p1"}
    parent = (machine.root / first.lstrip("/") / "ifindex").read_text().strip()
    machine.netdev("ib0.8001", device, type="32", ifindex="90", iflink=parent)
    machine.default_route("ib0.8001")
    assert own(machine) == {A, f"{A}-p1"}


def test_what_hangs_on_usb_is_the_management_controllers(machine: Any) -> None:
    device = f"{machine.function(A, **{'class': '0x0c0330'})}/usb1/1-1/1-1:1.0"
    machine.file(f"{device}/interface", "CDC")
    machine.link(f"{device}/subsystem", "/sys/bus/usb")
    machine.file("/sys/bus/usb/uevent", "")
    machine.netdev("usb0", device)
    assert own(machine) == {"net-usb0"}
    assert own(machine, offer=("usb*",)) == set()


def test_no_way_out_is_lost_by_what_sysfs_says_twice_or_wrongly(machine: Any) -> None:
    three(machine)
    machine.bond("bond0", "eth0", "eth1")
    machine.on("eth0", "bond0")  # a circle
    machine.file("/sys/class/net/eth2/ifindex", "2")  # as eth0
    machine.default_route("bond0")
    assert own(machine) == {A, B}


def test_the_counters_and_the_planner_know_the_hosts_own(machine: Any) -> None:
    three(machine)
    machine.default_route("eth0")
    inventory = scan(Host(machine.root), all_providers(("nic",)))
    assert inventory.counters["nic"] == {"total": 2, "healthy": 2, "reserved": 1}


IPV6 = "{:032x} {:02x} {:032x} 00 {:032x} 00000400 00000001 00000000 {:08x} {}"


def test_ipv6_as_procfs_has_it(machine: Any) -> None:
    lines = (
        IPV6.format(0, 0, 0, 1, 0x00450003, "eth1"),
        IPV6.format(0x20010DB8 << 96, 0x40, 0, 0, 0x1, "eth0"),
        IPV6.format(0, 0, 0, 0, 0x00200200, "lo"),
    )
    machine.file("/proc/net/ipv6_route", "\n".join(lines))
    assert recorded(Host(machine.root, live=False)) == {"eth1": "IPv6"}


@given(text=st.text(max_size=200))
def test_rubbish_in_procfs_is_no_route(machines: Any, text: str) -> None:
    machine = machines()
    for name in ("route", "ipv6_route"):
        place = machine.root / "proc/net" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(("Iface\n" + text).encode("utf-8", "replace"))
    assert isinstance(recorded(Host(machine.root, live=False)), dict)


@pytest.mark.parametrize("rules", [[], [Rule(2, 254)], [Rule(2, 255), Rule(2, 254), Rule(2, 253)]])
def test_the_main_table_is_looked_into(rules: list[Rule]) -> None:
    routes = [Route(2, 254, 0, (4, 5)), Route(2, 9, 0, (6,)), Route(2, 254, 8, (7,))]
    assert ways(routes, rules) == {4: "IPv4", 5: "IPv4"}


NAMES = "abcdefg"
STACKS = st.builds(
    Stack,
    below=st.dictionaries(
        st.sampled_from(NAMES), st.frozensets(st.sampled_from(NAMES), max_size=4)
    ),
    masters=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(NAMES)),
    kinds=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["bond", "vrf", "vlan", ""])),
)


@given(STACKS, st.sets(st.sampled_from(NAMES)))
def test_what_is_needed_is_closed_on_every_stack(standing: Stack, first: set[str]) -> None:
    needed = standing.needed(dict.fromkeys(first, "IPv4"))
    assert first <= needed.keys()
    for name in needed:
        assert standing.below.get(name, frozenset()) <= needed.keys()
        master = standing.masters.get(name)
        assert master is None or standing.kinds.get(master) == "vrf" or master in needed
    for name in NAMES:
        assert isinstance(standing.vlans(name), tuple)
