"""What only rtnetlink(7) tells of network interfaces; the door to pyroute2.

Of pyroute2 the message classes of routes and rules are used. Links are read by hand: it takes
0.2 ms for one, and a host with containers has thousands. Its package imports all of
its parts at once (150 to 300 ms, and asyncio), which is more than a whole discovery may take, so
the modules that are needed are imported by themselves. Its own sockets are not used for the
same reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from msgspec import Struct

from xce_nodeagent.host.route import FAMILIES, SHORT, Route, Rule, ways

# linux/rtnetlink.h
RTM_GETLINK, RTM_GETROUTE, RTM_GETRULE, RTM_GETNEXTHOP = 18, 26, 34, 106
RTN_UNICAST = 1
RTA_NH_ID = 30
NHA_ID, NHA_GROUP, NHA_OIF = 1, 2, 5  # linux/nexthop.h
FR_ACT_TO_TBL, FIB_RULE_INVERT = 1, 0x02  # linux/fib_rules.h
NLM_F_REQUEST, NLM_F_DUMP = 0x001, 0x300  # linux/netlink.h
NLMSG_ERROR, NLMSG_DONE = 2, 3
# linux/if_link.h
IFLA_IFNAME, IFLA_LINK, IFLA_MASTER, IFLA_LINKINFO, IFLA_EXT_MASK = 3, 5, 10, 18, 29
IFLA_LINK_NETNSID, IFLA_PERM_ADDRESS = 37, 54
IFLA_INFO_KIND, IFLA_INFO_DATA, IFLA_VXLAN_LINK = 1, 2, 3
RTEXT_FILTER_SKIP_STATS = 0x8
_NO_COUNTS = struct.pack("=HHI", 8, IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
_INDEX = struct.Struct("=i")  # in struct ifinfomsg, behind family and type
_ATTRIBUTE = struct.Struct("=HH")  # struct nlattr: length, type
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ROUTE = struct.Struct("=BBBBBBBB")  # struct rtmsg: family, lengths, tos, table, ..., type
_FIXED = {RTM_GETLINK: 16, RTM_GETROUTE: 12, RTM_GETRULE: 12, RTM_GETNEXTHOP: 8}
"""Bytes between a message's header and its attributes."""
_PATIENCE_S = 1.0
_RTNL = "pyroute2.netlink.rtnl"
_MODULES = (f"{_RTNL}.rtmsg", f"{_RTNL}.fibmsg")


class Link(Struct, frozen=True):
    """An interface, and what of it sysfs does not have.

    `permanent` is its own hardware address: as part of a bond it shows the bond's in sysfs.
    `kind` is what software it is (bond, vlan, bridge, veth, ...), empty for hardware. `below` is
    the index of the interface that it stands on, or is the other end of; 0 where there is none in
    this namespace. `master` is the index of the one that it is a part of (a bond, a bridge).
    """

    index: int
    name: str
    permanent: str = ""
    kind: str = ""
    below: int = 0
    master: int = 0


class Table(Struct, frozen=True):
    """The interfaces of this network namespace, and of which families each has a default route."""

    links: tuple[Link, ...] = ()
    default_routes: Mapping[str, str] = {}


def read() -> Table:
    """Ask the kernel. Raise OSError where it does not answer."""
    rtmsg, fibmsg = _classes()
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
    ) as opened:
        opened.bind((0, 0))
        opened.settimeout(_PATIENCE_S)
        links = tuple(_link(message) for message in _dump(opened, RTM_GETLINK, body=_NO_COUNTS))
        routes: list[Route] = []
        rules: list[Rule] = []
        for family in FAMILIES:
            routes += _routes(opened, rtmsg, family)
            rules += _rules(opened, fibmsg, family)
    names = {link.index: link.name for link in links}
    out = ways(routes, rules)
    return Table(links, {names[index]: out[index] for index in sorted(out) if index in names})


def _link(message: bytes) -> Link:
    told = _attributes(message, RTM_GETLINK)
    info = _nested(told.get(IFLA_LINKINFO, b""))
    kind, below = _text(info.get(IFLA_INFO_KIND, b"")), _whole(told.get(IFLA_LINK, b""))
    if kind == "vxlan" and IFLA_INFO_DATA in info:
        below = _whole(_nested(info[IFLA_INFO_DATA]).get(IFLA_VXLAN_LINK, b""))
    return Link(
        index=_INDEX.unpack_from(message, _HEADER.size + 4)[0],
        name=_text(told.get(IFLA_IFNAME, b"")),
        permanent=told.get(IFLA_PERM_ADDRESS, b"").hex(":"),
        kind=kind,
        below=0 if IFLA_LINK_NETNSID in told else below,
        master=_whole(told.get(IFLA_MASTER, b"")),
    )


def _text(value: bytes) -> str:
    return value.partition(b"\0")[0].decode("utf-8", "replace")


def _whole(value: bytes) -> int:
    return int.from_bytes(value[:4], sys.byteorder)


def _routes(opened: socket.socket, rtmsg: Any, family: int) -> Iterator[Route]:
    """Give the routes with short prefixes; a host may have a hundred thousand others."""
    for message in _dump(opened, RTM_GETROUTE, family):
        told, length, _, _, _, _, _, kind = _ROUTE.unpack_from(message, _HEADER.size)
        if told != family or length > SHORT[family] or kind != RTN_UNICAST:
            continue
        route = _decoded(rtmsg, message)
        out = [hop["oif"] for hop in route.get_attr("RTA_MULTIPATH") or ()]
        if (oif := route.get_attr("RTA_OIF")) is not None:
            out.append(oif)
        if not out and (nexthop := _attributes(message, RTM_GETROUTE).get(RTA_NH_ID)):
            # net.ipv4.nexthop_compat_mode=0: the route names its next hops, and no interface.
            out += _through(opened, int.from_bytes(nexthop[:4], sys.byteorder))
        yield Route(family, route.get_attr("RTA_TABLE") or route["table"], length, tuple(out))


def _through(opened: socket.socket, wanted: int) -> list[int]:
    """Give the interfaces of a next hop, or of a group of them."""
    with socket.socket(opened.family, opened.type | socket.SOCK_CLOEXEC, opened.proto) as another:
        another.bind((0, 0))
        another.settimeout(_PATIENCE_S)
        known: dict[int, dict[int, bytes]] = {}
        for message in _dump(another, RTM_GETNEXTHOP):
            facts = _attributes(message, RTM_GETNEXTHOP)
            known[int.from_bytes(facts.get(NHA_ID, b""), sys.byteorder)] = facts
    # struct nexthop_grp: id, weight and something reserved, 8 bytes in all.
    group = known.get(wanted, {}).get(NHA_GROUP, b"")
    members = [int.from_bytes(group[at : at + 4], sys.byteorder) for at in range(0, len(group), 8)]
    hops = [known.get(one, {}).get(NHA_OIF, b"") for one in members or [wanted]]
    return [int.from_bytes(hop, sys.byteorder) for hop in hops if hop]


def _rules(opened: socket.socket, fibmsg: Any, family: int) -> Iterator[Rule]:
    """Give the rules that an ordinary packet of the host may meet (see `route`)."""
    for message in _dump(opened, RTM_GETRULE, family):
        rule = _decoded(fibmsg, message)
        if rule["family"] != family or rule["action"] != FR_ACT_TO_TBL:
            continue
        mark, mask = rule.get_attr("FRA_FWMARK") or 0, rule.get_attr("FRA_FWMASK")
        first_uid = str(rule.get_attr("FRA_UID_RANGE") or "0").partition(":")[0]
        others = (
            rule["src_len"] or rule["dst_len"] or rule["tos"]
            or rule.get_attr("FRA_IIFNAME") not in (None, "lo")
            or rule.get_attr("FRA_OIFNAME") or rule.get_attr("FRA_L3MDEV")
            or rule.get_attr("FRA_TUN_ID")
            or mark & (0xFFFFFFFF if mask is None else mask)
            or first_uid != "0"
        )  # fmt: skip
        if bool(others) != bool(rule["flags"] & FIB_RULE_INVERT):
            continue
        above = rule.get_attr("FRA_SUPPRESS_PREFIXLEN")
        table = rule.get_attr("FRA_TABLE") or rule["table"]
        yield Rule(family, table, -1 if above in (None, 0xFFFFFFFF) else above)


def _dump(
    opened: socket.socket, request: int, family: int = 0, body: bytes = b""
) -> Iterator[bytes]:
    """Ask for all there is of a kind, and give each message, with its header."""
    body = bytes([family]).ljust(_FIXED[request], b"\0") + body
    size = _HEADER.size + len(body)
    opened.send(_HEADER.pack(size, request, NLM_F_REQUEST | NLM_F_DUMP, 0, 0) + body)
    while True:
        answer = opened.recv(1 << 18)
        at = 0
        while at + _HEADER.size <= len(answer):
            length, answered, _, _, _ = _HEADER.unpack_from(answer, at)
            if answered == NLMSG_DONE:
                return
            if answered == NLMSG_ERROR:
                (code,) = struct.unpack_from("=i", answer, at + _HEADER.size)
                raise OSError(-code, os.strerror(-code), "rtnetlink")
            yield answer[at : at + length]
            at += (length + 3) & ~3  # NLMSG_ALIGN


def _decoded(kind: Any, message: bytes) -> Any:
    decoded = kind(message)
    decoded.decode()
    return decoded


def _attributes(message: bytes, request: int) -> dict[int, bytes]:
    """Give a message's attributes by number, undecoded: pyroute2 does not know all of them."""
    return _nested(message[_HEADER.size + _FIXED[request] :])


def _nested(value: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at, end = 0, len(value) - 3
    while at < end:
        length, kind = _ATTRIBUTE.unpack_from(value, at)
        if length < 4:
            break
        found[kind & 0x3FFF] = value[at + 4 : at + length]  # without NLA_F_NESTED and such
        at += (length + 3) & ~3
    return found


def _classes() -> tuple[Any, Any]:
    """Give pyroute2's classes for routes and rules; they are imported the first time."""
    if any(name not in sys.modules for name in _MODULES):
        _import()
    routes, rules = (sys.modules[name] for name in _MODULES)
    return routes.rtmsg, rules.fibmsg


def _import() -> None:
    """Import the modules without their package's own imports.

    For the time of the import an empty package stands in its place. Whoever imports pyroute2
    later gets the real one, which finds these modules as they are.
    """
    stand_in = "pyroute2" not in sys.modules
    if stand_in:
        spec = importlib.util.find_spec("pyroute2")
        if spec is None or spec.submodule_search_locations is None:
            raise OSError("pyroute2 is not installed")
        package = ModuleType("pyroute2")
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules["pyroute2"] = package
    try:
        for name in _MODULES:
            importlib.import_module(name)
    finally:
        if stand_in:
            del sys.modules["pyroute2"]
