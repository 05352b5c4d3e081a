"""Links and default routes that change, as rtnetlink(7) tells.

What udev is told of an interface (it came, it went, it has another name) is told here, too, and
besides: up, down, carrier, speed, address, what it is part of. A filter (socket(7),
SO_ATTACH_FILTER) keeps from us, in the kernel, what can be no news: a host with a thousand
containers makes veths and routes all the time, and an idle agent sleeps.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator

from xce_nodeagent.host.event import LOST, ROUTES, Event
from xce_nodeagent.host.route import SHORT

# RTNLGRP_LINK, _IPV4_ROUTE, _IPV4_RULE, _IPV6_ROUTE, _IPV6_RULE; and _NEXTHOP, where there is one
_GROUPS = sum(1 << group - 1 for group in (1, 7, 8, 11, 19))
_NEXTHOP, _SOL_NETLINK, _ADD_MEMBERSHIP = 32, 270, 1
_NEWLINK, _DELLINK, _NEWROUTE, _DELROUTE = 16, 17, 24, 25  # RTM_*, linux/rtnetlink.h
_IFNAME, _LINKINFO, _INFO_KIND = 3, 18, 1  # IFLA_*, linux/if_link.h
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ATTRIBUTES = 32  # where they begin: behind struct nlmsghdr and struct ifinfomsg, 16 bytes each
_FAMILY, _DST_LEN = 16, 17  # ifi_family; rtm_dst_len
_ENOUGH = 1024  # bytes of a message: the name is the first attribute of a link
_SO_ATTACH_FILTER = 26

BUFFER = 1 << 18
"""Bytes of messages that the kernel keeps for us: some hundreds. More are one look at all."""

AT_ONCE = 256
"""Messages that are taken one by one; of more, it is enough to know that there were more."""

_SKIP_AT_ONCE = 1 << 14


class LinkMonitor:
    """A socket that becomes readable when a link or a default route changes.

    It sees the network namespace in which it was made. Raise OSError where the kernel refuses.
    """

    def __init__(self, buffer: int = BUFFER) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK,
            socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
            socket.NETLINK_ROUTE,
        )
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            _attach(self._socket, _filter())
            self._socket.bind((0, _GROUPS))
            with contextlib.suppress(OSError):  # it came with Linux 5.3
                self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _NEXTHOP)
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Give the descriptor to wait for."""
        return self._socket.fileno()

    def close(self) -> None:
        """Stop."""
        self._socket.close()

    def drain(self) -> tuple[Event, ...]:
        """Take what is there, without waiting; LOST stands for what is not.

        After an overflow the kernel drops what comes until all is read, and does not say so again.
        """
        events: dict[Event, None] = {}
        try:
            for _ in range(AT_ONCE):
                events.update(dict.fromkeys(_events(self._socket.recv(_ENOUGH))))
        except BlockingIOError:
            return tuple(events)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
        skip(self._socket)
        return (*events, LOST)


def skip(opened: socket.socket) -> None:
    """Read a netlink socket to its end, for nothing: what is lost is known to be lost."""
    for _ in range(_SKIP_AT_ONCE):
        try:
            opened.recv(_HEADER.size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise


def _events(message: bytes) -> Iterator[Event]:
    """Read what of a message is news: it has one change, and may be cut short."""
    if len(message) < _HEADER.size:
        return
    kind = _HEADER.unpack_from(message)[1]
    if kind not in (_NEWLINK, _DELLINK):
        yield Event("change", ROUTES, "")
    else:
        yield Event("remove" if kind == _DELLINK else "change", "net", _name(message))


def _name(message: bytes) -> str:
    at = _ATTRIBUTES
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            break
        if kind == _IFNAME:
            return os.fsdecode(message[at + 4 : at + length].split(b"\0", 1)[0])
        at += (length + 3) & ~3  # NLA_ALIGN
    return ""


# ---- the filter: classic BPF (linux/filter.h), which reads numbers in the network's order -----

_BYTE, _HALF, _WORD, _WORD_BEHIND_X = 0x30, 0x28, 0x20, 0x40
_A_IS, _X_IS, _X_IS_A = 0x00, 0x01, 0x07
_EQUAL, _GREATER, _RETURN = 0x15, 0x25, 0x06
_ATTRIBUTE, _ATTRIBUTE_INSIDE = 0xFFFFF00C, 0xFFFFF010  # SKF_AD_OFF + SKF_AD_NLATTR, …_NEST
_ALL = 0xFFFFFFFF


def _filter() -> bytes:
    """Let pass default routes, what rules them, and links of the plain family that are no veth.

    A veth carries nothing of a NIC. Links of another family tell of ports of a bridge.
    """
    passed, dropped = 19, 20
    # Instruction, operand, and where to go on if so and if not; else with the next.
    rows: tuple[tuple[int, int, int, int], ...] = (
        (_HALF, 4, 0, 0),  # nlmsg_type
        (_EQUAL, socket.htons(_NEWROUTE), 5, 2),
        (_EQUAL, socket.htons(_DELROUTE), 5, 3),
        (_EQUAL, socket.htons(_NEWLINK), 7, 4),
        (_EQUAL, socket.htons(_DELLINK), 7, passed),  # rules and next hops are few
        (_BYTE, _DST_LEN, 0, 0),  # 5: a route
        (_GREATER, max(SHORT.values()), dropped, passed),
        (_BYTE, _FAMILY, 0, 0),  # 7: a link
        (_EQUAL, socket.AF_UNSPEC, 9, dropped),
        (_A_IS, _ATTRIBUTES, 0, 0),
        (_X_IS, _LINKINFO, 0, 0),
        (_WORD, _ATTRIBUTE, 0, 0),
        (_EQUAL, 0, passed, 13),
        (_X_IS, _INFO_KIND, 0, 0),
        (_WORD, _ATTRIBUTE_INSIDE, 0, 0),
        (_EQUAL, 0, passed, 16),
        (_X_IS_A, 0, 0, 0),
        (_WORD_BEHIND_X, 4, 0, 0),
        (_EQUAL, int.from_bytes(b"veth", "big"), dropped, passed),
        (_RETURN, _ALL, 0, 0),
        (_RETURN, 0, 0, 0),
    )
    return b"".join(
        struct.pack(
            "=HBBI",
            code,
            equal - place - 1 if code in (_EQUAL, _GREATER) else 0,
            other - place - 1 if code in (_EQUAL, _GREATER) else 0,
            operand,
        )
        for place, (code, operand, equal, other) in enumerate(rows)
    )


def _attach(opened: socket.socket, program: bytes) -> None:
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: how many instructions of 8 bytes, and where they are
    described = struct.pack("HP", len(program) // 8, ctypes.addressof(code))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
