"""rtnetlink and uevents in a network namespace of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs("netns")


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"xce-test-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def ip(namespace: str, *words: str) -> None:
    subprocess.run(["ip", "-n", namespace, *words], check=True)


def inside(namespace: str, code: str) -> Any:
    """Run Python in the namespace, with its own sysfs; the answer is a line of JSON."""
    command = ["ip", "netns", "exec", namespace, sys.executable, "-W", "error", "-c", code]
    return json.loads(subprocess.check_output(command, timeout=30))


TABLE = """
import json
from xce_nodeagent.host import netlink
table = netlink.read()
print(json.dumps([[link.name for link in table.links], sorted(table.default_routes)]))
"""


def test_links_and_default_routes_of_both_families(namespace: str) -> None:
    for first, last in (("va0", "va1"), ("vb0", "vb1")):
        ip(namespace, "link", "add", first, "type", "veth", "peer", "name", last)
        ip(namespace, "link", "set", last, "up")
        ip(namespace, "link", "set", first, "up")
    assert inside(namespace, TABLE)[1] == []
    ip(namespace, "addr", "add", "192.0.2.1/24", "dev", "va0")
    ip(namespace, "route", "add", "198.51.100.0/24", "via", "192.0.2.2")
    assert inside(namespace, TABLE)[1] == []
    ip(namespace, "route", "add", "default", "via", "192.0.2.2")
    names, default = inside(namespace, TABLE)
    assert {"lo", "va0", "va1", "vb0", "vb1"} <= set(names)
    assert default == ["va0"]
    if Path("/proc/sys/net/ipv6").exists():
        ip(namespace, "-6", "route", "add", "default", "dev", "vb0")
        assert inside(namespace, TABLE)[1] == ["va0", "vb0"]


def test_a_route_of_many_paths_has_many_interfaces(namespace: str) -> None:
    for number, name in enumerate(("va0", "vb0")):
        ip(namespace, "link", "add", name, "type", "veth", "peer", "name", f"{name}x")
        ip(namespace, "link", "set", f"{name}x", "up")
        ip(namespace, "link", "set", name, "up")
        ip(namespace, "addr", "add", f"192.0.2.{number * 128 + 1}/25", "dev", name)
    ip(namespace, "route", "add", "default", "nexthop", "via", "192.0.2.2",
       "nexthop", "via", "192.0.2.130")  # fmt: skip
    assert inside(namespace, TABLE)[1] == ["va0", "vb0"]


def test_veth_and_loopback_are_no_nics(namespace: str) -> None:
    ip(namespace, "link", "add", "va0", "type", "veth", "peer", "name", "va1")
    code = """
import json
from xce_nodeagent.host import Host
from xce_nodeagent.providers.nic import PROVIDER
found = PROVIDER.discover(Host())
print(json.dumps([found.state, [nic.id for nic in found.instances]]))
"""
    assert inside(namespace, code) == ["found", []]


def test_pyroute2_is_whole_for_who_imports_it_later(namespace: str) -> None:
    code = """
import json
from xce_nodeagent.host import netlink
netlink.read()
import sys
assert "pyroute2" not in sys.modules
import pyroute2
with pyroute2.IPRoute() as route:
    theirs = sorted(link.get("ifname") for link in route.get_links())
print(json.dumps(theirs == sorted(link.name for link in netlink.read().links)))
"""
    assert inside(namespace, code) is True


def test_what_is_plugged_in_is_heard_of(namespace: str) -> None:
    code = """
import json, select, subprocess
from xce_nodeagent.host.udev import Monitor
monitor = Monitor()
assert monitor.drain() == ()
add = ["ip", "link", "add", "va0", "type", "veth", "peer", "name", "va1"]
subprocess.run(add, check=True)
seen = set()
while len(seen) < 2:
    assert select.select([monitor], [], [], 10)[0], seen
    seen |= {(event.action, event.subsystem, event.name) for event in monitor.drain()}
print(json.dumps(sorted(seen)))
"""
    assert inside(namespace, code) == [["add", "net", "va0"], ["add", "net", "va1"]]
