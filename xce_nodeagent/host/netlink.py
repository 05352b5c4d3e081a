"""What only rtnetlink(7) tells of network interfaces; the door to pyroute2.

Of pyroute2 the message classes are used: they know every attribute. Its package imports all of
its parts at once (150 to 300 ms, and asyncio), which is more than a whole discovery may take, so
the two modules that are needed are imported by themselves. Its own sockets are not used for the
same reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import struct
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from msgspec import Struct

RTM_GETLINK, RTM_GETROUTE = 18, 26  # linux/rtnetlink.h
RTN_UNICAST = 1
NLM_F_REQUEST, NLM_F_DUMP = 0x001, 0x300  # linux/netlink.h
NLMSG_ERROR, NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IH")  # the start of struct nlmsghdr: length, type
_PATIENCE_S = 1.0
_MODULES = ("pyroute2.netlink.rtnl.rtmsg", "pyroute2.netlink.rtnl.ifinfmsg")


class Link(Struct, frozen=True):
    """An interface, and what of it sysfs does not have.

    `permanent` is its own hardware address: as part of a bond it shows the bond's in sysfs.
    """

    index: int
    name: str
    permanent: str = ""


class Table(Struct, frozen=True):
    """The interfaces of this network namespace, and which carry a default route."""

    links: tuple[Link, ...]
    default_routes: frozenset[str]


def read() -> Table:
    """Ask the kernel. Raise OSError where it does not answer."""
    rtmsg, ifinfmsg = _classes()
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
    ) as opened:
        opened.bind((0, 0))
        opened.settimeout(_PATIENCE_S)
        links = tuple(
            Link(
                index=message["index"],
                name=str(message.get_attr("IFLA_IFNAME") or ""),
                permanent=str(message.get_attr("IFLA_PERM_ADDRESS") or ""),
            )
            for message in _dump(opened, ifinfmsg, RTM_GETLINK)
        )
        names = {link.index: link.name for link in links}
        out = {
            index
            for family in (socket.AF_INET, socket.AF_INET6)
            for message in _dump(opened, rtmsg, RTM_GETROUTE, family)
            if message["dst_len"] == 0 and message["type"] == RTN_UNICAST
            for index in _interfaces(message)
        }
    return Table(links, frozenset(names[index] for index in out if index in names))


def _interfaces(route: Any) -> Iterator[int]:
    if oif := route.get_attr("RTA_OIF"):
        yield oif
    for hop in route.get_attr("RTA_MULTIPATH") or ():
        yield hop["oif"]


def _dump(opened: socket.socket, kind: Any, request: int, family: int = 0) -> Iterator[Any]:
    message = kind()
    message["family"] = family
    message["header"]["type"] = request
    message["header"]["flags"] = NLM_F_REQUEST | NLM_F_DUMP
    message.encode()
    opened.send(message.data)
    while True:
        answer = opened.recv(1 << 18)
        at = 0
        while at + _HEADER.size <= len(answer):
            length, answered = _HEADER.unpack_from(answer, at)
            if answered == NLMSG_DONE:
                return
            if answered == NLMSG_ERROR:
                (code,) = struct.unpack_from("=i", answer, at + 16)
                raise OSError(-code, os.strerror(-code), "rtnetlink")
            decoded = kind(answer, at)
            decoded.decode()
            yield decoded
            at += (length + 3) & ~3  # NLMSG_ALIGN


def _classes() -> tuple[Any, Any]:
    """Give pyroute2's classes for routes and links; they are imported the first time."""
    for name in _MODULES:
        if name not in sys.modules:
            _import()
            break
    routes, links = (sys.modules[name] for name in _MODULES)
    return routes.rtmsg, links.ifinfmsg


def _import() -> None:
    """Import the two modules without their package's own imports.

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
