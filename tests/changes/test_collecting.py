"""Events are looked at soon, together, and not too often; what fails is looked at again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from xce_nodeagent.daemon import changes
from xce_nodeagent.daemon.changes import LIMIT, Changes
from xce_nodeagent.errors import Enforcement
from xce_nodeagent.host.event import ALL, LOST, Event


class Looks:
    """Looks that a test can hold up, and let fail."""

    def __init__(self) -> None:
        self.seen: list[frozenset[Event]] = []
        self.at: list[float] = []
        self.came = asyncio.Semaphore(0)
        self.free = asyncio.Event()
        self.free.set()
        self.error: Exception | None = None

    async def __call__(self, events: frozenset[Event]) -> None:
        self.seen.append(events)
        self.at.append(asyncio.get_running_loop().time())
        self.came.release()
        await self.free.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error


Scene = Callable[[Looks, Changes], Awaitable[None]]


def play(scene: Scene) -> None:
    async def run() -> None:
        looks = Looks()
        collected = Changes(looks)
        try:
            async with asyncio.timeout(30):
                await scene(looks, collected)
        finally:
            await collected.close()

    asyncio.run(run())


def link(number: int) -> Event:
    return Event("change", "net", f"eth{number}")


def test_a_storm_that_loses_events_for_minutes_is_logged_once_a_minute(caplog, monkeypatch) -> None:
    async def scene(_: Looks, collected: Changes) -> None:
        now = 1000.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        for _ in range(150):  # one a second
            collected.missed()
            now += 1.0
        monkeypatch.undo()

    play(scene)
    told = [record.message for record in caplog.records]
    assert [text.partition("were lost (")[2].split()[0] for text in told] == ["1", "60", "60"]


def test_what_is_told_after_the_end_is_not_looked_at() -> None:
    async def scene(looks: Looks, collected: Changes) -> None:
        looks.free.clear()
        collected.tell([link(0)], after=0)
        await looks.came.acquire()
        collected.tell([link(1)], after=0)  # it waits for that look, which is broken off
        await collected.close()
        collected.tell([link(2)], after=0)
        await asyncio.sleep(0.05)  # many rounds of the loop: a look would have begun
        assert looks.seen == [{link(0)}]

    play(scene)


def test_what_comes_together_is_looked_at_together() -> None:
    async def scene(looks: Looks, collected: Changes) -> None:
        for number in range(3):
            collected.tell([link(number)])
        await looks.came.acquire()
        assert looks.seen == [{link(0), link(1), link(2)}]

    play(scene)


def test_what_comes_while_it_is_looked_is_looked_at_afterwards_and_never_at_once() -> None:
    async def scene(looks: Looks, collected: Changes) -> None:
        looks.free.clear()
        collected.tell([link(0)])
        await looks.came.acquire()
        for number in range(1, 100):
            collected.tell([link(number)], after=0)
            await asyncio.sleep(0)
        assert len(looks.seen) == 1
        looks.free.set()
        await looks.came.acquire()
        assert looks.seen[1] == {link(number) for number in range(1, 100)}

    play(scene)


def test_a_storm_costs_few_looks_little_memory_and_its_last_event_is_looked_at() -> None:
    async def scene(looks: Looks, collected: Changes) -> None:
        for number in range(10_000):
            collected.tell([link(number)])
            assert len(collected._told) <= LIMIT
            if number % 10 == 0:
                await asyncio.sleep(0)
        collected.tell([link(-1)])
        while not any({link(-1), LOST} & seen for seen in looks.seen):
            await looks.came.acquire()
        apart = [later - sooner for sooner, later in zip(looks.at, looks.at[1:], strict=False)]
        assert all(time >= 0.99 * changes.APART_SECONDS for time in apart)

    play(scene)


def test_a_look_that_fails_is_made_again_and_at_everything(monkeypatch) -> None:
    monkeypatch.setattr(changes, "RETRY_SECONDS", 0.05)

    async def scene(looks: Looks, collected: Changes) -> None:
        for error in (Enforcement("no binder"), OSError(24, "no descriptors"), ValueError("a bug")):
            looks.error = error
            collected.tell([link(1)])
            await looks.came.acquire()
            await looks.came.acquire()
            assert LOST in looks.seen[-1]

    play(scene)


def test_what_has_time_does_not_hold_up_what_has_none() -> None:
    async def scene(looks: Looks, collected: Changes) -> None:
        collected.tell([link(1)], after=3600)
        collected.tell([link(2)])
        await looks.came.acquire()
        assert looks.seen == [{link(1), link(2)}]

    play(scene)


def test_what_is_told_within_a_look_keeps_its_time() -> None:
    """Who could not tell is asked again after some seconds: not at once, and not for ever."""

    async def scene(looks: Looks, collected: Changes) -> None:
        looks.free.clear()
        collected.tell([link(1)])
        await looks.came.acquire()
        assert collected._looking is not None
        collected.tell([link(2)], after=3600)
        looks.free.set()
        await asyncio.wait([collected._looking])
        await asyncio.sleep(0)  # who waits for the look's end has been called before
        assert collected._timer is not None
        assert collected._timer.when() > asyncio.get_running_loop().time() + 3000

    play(scene)


def test_all_is_looked_at_now_and_then_without_a_reason(monkeypatch) -> None:
    monkeypatch.setattr(changes, "ALL_SECONDS", 0.05)

    async def scene(looks: Looks, collected: Changes) -> None:
        await looks.came.acquire()
        await looks.came.acquire()
        assert looks.seen[0] == looks.seen[1] == {ALL}

    play(scene)


@pytest.mark.parametrize("looking", [False, True])
def test_after_the_end_nothing_is_looked_at(looking: bool) -> None:
    async def scene(looks: Looks, collected: Changes) -> None:
        looks.free.clear()
        collected.tell([link(1)], after=0 if looking else 0.01)
        if looking:
            await looks.came.acquire()
        await collected.close()
        assert len(looks.seen) == looking
        assert collected._looking is None

    play(scene)
