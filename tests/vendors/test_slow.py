"""A card whose driver does not answer: what a look at the others waits for, and what is told."""

from __future__ import annotations

import threading
import time

import pytest

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.host.slow import Hung, Slow
from xce_nodeagent.providers import all_providers

COUNTS = "/sys/bus/pci/devices/{}/ras/umc_err_count"
SICK = "0000:46:00.0"


class Stuck(Host):
    """A host on which the counts of some cards do not come until `answers` is set."""

    def __init__(self, root, sick=(SICK,), seconds: float = 0.05) -> None:
        super().__init__(root, live=True)
        self._slow = Slow(seconds)
        self._stuck = {COUNTS.format(address) for address in sick}
        self.answers = threading.Event()
        self.asked: list[str] = []  # a look has a copy of the host

    def _read(self, name: str, limit: int) -> str | None:
        if name in self._stuck:
            self.asked.append(name)
            self.answers.wait()
        return super()._read(name, limit)


def settle(host: Stuck) -> None:
    """Let everything answer, and wait for the threads."""
    host.answers.set()
    for thread in threading.enumerate():
        if thread.daemon and thread is not threading.current_thread():
            thread.join(20)


def test_a_card_that_hangs_costs_itself_and_is_asked_again_when_it_has_answered(machine) -> None:
    host = Stuck(machine("mi300x-spx"))
    try:
        for why in ("did not answer in 0.05 s", "does not answer"):
            found = scan(host, all_providers(("amd",))).instances
            cards = {one.text("pci_address"): one for one in found}
            assert len(cards) == 8
            sick = cards.pop(SICK)
            told = f"{COUNTS.format(SICK)} {why}"
            assert sick.reason == f"its driver does not tell of memory errors: {told}"
            assert all(one.healthy for one in cards.values())
        assert host.asked == [COUNTS.format(SICK)]
    finally:
        settle(host)
    assert all(one.healthy for one in scan(host, all_providers(("amd",))).instances)


def test_cards_that_hang_are_all_waited_for_at_once(machine) -> None:
    """The last one is asked before the time of the first is over."""
    root = machine("mi300x-spx")
    found = scan(Host(root), all_providers(("amd",))).instances
    addresses = [one.text("pci_address") for one in found]
    host = Stuck(root, addresses, seconds=3600)
    look = threading.Thread(target=scan, args=(host, all_providers(("amd",))), daemon=True)
    look.start()
    try:
        until = time.monotonic() + 20
        while len(host.asked) < 8 and time.monotonic() < until:
            look.join(0.01)
        assert sorted(host.asked) == sorted(map(COUNTS.format, addresses))
    finally:
        settle(host)


def test_one_deadline_is_that_of_all() -> None:
    """When the time is over, nobody is waited for any more: the clock says so after the first."""
    answer, times = threading.Event(), iter([0.0, 3599.98, *[3600.0] * 7])
    slow = Slow(3600, clock=lambda: next(times))
    try:
        found = slow.read({str(number): answer.wait for number in range(8)})
        told = [f"{number} did not answer in 3600 s" for number in range(8)]
        assert [str(one) for one in found.values()] == told
    finally:
        answer.set()


def test_what_is_read_is_given_and_what_is_raised_is_raised() -> None:
    slow = Slow(20)

    def fails() -> str:
        raise OSError(24, "Too many open files")

    assert slow.read({"a": lambda: "x", "b": lambda: None}) == {"a": "x", "b": None}
    with pytest.raises(OSError, match="Too many"):
        slow.read({"a": fails, "b": lambda: "x"})
    assert slow.read({}) == {}


def test_one_file_that_hangs_is_no_other_one() -> None:
    slow, answer = Slow(0.01), threading.Event()

    def hangs() -> str:
        answer.wait()
        return "late"

    try:
        assert "a did not answer" in str(slow.read({"a": hangs})["a"])
        found = slow.read({"a": lambda: "x"})
        assert isinstance(found["a"], Hung)
        assert "a does not answer" in str(found["a"])
    finally:
        answer.set()
