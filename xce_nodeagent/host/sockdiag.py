"""Which TCP and UDP ports somebody on this host uses now, from sock_diag(7).

The question is on the path of a prepare. pyroute2's DiagSocket answers the same (a test holds the
two together), but it takes longer than the whole rest of a prepare may, and runs an event loop of
its own. So the three requests are packed once here, and the kernel filters by state and port.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from types import TracebackType
from typing import Self

NETLINK_SOCK_DIAG = 4  # linux/netlink.h
SOCK_DIAG_BY_FAMILY = 20  # linux/sock_diag.h
TCPDIAG_GETSOCK = 18  # linux/inet_diag.h
NLM_F_REQUEST, NLM_F_DUMP = 0x001, 0x300  # linux/netlink.h
NLMSG_ERROR, NLMSG_DONE = 2, 3
INET_DIAG_REQ_BYTECODE = 1  # linux/inet_diag.h
S_GE, S_LE = 2, 3  # INET_DIAG_BC_*: source port at least, at most

TCP_ESTABLISHED, TCP_CLOSE, TCP_LISTEN = 1, 7, 10  # net/tcp_states.h; sock_diag uses 1 << state
LISTENING = 1 << TCP_LISTEN
BOUND = 1 << TCP_CLOSE | 1 << TCP_ESTABLISHED
"""A UDP socket is CLOSE when it is bound, ESTABLISHED when it is connected as well."""

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ERROR = struct.Struct("=i")
_PORT = struct.Struct("!H")
_PORT_AT = 4  # of struct inet_diag_msg: four bytes, then id.idiag_sport
_BUFFER = 1 << 16
_PATIENCE_MS = 1000  # the kernel answers at once; a request that it lost must not hang a prepare


class PortTable:
    """The kernel's table of sockets, asked through one kept socket.

    It shows the network namespace in which it was made. Not for use by two threads at once.
    """

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._socket = self._open()
        bytecode = _at_least_and_at_most(first, last)
        self._requests = (
            _tcp_request(LISTENING, bytecode),
            _request(socket.AF_INET, socket.IPPROTO_UDP, BOUND, bytecode),
            _request(socket.AF_INET6, socket.IPPROTO_UDP, BOUND, bytecode),
        )

    @staticmethod
    def _open() -> socket.socket:
        opened = socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG
        )
        opened.connect((0, 0))  # what does not come from the kernel does not come in
        return opened

    def in_use(self) -> frozenset[int]:
        """Give the ports of the range with a listening TCP socket or a bound UDP socket.

        Raise OSError where the kernel does not answer.
        """
        return self._asked(self._requests)

    def listening(self) -> frozenset[int]:
        """Give the ports of the range with a listening TCP socket: a quarter of the cost.

        Raise OSError where the kernel does not answer.
        """
        return self._asked(self._requests[:1])

    def _asked(self, requests: tuple[bytes, ...]) -> frozenset[int]:
        used: set[int] = set()
        for request in requests:
            try:
                self._ask(request, used)
            except OSError as error:
                # Without IPv6 or without a module for the protocol there is nothing to be used.
                if error.errno not in (errno.ENOENT, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT):
                    # The rest of an answer may be on its way: a fresh socket has none of it.
                    self._socket.close()
                    self._socket = self._open()
                    raise
        return frozenset(used)

    def _ask(self, request: bytes, used: set[int]) -> None:
        self._socket.send(request)
        while True:
            answer = self._receive()
            at = 0
            while at + _HEADER.size <= len(answer):
                length, kind, _, _, _ = _HEADER.unpack_from(answer, at)
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR:
                    (code,) = _ERROR.unpack_from(answer, at + _HEADER.size)
                    raise OSError(-code, os.strerror(-code), "sock_diag")
                used.add(_PORT.unpack_from(answer, at + _HEADER.size + _PORT_AT)[0])
                at += (length + 3) & ~3  # NLMSG_ALIGN

    def _receive(self) -> bytes:
        """Receive what is there; a dump's first part is there as soon as the request is sent."""
        try:
            return self._socket.recv(_BUFFER, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(_PATIENCE_MS):
            raise TimeoutError(errno.ETIMEDOUT, "the kernel does not answer", "sock_diag")
        return self._socket.recv(_BUFFER)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _request(family: int, protocol: int, states: int, bytecode: bytes) -> bytes:
    """Pack nlmsghdr, inet_diag_req_v2 (with no socket id, as all are asked for), and the filter."""
    body = struct.pack("=BBBxI48x", family, protocol, 0, states)
    return _message(SOCK_DIAG_BY_FAMILY, body, bytecode)


def _tcp_request(states: int, bytecode: bytes) -> bytes:
    """Pack inet_diag_req, the older request: it is of TCP, and of both families at once.

    The kernel takes it as one for AF_UNSPEC (net/ipv4/inet_diag.c, inet_diag_dump_compat), which
    the newer request has no way to say; so one walk of the table does for two.
    """
    body = struct.pack("=BBBB48xII", socket.AF_UNSPEC, 0, 0, 0, states, 0)
    return _message(TCPDIAG_GETSOCK, body, bytecode)


def _message(kind: int, body: bytes, bytecode: bytes) -> bytes:
    body += struct.pack("=HH", 4 + len(bytecode), INET_DIAG_REQ_BYTECODE) + bytecode
    return _HEADER.pack(_HEADER.size + len(body), kind, NLM_F_REQUEST | NLM_F_DUMP, 0, 0) + body


def _at_least_and_at_most(first: int, last: int) -> bytes:
    """Write `first <= port <= last` for the kernel (net/ipv4/inet_diag.c, inet_diag_bc_run).

    Each test is two ops of four bytes (code, jump if true, jump if false), the port in the
    second one's last field. A jump to the end accepts; one to four bytes behind it rejects.
    """
    op = struct.Struct("=BBH")
    return op.pack(S_GE, 8, 20) + op.pack(0, 0, first) + op.pack(S_LE, 8, 12) + op.pack(0, 0, last)
