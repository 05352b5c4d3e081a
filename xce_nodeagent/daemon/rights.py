"""Descriptors that clients send along (unix(7), SCM_RIGHTS): there is no use for any here.

The kernel closes what a receive has no room for, and what a closed socket has not read, in the
thread that receives or closes. Such a close can last: of a TCP socket with SO_LINGER (socket(7))
it lasts as long as its owner likes, and this thread serves everybody.

Since Linux 6.16 a socket can say that it takes none. Before, they are looked at and never taken:
a MSG_PEEK gives duplicates, so the close of these is not the last one.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Final

_SO_PASSRIGHTS: Final = 83  # asm-generic/socket.h, Linux 6.16; Python does not name it
_RETRY_SECONDS: Final = 1.0


def refuse(listener: socket.socket) -> None:
    """Let nobody send descriptors to this socket's connections, where the kernel can do that.

    Must come before listen(2): a connection has what its listener has when a client connects.
    """
    with contextlib.suppress(OSError):  # ENOPROTOOPT: a kernel before 6.16
        listener.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)


def may_come(listener: socket.socket) -> bool:
    """Say whether a client can send descriptors."""
    try:
        return bool(listener.getsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS))
    except OSError:
        return True


def readable(sock: socket.socket, scratch: bytearray) -> int:
    """Give how many bytes can be read with no descriptor among them; -1 when there is one.

    Whoever then reads no more than that many gets none: what a client sends meanwhile is behind.
    Raises BlockingIOError when there is nothing yet.
    """
    count, ancillary, flags, _ = sock.recvmsg_into(
        [scratch], socket.CMSG_SPACE(4), socket.MSG_PEEK | socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            for descriptor in array.array("i", data):
                os.close(descriptor)
    # MSG_CTRUNC alone: our table of descriptors is full.
    return -1 if ancillary or flags & socket.MSG_CTRUNC else count


def part(loop: asyncio.AbstractEventLoop, sock: socket.socket, closed: Callable[[], None]) -> None:
    """Close a connection; where something is unread, in a thread. `closed` is called in the loop.

    The caller's `sock` is closed from now on. Whoever counts connections counts this one until
    `closed`, so that nobody gets more threads than connections.
    """
    try:
        # From here on the peer cannot send, so nothing comes between the look and the close.
        sock.shutdown(socket.SHUT_RD)
        unread = sock.recv(1, socket.MSG_PEEK)
    except OSError:
        unread = b""
    if unread:
        close_aside(loop, sock, closed)
    else:
        sock.close()
        closed()


def close_aside(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, closed: Callable[[], None]
) -> None:
    """Close a socket in a thread of its own, which nobody waits for."""
    _start(loop, sock.detach(), closed)


def _start(loop: asyncio.AbstractEventLoop, descriptor: int, closed: Callable[[], None]) -> None:
    def close() -> None:
        with contextlib.suppress(OSError):
            os.close(descriptor)
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(closed)

    try:
        threading.Thread(target=close, name="close", daemon=True).start()
    except RuntimeError:  # the limit of threads is reached
        loop.call_later(_RETRY_SECONDS, _start, loop, descriptor, closed)
