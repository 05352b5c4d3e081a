"""The survey: what strangers do to ports is known when somebody asks, and costs nothing else."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.daemon.survey import Survey
from xce_nodeagent.host import Host
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.providers import all_providers


def listening() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


class Surveyed:
    """A survey of a few ports, with a real ledger, and jobs that hold what a test says."""

    def __init__(self, folder: Path, middle: int) -> None:
        self.ledger = Ledger(folder / "ledger.db", "boot", time.time)
        self.held: dict[int, str] = {}
        self.told: list[Inventory] = []
        self.survey = Survey(
            Host(port_range=(middle, middle)),
            all_providers(("ports",)),
            SimpleNamespace(
                book=SimpleNamespace(ports_held=lambda: self.held, drained={}),
                hardware=self.ledger.hardware,
                remember=self.ledger.remember,
            ),
            node="here",
            fence=lambda _: asyncio.sleep(0),
            foreign=lambda _: {},
        )
        self.survey.subscribe(self.told.append)
        asyncio.run(self.survey.refresh())
        self.before = self.survey.current.number - 1

    def now(self) -> tuple[int, object, int]:
        """How many generations there were, who is foreign, and how many ports are sound."""
        current = self.survey.current
        foreign = current.instances[0].attributes.get("foreign_listeners")
        return current.number - self.before, foreign, current.counters["ports"]["healthy"]


@pytest.fixture
def surveyed(tmp_path: Path) -> Iterator[Callable[[int], Surveyed]]:
    made: list[Surveyed] = []

    def make(port: int) -> Surveyed:
        made.append(Surveyed(tmp_path, port))
        return made[-1]

    yield make
    for one in made:
        one.ledger.close()
    for provider in all_providers(("ports",)):
        provider.close()


def test_a_stranger_that_comes_and_goes_is_seen_when_somebody_asks(surveyed) -> None:
    with listening() as sock:
        port = sock.getsockname()[1]
        one = surveyed(port)
        first, *seen = one.now()
        assert seen == [str(port), 0]
        one.survey.look_at_ports()
        assert one.now() == (first, str(port), 0)
        assert len(one.told) == 1  # nothing changed, so nobody is told and no number rises
    one.survey.look_at_ports()
    assert one.now() == (first + 1, None, 1)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))
        again.listen()
        one.survey.look_at_ports()
        assert one.now() == (first + 2, str(port), 0)
        # What a job that holds the port does there is its own business; also for a scan that
        # looked before the job came.
        one.held[port] = "a job"
        asyncio.run(one.survey.refresh())
        assert one.now() == (first + 3, None, 1)
        one.survey.look_at_ports()
        assert len(one.told) == 4


def test_a_look_is_cheap(surveyed) -> None:
    with listening() as sock:
        one = surveyed(sock.getsockname()[1])
        times = []
        for _ in range(51):
            start = time.perf_counter()
            one.survey.look_at_ports()
            times.append(time.perf_counter() - start)
    assert sorted(times)[25] < 0.002, "it is asked whenever somebody wants the inventory"
