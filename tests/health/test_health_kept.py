"""What the agent keeps of cards' health: in its file, over boots, and in the inventory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.supply import Supply
from xce_nodeagent.daemon.cards import Cards
from xce_nodeagent.daemon.health import Health
from xce_nodeagent.daemon.survey import Survey
from xce_nodeagent.errors import NotReady
from xce_nodeagent.host import Host
from xce_nodeagent.host.event import Event
from xce_nodeagent.model import policy
from xce_nodeagent.model.config import Config
from xce_nodeagent.model.health import Limits, Moment, Sample, Xid
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.policy import Policy
from xce_nodeagent.model.resource import GPU
from xce_nodeagent.provider import Found

TABLE = policy.merged({"xid-7": Policy("x", ends="quiet", seconds=60)})


class Clock:
    def __init__(self) -> None:
        self.up = 1000.0

    def __call__(self) -> Moment:
        return Moment(self.up, 1_700_000_000 + self.up)


class Kept:
    """A health in a folder; `again` is that of the agent that comes next."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "health.json"
        self.clock = Clock()
        self.changes = 0

    def again(self, boot: str = "boot") -> Health:
        return Health(self.path, boot, TABLE, Limits(), now=self.clock, changed=self._changed)

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def within(health: Health, what: Callable[[], object]) -> None:
    """Do something in an event loop, and let all of it be written."""

    async def main() -> None:
        what()
        await health.close()

    asyncio.run(main())


def names(health: Health) -> list[tuple[str, str]]:
    return [(check.name, check.text.partition(",")[0]) for check in health.checks()]


def test_it_outlives_the_agent_and_ends_with_the_boot_where_it_should(kept: Kept) -> None:
    first = kept.again()

    def happens() -> None:
        for card, xid in (("A", Xid(79)), ("B", Xid(48, 1, 0)), ("C", Xid(13))):
            first.heard(card, xid)
        first.place({"A": "0000:1b:00.0"})

    within(first, happens)
    assert kept.changes == 2
    same = kept.again()
    assert names(same) == [("health.A", "XID 79"), ("health.B", "XID 48")] == names(first)
    assert same.places == {"A": "0000:1b:00.0"}
    other = kept.again("another boot")
    assert names(other) == []
    assert other.places == {}


@pytest.mark.parametrize("text", [b"", b"{", b'{"boot": 3}', b"\xff\xfe", b"[" * 100_000, b"null"])
def test_a_file_that_is_none_is_moved_aside(kept: Kept, text: bytes) -> None:
    kept.path.write_bytes(text)
    health = kept.again()
    assert names(health) == []
    assert kept.path.with_suffix(".damaged").read_bytes() == text
    within(health, lambda: health.heard("A", Xid(79)))
    assert names(kept.again()) == [("health.A", "XID 79")]


def test_a_folder_that_cannot_be_written_is_told_and_delays_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "missing")
    health = kept.again()
    within(health, lambda: health.heard("A", Xid(79)))
    assert names(health)[0] == ("health.A", "XID 79")
    ((name, text),) = names(health)[1:]
    assert (name, "No such file" in text, ".health.json.new" in text) == ("health", True, True)
    kept.path.parent.mkdir()
    within(health, lambda: health.heard("B", Xid(79)))
    assert names(kept.again()) == names(health) == [("health.A", "XID 79"), ("health.B", "XID 79")]


def test_what_ends_by_the_clock_ends_by_a_timer(kept: Kept) -> None:
    async def main() -> None:
        ended = asyncio.Event()
        table = policy.merged({"xid-7": Policy("x", ends="quiet", seconds=1)})
        start = asyncio.get_running_loop().time()
        health = Health(
            kept.path, "boot", table, Limits(), changed=lambda: health.checks() or ended.set(),
            now=lambda: Moment(asyncio.get_running_loop().time() - start, 0),
        )  # fmt: skip
        health.heard("A", Xid(7))
        assert not ended.is_set()
        async with asyncio.timeout(20):
            await ended.wait()
        await health.close()

    asyncio.run(main())


def test_an_agent_that_starts_later_ends_what_was_over_meanwhile(kept: Kept) -> None:
    first = kept.again()
    within(first, lambda: [first.heard("A", Xid(7)), first.heard("A", Xid(48))])
    kept.clock.up += 60
    later = kept.again()
    within(later, later.start)
    assert names(later) == [("health.A", "XID 48")]


class Two:
    """A provider with two cards."""

    name: ClassVar[str] = "nvidia"
    types: ClassVar[tuple[Any, ...]] = (GPU,)

    def discover(self, host: Host) -> Found:
        return Found(
            instances=tuple(
                Instance(id=one, type="gpu", provider="nvidia",
                         attributes={"pci_address": f"0000:{one.lower() * 2}:00.0"})
                for one in "AB"
            )
        )  # fmt: skip

    def plan(self, grant: Any) -> Any:
        raise NotImplementedError


def no_helper() -> Any:
    raise NotReady("there are no helpers here")


def test_the_inventory_says_it_with_one_generation_and_of_the_others_nothing(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        ledger = Ledger(tmp_path / "ledger.db", "boot", lambda: 1.0, log_bytes=0)
        host = Host(tmp_path / "root")
        cards = Cards(Config(), host, Supply(no_helper), tmp_path, ledger, answered=lambda: None)
        survey = Survey(
            host, (Two(),), ledger, node="here", fence=lambda _: asyncio.sleep(0),
            foreign=lambda _: {}, judge=cards.judge,
        )  # fmt: skip
        cards.publish = survey.publish
        survey.subscribe(cards.published)
        await survey.refresh()
        health = cards._health

        def now() -> tuple[int, dict[str, bool], int]:
            current = survey.current
            return (
                current.number, {one.id: one.healthy for one in current.instances},
                current.counters["gpu"]["healthy"],
            )  # fmt: skip

        first, *well = now()
        assert well == [{"A": True, "B": True}, 2]
        for xid in (Xid(13), Xid(48), Xid(48), Xid(63)):
            health.heard("A", xid)
        assert now() == (first + 1, {"A": False, "B": True}, 1)
        assert survey.current.by_id()["A"].reason.startswith("XID 48, uncorrectable memory error: ")
        # A scan sees nothing of it, and it stays.
        await survey.refresh()
        assert now()[0] == first + 1
        # The driver takes up the other card, and then this one.
        cards.tell((Event("bind", "pci", "0000:bb:00.0"),))
        assert now()[0] == first + 1
        cards.tell((Event("bind", "pci", "0000:aa:00.0"),))
        assert now() == (first + 2, *well)
        health.measured({"B": Sample(lost="GPU is lost")})
        assert now()[1] == {"A": True, "B": False}
        health.undrained(SimpleNamespace(id="B", parent=None))
        assert now() == (first + 4, *well)
        await cards.close()
        ledger.close()

    asyncio.run(main())
