"""Links and default routes in a real network: what is told of them, and what wakes nobody."""

from __future__ import annotations

import select
import time

import pytest

from xce_nodeagent.host import linkmonitor
from xce_nodeagent.host.event import LOST, ROUTES, Event
from xce_nodeagent.host.linkmonitor import LinkMonitor

pytestmark = pytest.mark.needs("netns")

ROUTE = Event("change", ROUTES, "")


def link(name: str, action: str = "change") -> Event:
    return Event(action, "net", name)


@pytest.fixture
def monitor(network):
    made = network.make(LinkMonitor)
    yield made
    made.close()


def told(monitor: LinkMonitor, *wanted: Event) -> set[Event]:
    """Wait until all that is wanted was told; give all that was."""
    found: set[Event] = set()
    until = time.monotonic() + 10
    while not found.issuperset(wanted):
        assert select.select([monitor], [], [], until - time.monotonic())[0], (wanted, found)
        found.update(monitor.drain())
    return found


def quiet(network, monitor: LinkMonitor) -> set[Event]:
    """Give what was told before a change that is known to be told."""
    network.ip("link add last type bridge")
    return told(monitor, link("last")) - {link("last")}


def test_links_come_change_and_go(network, monitor) -> None:
    network.ip("link add br0 type bridge")
    told(monitor, link("br0"))
    network.ip("link set br0 up")
    told(monitor, link("br0"))
    network.ip("link set br0 name br1")
    told(monitor, link("br1"))
    network.ip("link del br1")
    told(monitor, link("br1", "remove"))
    assert monitor.drain() == ()


def test_a_carrier_that_is_lost_is_told(network, monitor) -> None:
    network.ip("link add br0 type bridge", "link add va type veth peer name vb")
    network.ip("link set va master br0", *(f"link set {name} up" for name in ("br0", "va", "vb")))
    told(monitor, link("br0"))
    quiet(network, monitor)
    network.ip("link set vb down")
    assert told(monitor, link("br0")) == {link("br0")}


@pytest.mark.parametrize("family", ["-4", "-6"])
def test_only_default_routes_are_told(network, monitor, family) -> None:
    own, net, way = {
        "-4": ("192.0.2.1/24", "198.51.100.0/24", "default via 192.0.2.2"),
        "-6": ("2001:db8::1/64", "2001:db8:1::/48", "default dev br0"),
    }[family]
    network.ip("link add br0 type bridge", "link set br0 up", f"addr add {own} dev br0")
    quiet(network, monitor)
    network.ip(f"route add {net} dev br0", f"route del {net} dev br0", f"route add {way}")
    assert told(monitor, ROUTE) == {ROUTE}
    network.ip("link del last", f"route del {way}")
    assert told(monitor, ROUTE, link("last", "remove")) == {ROUTE, link("last", "remove")}


@pytest.mark.parametrize(
    "command",
    ["route add 0.0.0.0/1 dev br0", "route add 2000::/3 dev br0",
     "rule add from 192.0.2.0/24 table 7",
     "nexthop add id 7 dev br0"],
)  # fmt: skip
def test_what_decides_of_the_default_route_is_told(network, monitor, command) -> None:
    network.ip("link add br0 type bridge", "link set br0 up")
    quiet(network, monitor)
    network.ip(command)
    assert told(monitor, ROUTE) == {ROUTE}


def test_a_rule_of_ipv6_is_told_when_it_comes_and_goes(network, monitor) -> None:
    quiet(network, monitor)
    for action in ("add", "del"):
        network.ip(f"rule {action} from 2001:db8::/64 table 7", family=6)
        assert told(monitor, ROUTE) == {ROUTE}


def test_what_a_thousand_containers_do_wakes_nobody(network, monitor) -> None:
    network.ip("link add br0 type bridge", "link set br0 up", "addr add 192.0.2.1/24 dev br0")
    quiet(network, monitor)
    network.ip(
        *(f"link add va{n} type veth peer name vb{n}" for n in range(40)),
        *(f"link set va{n} up" for n in range(40)),
        *(f"addr add 198.51.100.{n}/32 dev va{n}" for n in range(40)),
        *(f"route add 203.0.113.{n}/32 dev va{n}" for n in range(40)),
        *(f"neigh add 192.0.2.{n + 9} lladdr 02:00:00:00:00:09 dev br0" for n in range(40)),
        *(f"link del va{n}" for n in range(40)),
    )
    assert select.select([monitor], [], [], 0)[0] == []
    assert monitor.drain() == ()


def test_more_than_the_socket_holds_is_told_as_lost(network) -> None:
    monitor = network.make(lambda: LinkMonitor(buffer=1))  # the kernel takes its least
    try:
        network.ip("link add br0 type bridge", *(["link set br0 up", "link set br0 down"] * 100))
        assert LOST in told(monitor, LOST)
        network.ip("link add br1 type bridge")
        assert LOST not in told(monitor, link("br1"))
    finally:
        monitor.close()


def test_a_storm_is_not_read_to_its_end(network, monitor, monkeypatch) -> None:
    monkeypatch.setattr(linkmonitor, "AT_ONCE", 3)
    network.ip("link add br0 type bridge", *(["link set br0 up", "link set br0 down"] * 5))
    assert monitor.drain() == (link("br0"), LOST)
    assert monitor.drain() == ()
