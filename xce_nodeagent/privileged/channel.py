"""Packets between our processes: one SOCK_SEQPACKET packet is one message of msgpack.

A packet may carry descriptors (SCM_RIGHTS). Whoever receives them owns them; a packet that breaks
a rule is refused whole, and its descriptors are closed.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from xce_nodeagent.privileged.ops import MESSAGE_LIMIT

DESCRIPTOR_LIMIT = 1
"""No message carries more: a pidfd (Join), or the end of a socket (Given)."""

_BUFFER = 2 * MESSAGE_LIMIT
"""What a socket may hold. The kernel doubles it, for what it needs itself, and refuses a packet
that does not fit at all (unix(7), EMSGSIZE); some in a row must fit."""


_SO_PASSRIGHTS = 83  # include/uapi/asm-generic/socket.h


class Violation(Exception):
    """The peer broke the protocol, or asked for what nobody honest asks: an attack or a bug.

    It is never answered: whoever finds it logs it and ends the connection.
    """


class Packet(NamedTuple):
    """A packet as it came. `data` is good until the next one is received.

    `cut`: it came with a descriptor that this process has no room for.
    """

    data: memoryview
    descriptors: tuple[int, ...]
    cut: bool = False

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def pair() -> tuple[socket.socket, socket.socket]:
    """Make a connected pair of sockets for packets."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        make_room(end)
    return pair


def make_room(end: socket.socket) -> None:
    """Let the longest message fit into a socket."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)


def take_no_descriptors(end: socket.socket) -> None:
    """Let whoever sends a descriptor to this end fail, where the kernel can (Linux 6.16).

    One that is only closed may be closed slowly: a socket of theirs with SO_LINGER.
    """
    with contextlib.suppress(OSError):  # ENOPROTOOPT: it is closed as it comes, then
        end.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)


def encode(message: msgspec.Struct) -> bytes:
    """Give a message's bytes; raise ValueError when they are more than the limit."""
    data = _ENCODER.encode(message)
    if len(data) > MESSAGE_LIMIT:
        raise ValueError(
            f"{type(message).__name__}: {len(data)} bytes, but a message has at most"
            f" {MESSAGE_LIMIT}; ask for less at once"
        )
    return data


def decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes | memoryview) -> Any:
    """Read a message; raise Violation for bytes that are none.

    What is nested too deeply is a RecursionError in msgspec, which is no DecodeError: whoever
    forgets it dies of a packet.
    """
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Violation(str(error)) from None


# Details of errors may hold any value; what msgpack does not know is written as text.
_ENCODER = msgspec.msgpack.Encoder(enc_hook=str)


class Channel:
    """One end of a connection: whole packets, in order, with their descriptors."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        # One byte more than a message may have: who fills it sent too much.
        self._buffer = memoryview(bytearray(MESSAGE_LIMIT + 1))

    def fileno(self) -> int:
        """Give the descriptor, to wait on."""
        return self._end.fileno()

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def receive(self) -> Packet | None:
        """Wait for the next packet; None when the other end is closed.

        Raise Violation when the packet is too long or carries what it may not, BlockingIOError
        when the socket is non-blocking and there is none, and, once, ConnectionResetError when the
        other end was closed and has not read all that was sent to it; what it sent itself can be
        received after that.
        """
        length, ancillary, flags, _ = self._end.recvmsg_into(
            [self._buffer], _ANCILLARY, _CLOSE_ON_EXEC
        )
        descriptors = _descriptors(ancillary)
        # There is room for more than one, so none at all means that our table is full (unix(7)).
        cut = bool(flags & _DESCRIPTORS_CUT) and not descriptors
        packet = Packet(self._buffer[:length], descriptors, cut)
        too_long = length > MESSAGE_LIMIT or flags & _CUT
        many = flags & _DESCRIPTORS_CUT and not cut
        if too_long or many or len(packet.descriptors) > DESCRIPTOR_LIMIT:
            packet.close()
            raise Violation(
                f"a packet of more than {MESSAGE_LIMIT} bytes"
                if too_long
                else f"a packet with more than {DESCRIPTOR_LIMIT} descriptor"
            )
        return packet if length or packet.descriptors or cut else None

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a packet.

        Raise BlockingIOError when the socket is non-blocking and full, and BrokenPipeError or
        ConnectionResetError when the other end is closed.
        """
        if descriptors:
            socket.send_fds(self._end, [data], list(descriptors))
        else:
            self._end.send(data)


_ANCILLARY = socket.CMSG_SPACE(4 * DESCRIPTOR_LIMIT)
# Plain numbers: `&` of a flag of the module's makes an object of a class in Python, each time.
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_CUT, _DESCRIPTORS_CUT = int(socket.MSG_TRUNC), int(socket.MSG_CTRUNC)


def _descriptors(ancillary: list[Any]) -> tuple[int, ...]:
    found: list[int] = []
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            whole = len(data) - len(data) % 4
            found += memoryview(data[:whole]).cast("i").tolist()
    return tuple(found)
