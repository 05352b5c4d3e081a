"""An agent that starts again knows what the one before it saw in this boot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.daemon.survey import Survey
from xce_nodeagent.errors import NotReady
from xce_nodeagent.host import Host
from xce_nodeagent.model import request
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.resource import GPU
from xce_nodeagent.placement.choice import choose
from xce_nodeagent.provider import Found

PLACE = {"pci_address": "0000:1b:00.0"}
CARD = Instance(id="GPU-a", type="gpu", provider="cards", attributes=PLACE)
UNNAMED = Instance(
    id="gpu-0000:1b:00.0", type="gpu", provider="cards", attributes=PLACE,
    healthy=False, reason="it does not answer",
)  # fmt: skip


class Cards:
    name = "cards"
    types = (GPU,)

    def __init__(self, found: Found) -> None:
        self._found = found

    def discover(self, host: Host) -> Found:
        return self._found

    def plan(self, grant: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def started(tmp_path: Path) -> Callable[..., Inventory]:
    """Start an agent's survey, let it look once, and end it."""
    random = tmp_path / "root/proc/sys/kernel/random"
    random.mkdir(parents=True)

    def start(found: Found, boot: str = "1") -> Inventory:
        (random / "boot_id").write_text(boot, "ascii")
        ledger = Ledger(tmp_path / "ledger.db", boot, time.time)
        survey = Survey(
            Host(tmp_path / "root"), (Cards(found),), ledger, node="here",
            fence=lambda _: asyncio.sleep(0), foreign=lambda _: {},
            kept=tmp_path / "inventory.json",
        )  # fmt: skip
        asyncio.run(survey.refresh())
        ledger.close()
        assert survey.current is not None
        return survey.current

    return start


def test_a_library_that_is_slow_takes_no_card_away(started) -> None:
    """Nor gives it to anybody: another load of its driver may have numbered it anew."""
    started(Found(instances=(CARD,)))
    slow = started(Found(state="not_yet", reason="it starts", instances=(UNNAMED,)))
    told = [(one.id, one.healthy, one.reason) for one in slow.instances]
    assert told == [("GPU-a", False, "it starts")]
    assert [problem.state for problem in slow.problems] == ["not_yet"]
    with pytest.raises(NotReady):
        choose(slow, request.parse("rusage[gpu=1]"))
    assert started(Found(instances=(CARD,))).instances[0].healthy


def test_a_card_that_fell_off_the_bus_keeps_its_name(started) -> None:
    started(Found(instances=(CARD,)))
    fallen = started(Found(instances=(UNNAMED,), lost=frozenset({UNNAMED.id})))
    (card,) = fallen.instances
    assert (card.id, card.healthy, card.reason) == ("GPU-a", False, "it does not answer")


def test_what_a_library_that_fails_has_not_told_this_agent_is_nobodys(started) -> None:
    """The driver may have been replaced, which is why the agent was started anew."""
    started(Found(instances=(CARD,)))
    for _ in range(2):
        failed = started(Found(state="error", reason="versions differ"))
        assert [(one.id, one.reason) for one in failed.instances] == [("GPU-a", "versions differ")]
        assert not failed.instances[0].healthy
    assert started(Found(instances=(CARD,))).instances[0].healthy


def test_another_boot_knows_nothing(started) -> None:
    started(Found(instances=(CARD,)))
    later = started(Found(state="not_yet", reason="it starts", instances=(UNNAMED,)), boot="2")
    assert [one.id for one in later.instances] == [UNNAMED.id]


@pytest.mark.parametrize("rubbish", [b"", b"{", b"\xff\x00", b"[]", b'{"source": 1}'])
def test_a_file_that_is_damaged_costs_the_names_and_no_start(started, tmp_path, rubbish) -> None:
    started(Found(instances=(CARD,)))
    (tmp_path / "inventory.json").write_bytes(rubbish)
    later = started(Found(state="not_yet", reason="it starts", instances=(UNNAMED,)))
    assert [one.id for one in later.instances] == [UNNAMED.id]
    started(Found(instances=(CARD,)))
    later = started(Found(state="not_yet", reason="it starts", instances=(UNNAMED,)))
    assert [one.id for one in later.instances] == ["GPU-a"]


def test_a_folder_in_the_file_s_place_is_told_and_costs_nothing(started, tmp_path) -> None:
    (tmp_path / "inventory.json").mkdir()
    assert started(Found(instances=(CARD,))).instances[0].id == "GPU-a"
    assert not (tmp_path / ".inventory.json.new").exists()


def test_cards_that_no_bus_shows_are_not_gone_where_nobody_can_be_asked(started, tmp_path) -> None:
    """As in a virtual machine whose cards are not on PCI, while its library is replaced."""
    silent = Found(state="none", reason="no library", silent=True)
    assert started(silent).problems[0].state == "none"
    started(Found(instances=(CARD,)))
    for _ in range(2):
        missing = started(silent)
        assert [(one.id, one.healthy) for one in missing.instances] == [("GPU-a", False)]
        (problem,) = missing.problems
        assert problem.state == "not_yet"
        assert problem.reason.startswith("no library; 1 were seen before")
        with pytest.raises(NotReady):
            choose(missing, request.parse("rusage[gpu=2]"))
    assert started(Found(instances=(CARD,))).instances[0].healthy
    # One that the bus showed, and shows no more, was taken out.
    function = tmp_path / "root/sys/devices/pci0000:1b" / PLACE["pci_address"]
    function.mkdir(parents=True)
    (function / "class").write_text("0x030200", "ascii")
    link = tmp_path / "root/sys/bus/pci/devices" / PLACE["pci_address"]
    link.parent.mkdir(parents=True)
    link.symlink_to(function)
    started(Found(instances=(CARD,)))
    link.unlink()
    assert started(silent).instances == ()
