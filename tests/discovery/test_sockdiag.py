"""Our own sock_diag against pyroute2's: the same question, the same answer."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Iterator

import pytest
from pyroute2 import DiagSocket

from xce_nodeagent.host.sockdiag import BOUND, LISTENING, PortTable


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            for _ in range(5):
                one = socket.socket(family, kind)
                made.append(one)
                try:
                    one.bind((address, 0))
                except OSError:
                    continue  # no IPv6 here: it listens nowhere, and both must say so
                if kind == socket.SOCK_STREAM:
                    one.listen()
    yield made
    for one in made:
        one.close()


def by_pyroute2(first: int, last: int) -> set[int]:
    ports: set[int] = set()
    with DiagSocket() as diag:
        diag.bind()
        for protocol, states in ((socket.IPPROTO_TCP, LISTENING), (socket.IPPROTO_UDP, BOUND)):
            for family in (socket.AF_INET, socket.AF_INET6):
                for message in diag.get_sock_stats(family=family, states=states, protocol=protocol):
                    ports.add(message["idiag_sport"])
    return {port for port in ports if first <= port <= last}


@pytest.mark.parametrize("share", [(0, 1), (0, 2), (1, 2)])
def test_both_find_the_same_ports(sockets: list[socket.socket], share: tuple[int, int]) -> None:
    ours = sorted({one.getsockname()[1] for one in sockets} - {0})
    part, of = share
    first = ours[len(ours) * part // of]
    last = 65535 if of == 1 else ours[len(ours) * (part + 1) // of - 1]
    # Other processes of the machine come and go: ask until two answers enclose a third.
    for _ in range(20):
        before = by_pyroute2(first, last)
        with PortTable(first, last) as table:
            answer = table.in_use()
        if before == by_pyroute2(first, last):
            break
    assert answer == before
    assert {port for port in ours if first <= port <= last} <= answer


def test_many_sockets_take_more_than_one_packet() -> None:
    made = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(900)]
    try:
        for one in made:
            one.bind(("127.0.0.1", 0))
        with PortTable(1, 65535) as table:
            assert {one.getsockname()[1] for one in made} <= table.in_use()
    finally:
        for one in made:
            one.close()


def test_it_is_cheap_enough_for_the_path_of_a_prepare() -> None:
    """Four questions; a bound of 1 ms, some ten times what it takes on a quiet machine."""
    with PortTable(20000, 20999) as table:
        times = []
        for _ in range(101):
            start = time.perf_counter()
            table.in_use()
            times.append(time.perf_counter() - start)
    assert statistics.median(times) < 0.001
