"""The socket at which metrics are asked for: on a loopback address, or at a path."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from typing import Final

from xce_nodeagent.daemon import rights

UNIX: Final = "unix:"

_BACKLOG: Final = 16


def listen(where: str) -> socket.socket:
    """Listen at `unix:/PATH`, `127.0.0.1:PORT` or `[::1]:PORT`. Raise OSError with the reason."""
    if where.startswith(UNIX):
        return _at_path(where.removeprefix(UNIX))
    host, _, port = where.rpartition(":")
    host = host.strip("[]")
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # Else an agent that is started again finds the port taken by its own last connections.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, int(port)))
        sock.listen(_BACKLOG)
        sock.settimeout(0)
    except BaseException:
        sock.close()
        raise
    return sock


def _at_path(path: str) -> socket.socket:
    """Listen at a path: for our user and group, who may ask is a matter of the file's mode."""
    _make_room(path)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(path)
        # Before listen(): until then every connect is refused, so there is no moment in between.
        os.chmod(path, 0o660)
        rights.refuse(sock)
        sock.listen(_BACKLOG)
        sock.settimeout(0)
    except BaseException:
        sock.close()
        raise
    return sock


def _make_room(path: str) -> None:
    """Take away the socket that an agent of our user left, and nothing else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(None, "something that is no socket has this name")
    if found.st_uid != os.geteuid():
        raise FileExistsError(None, f"a socket of uid {found.st_uid} has this name")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0)  # the event loop waits for nobody
        try:
            with contextlib.suppress(BlockingIOError):  # it lives, and its queue is full
                probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise FileExistsError(None, "somebody answers at it")


def leave(where: str) -> None:
    """Take the socket's name away at the end."""
    if where.startswith(UNIX):
        with contextlib.suppress(OSError):
            os.unlink(where.removeprefix(UNIX))
