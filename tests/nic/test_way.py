"""What the host's default routes need, in a real network: rtnetlink, and sysfs beside it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs("netns")

LOOK = """
import json
from xce_nodeagent.host import Host, netlink, route, stack
table = netlink.read()
host = Host("/", live=False)
told, shown = stack.told(table.links), stack.recorded(host)
print(json.dumps({
    "routes": dict(table.default_routes),
    "main": dict(route.recorded(host)),
    "needed": sorted(told.needed(table.default_routes)),
    "shown": sorted(shown.needed(table.default_routes)),
    "reasons": told.needed(table.default_routes),
    "below": [{k: sorted(v) for k, v in one.below.items()} for one in (told, shown)],
    "vlans": told.vlans("va"),
    "bond": told.bond("va"),
}))
"""


def look(namespace: Any) -> Any:
    return namespace.run(LOOK)


def test_every_port_of_a_bridge_is_on_the_way(namespace: Any) -> None:
    for name in ("va", "vb", "vc"):
        namespace.pair(name)
    namespace.ip("link add br0 type bridge")
    namespace.ip("link set va master br0")
    namespace.ip("link set vb master br0")
    namespace.ip("link set br0 up")
    namespace.ip("addr add 192.0.2.1/24 dev br0")
    assert look(namespace)["needed"] == []
    namespace.ip("route add default via 192.0.2.2")
    seen = look(namespace)
    assert seen["routes"] == seen["main"] == {"br0": "IPv4"}
    assert {"br0", "va", "vb"} <= set(seen["needed"])
    assert not {"vc", "vcx"} & set(seen["needed"])
    assert seen["reasons"]["br0"] == "the host's IPv4 default route goes out by it"
    assert seen["reasons"]["va"] == "the host's IPv4 default route goes out by br0, and so by it"
    # A veth's other end is only told by rtnetlink: sysfs does not say where it is.
    assert set(seen["shown"]) == {"br0", "va", "vb"}


def test_a_way_through_a_veth_into_a_bridge_is_followed(namespace: Any) -> None:
    for name in ("va", "vb"):
        namespace.pair(name)
    namespace.ip("link add br0 type bridge")
    namespace.ip("link set vax master br0")
    namespace.ip("link set vb master br0")
    namespace.ip("addr add 192.0.2.1/24 dev va")
    namespace.ip("route add default via 192.0.2.2")
    assert {"va", "vax", "br0", "vb"} <= set(look(namespace)["needed"])


@pytest.mark.parametrize(
    "kind",
    ["macvlan", "ipvlan", "vlan id 7", "vxlan id 7 dstport 4789 remote 192.0.2.9 dev va"],
)
def test_what_stands_on_an_interface_needs_it(namespace: Any, kind: str) -> None:
    namespace.pair("va")
    namespace.pair("vb")
    if kind.startswith("vxlan"):
        namespace.make("up0", f"type {kind}")
    else:
        namespace.make("up0", f"link va type {kind}")
    namespace.ip("link set up0 up")
    namespace.ip("addr add 198.51.100.1/24 dev up0")
    namespace.ip("route add default via 198.51.100.2 dev up0")
    seen = look(namespace)
    assert {"up0", "va"} <= set(seen["needed"])
    assert not {"vb", "vbx"} & set(seen["needed"])
    assert {"up0", "va"} <= set(seen["shown"])
    assert seen["vlans"] == (["up0"] if kind.startswith("vlan") else [])


def test_all_members_of_a_bond_are_on_the_way(namespace: Any) -> None:
    namespace.make("bond0", "type bond mode active-backup")
    for name in ("va", "vb"):
        namespace.pair(name)
        namespace.ip(f"link set {name} down")
        namespace.ip(f"link set {name} master bond0")
    namespace.ip("link set bond0 up")
    namespace.make("bond0.7", "link bond0 type vlan id 7")
    namespace.ip("link set bond0.7 up")
    namespace.ip("addr add 192.0.2.1/24 dev bond0.7")
    namespace.ip("route add default via 192.0.2.2")
    seen = look(namespace)
    assert {"bond0.7", "bond0", "va", "vb"} <= set(seen["needed"])
    assert {"bond0.7", "bond0", "va", "vb"} <= set(seen["shown"])
    assert (seen["bond"], seen["vlans"]) == ("bond0", ["bond0.7"])


def test_rtnetlink_and_sysfs_tell_the_same_of_what_stands_on_what(namespace: Any) -> None:
    namespace.pair("va")
    namespace.ip("link add br0 type bridge")
    namespace.ip("link set va master br0")
    namespace.make("mv0", "link br0 type macvlan")
    told, shown = look(namespace)["below"]
    for veth in ("va", "vax"):  # see above
        told.pop(veth)
    assert told == shown == {"br0": ["va"], "mv0": ["br0"]}


def test_the_other_end_in_another_namespace_is_nothing_here(namespace: Any) -> None:
    """Its index may well be that of something else here."""
    namespace.ip("link add va type veth peer name vax netns 1")
    try:
        namespace.pair("vb")
        namespace.pair("vc")
        namespace.ip("link set va up")
        namespace.ip("addr add 192.0.2.1/24 dev va")
        namespace.ip("route add default via 192.0.2.2 dev va onlink")
        assert look(namespace)["needed"] == look(namespace)["shown"] == ["va"]
    finally:
        namespace.ip("link del va")


def routes(namespace: Any) -> dict[str, str]:
    return dict(look(namespace)["routes"])


def test_a_table_counts_where_an_ordinary_packet_may_look_into_it(namespace: Any) -> None:
    for number, name in enumerate(("va", "vb", "vc", "vd")):
        namespace.pair(name)
        namespace.ip(f"addr add 192.0.2.{number * 64 + 1}/26 dev {name}")
    namespace.ip("route add default via 192.0.2.2")
    # As sites have it for each card of a rail: what comes from its address goes out by it.
    namespace.ip("route add default via 192.0.2.66 table 101")
    namespace.ip("rule add from 192.0.2.65 lookup 101")
    assert routes(namespace) == {"va": "IPv4"}
    namespace.ip("rule add fwmark 7 lookup 101")
    namespace.ip("rule add to 203.0.113.0/24 lookup 101")
    namespace.ip("rule add oif vb lookup 101")
    assert routes(namespace) == {"va": "IPv4"}
    namespace.ip("rule add fwmark 0/0xff lookup 101")
    assert routes(namespace) == {"va": "IPv4", "vb": "IPv4"}
    # As a VPN has it: all but its own packets.
    namespace.ip("route add default via 192.0.2.130 table 102")
    namespace.ip("rule add not fwmark 51820 lookup 102")
    assert routes(namespace) == {"va": "IPv4", "vb": "IPv4", "vc": "IPv4"}
    # Only what is longer than a default route.
    namespace.ip("route add default via 192.0.2.194 table 103")
    namespace.ip("rule add lookup 103 suppress_prefixlength 0")
    assert "vd" not in routes(namespace)
    namespace.ip("route add 128.0.0.0/1 via 192.0.2.194 table 103")
    assert routes(namespace)["vd"] == "IPv4"


def test_of_several_metrics_all_are_ways(namespace: Any) -> None:
    for number, name in enumerate(("va", "vb")):
        namespace.pair(name)
        namespace.ip(f"addr add 192.0.2.{number * 128 + 1}/25 dev {name}")
        namespace.ip(f"route add default via 192.0.2.{number * 128 + 2} metric {number + 1}")
    assert routes(namespace) == {"va": "IPv4", "vb": "IPv4"}
    assert look(namespace)["main"] == {"va": "IPv4", "vb": "IPv4"}


def test_routes_by_next_hop_objects_are_followed(namespace: Any) -> None:
    for number, name in enumerate(("va", "vb")):
        namespace.pair(name)
        namespace.ip(f"addr add 192.0.2.{number * 128 + 1}/25 dev {name}")
        namespace.ip(f"nexthop add id {number + 1} via 192.0.2.{number * 128 + 2} dev {name}")
    namespace.ip("nexthop add id 3 group 1/2")
    namespace.ip("route add default nhid 3")
    assert routes(namespace) == {"va": "IPv4", "vb": "IPv4"}
    compatible = "/proc/sys/net/ipv4/nexthop_compat_mode"
    command = ["ip", "netns", "exec", namespace.name, "sh", "-c", f"echo 0 >{compatible}"]
    subprocess.run(command, check=True)
    assert routes(namespace) == {"va": "IPv4", "vb": "IPv4"}
    namespace.ip("route replace default nhid 2")
    assert routes(namespace) == {"vb": "IPv4"}


def test_ipv6_has_its_own_ways(namespace: Any) -> None:
    if not Path("/proc/sys/net/ipv6").exists():
        pytest.skip("this kernel has no IPv6")
    for name in ("va", "vb"):
        namespace.pair(name)
        namespace.ip(f"-6 addr add 2001:db8:{len(name)}{ord(name[1])}::1/64 dev {name} nodad")
    namespace.ip("-6 route add 2001:db8:ffff::/48 dev va")
    assert routes(namespace) == {}
    namespace.ip("-6 route add 2000::/3 dev vb")
    assert routes(namespace) == {"vb": "IPv6"}
    namespace.ip("-6 route add default dev va table 7")
    assert routes(namespace) == {"vb": "IPv6"}
    namespace.ip("-6 rule add lookup 7")
    assert routes(namespace) == {"va": "IPv6", "vb": "IPv6"}


def test_what_is_not_sent_is_no_way(namespace: Any) -> None:
    namespace.pair("va")
    namespace.ip("route add unreachable default metric 4000")
    assert routes(namespace) == {}


def test_thousands_of_other_routes_are_passed_over(namespace: Any) -> None:
    namespace.pair("va")
    namespace.ip("addr add 192.0.2.1/24 dev va")
    lines = [f"route add 10.{n >> 8}.{n & 255}.0/24 via 192.0.2.2" for n in range(4000)]
    lines.append("route add default via 192.0.2.2")
    subprocess.run(
        ["ip", "-n", namespace.name, "-batch", "-"], input="\n".join(lines), text=True, check=True
    )
    assert routes(namespace) == {"va": "IPv4"}
    assert json.loads(subprocess.check_output(["ip", "-n", namespace.name, "-j", "route"]))
