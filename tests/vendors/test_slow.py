"""A card whose driver does not answer: what a look at the others waits for, and what is told."""

from __future__ import annotations

import threading

import pytest

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.host.slow import Hung, Slow
from xce_nodeagent.providers import all_providers

COUNTS = "/sys/bus/pci/devices/0000:46:00.0/ras/umc_err_count"


class Stuck(Host):
    """A host on which one file does not answer until `answers` is set."""

    def __init__(self, root) -> None:
        super().__init__(root, live=True)
        self._slow = Slow(0.05)
        self.answers = threading.Event()
        self.asked: list[str] = []  # a look has a copy of the host

    def _read(self, name: str, limit: int) -> str | None:
        if name == COUNTS:
            self.asked.append(name)
            self.answers.wait()
        return super()._read(name, limit)


def test_a_card_that_hangs_costs_itself_and_is_asked_again_when_it_has_answered(machine) -> None:
    host = Stuck(machine("mi300x-spx"))
    try:
        for why in ("did not answer in 0.05 s", "does not answer"):
            found = scan(host, all_providers(("amd",))).instances
            cards = {one.text("pci_address"): one for one in found}
            assert len(cards) == 8
            sick = cards.pop("0000:46:00.0")
            assert sick.reason == f"its driver does not tell of memory errors: {COUNTS} {why}"
            assert all(one.healthy for one in cards.values())
        assert host.asked == [COUNTS]
    finally:
        host.answers.set()
    for thread in threading.enumerate():
        if thread.daemon and thread is not threading.current_thread():
            thread.join(20)
    assert all(one.healthy for one in scan(host, all_providers(("amd",))).instances)


def test_what_is_read_is_given_and_what_is_raised_is_raised() -> None:
    slow = Slow(20)
    assert slow.read("a", lambda: "x") == "x"
    assert slow.read("a", lambda: None) is None

    def fails() -> str:
        raise OSError(24, "Too many open files")

    with pytest.raises(OSError, match="Too many"):
        slow.read("a", fails)


def test_one_file_that_hangs_is_no_other_one() -> None:
    slow, answer = Slow(0.01), threading.Event()

    def hangs() -> str:
        answer.wait()
        return "late"

    try:
        with pytest.raises(Hung, match="a did not answer"):
            slow.read("a", hangs)
        with pytest.raises(Hung, match="a does not answer"):
            slow.read("a", lambda: "x")
        assert Slow(20).read("b", lambda: "y") == "y"
    finally:
        answer.set()
