"""Which sockets are bound to a port, in our network namespace and in those of other processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from xce_nodeagent.errors import exhausted

NAMESPACES_LIMIT = 64
"""Network namespaces that are looked into, beside our own: each costs four files."""

_TABLES = (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07"))
"""Files of /proc/net and the state that means bound there: TCP_LISTEN, and TCP_CLOSE, which is
what a socket of UDP has that is not connected (include/net/tcp_states.h)."""


class Socket(NamedTuple):
    """A bound socket, as /proc/net shows it. `namespace` is an inode, and 0 for our own."""

    inode: int
    uid: int
    what: str
    namespace: int


class Listeners:
    """Sockets that are bound to one of these ports, found as their namespaces are come upon."""

    def __init__(self, proc: str, ports: frozenset[int]) -> None:
        self._proc = proc
        self._ports = ports
        self.by_inode: dict[int, Socket] = {}
        self._seen: set[str] = set()
        if ports:
            self._own = _link(f"{proc}/self/ns/net")
            self._seen.add(self._own)
            self._take(f"{proc}/net", 0)

    def meet(self, pid: int) -> None:
        """Look into the network namespace of a process, if it is new to us."""
        if not self._ports or len(self._seen) > NAMESPACES_LIMIT:
            return
        namespace = _link(f"{self._proc}/{pid}/ns/net")
        if namespace and namespace not in self._seen:
            self._seen.add(namespace)
            number = namespace.partition("[")[2].rstrip("]")
            self._take(f"{self._proc}/{pid}/net", int(number) if number.isdecimal() else -1)

    def _take(self, folder: str, namespace: int) -> None:
        for found in self._bound(folder, namespace):
            self.by_inode[found.inode] = found

    def _bound(self, folder: str, namespace: int) -> Iterator[Socket]:
        for table, state in _TABLES:
            try:
                lines = Path(folder, table).read_text("utf-8").splitlines()
            except OSError as error:
                if exhausted(error):
                    raise
                continue  # a kernel without IPv6, or the process has ended
            for line in lines[1:]:
                fields = line.split()
                port = int(fields[1].rpartition(":")[2], 16)
                if port in self._ports and fields[3] == state:
                    what = f"{table.removesuffix('6')} {port}"
                    yield Socket(int(fields[9]), int(fields[7]), what, namespace)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError as error:
        if exhausted(error):
            raise
        return ""
