"""A vendor's library that is slow, lost, or outdated: how often it is asked, and when again."""

from __future__ import annotations

import asyncio

from xce_nodeagent.daemon.vendor import Vendor
from xce_nodeagent.errors import NotReady
from xce_nodeagent.host.event import AGAIN, ALL, LIBRARY, LOST, ROUTES, Event
from xce_nodeagent.privileged.ops import Probed


class Library:
    """A prober whose answers a test gives, each when it wants."""

    def __init__(self):
        self.asked = []
        self.came = asyncio.Semaphore(0)
        self._answers = []

    async def call(self, request):
        self.asked.append(request.skip)
        answer = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self.came.release()
        return await answer

    def answers(self, **facts):
        self._answers.pop(0).set_result(Probed("error" if "hung" in facts else "found", "", facts))

    def is_lost(self):
        self._answers.pop(0).set_exception(NotReady("it was killed"))


def play(scene, patience=0.01):
    """Run a scene with a library, an impatient vendor, and the scans that it asks for."""

    async def run():
        library, scans = Library(), asyncio.Semaphore(0)
        vendor = Vendor(library, scans.release, patience=patience, retry=0.01)
        try:
            async with asyncio.timeout(20):
                await scene(library, vendor, scans)
        finally:
            vendor.close()

    asyncio.run(run())


def test_a_library_that_is_slower_than_a_scan_is_asked_once_and_not_for_ever():
    async def scene(library, vendor, scans):
        assert (await vendor.ask())[0] == "not_yet"
        library.answers(devices=[])
        await scans.acquire()
        assert (await vendor.ask())[0] == "found"
        assert len(library.asked) == 1
        # The next scan, for a reason of its own, asks anew.
        await vendor.ask()
        assert len(library.asked) == 2

    play(scene)


def test_an_answer_from_before_a_change_is_not_the_last_word():
    async def scene(library, vendor, scans):
        await vendor.ask()
        await library.came.acquire()
        vendor.tell([Event("add", "pci", "0000:43:00.0")])
        library.answers(hung="0000:43:00.0")
        await library.came.acquire()
        library.answers(devices=[])
        await scans.acquire()
        await vendor.ask()
        assert library.asked == [(), ("0000:43:00.0",), ()]

    play(scene)


def test_what_hung_is_asked_again_when_a_card_changes_and_not_when_a_link_does():
    async def hang(library, vendor, scans):
        await vendor.ask()
        await library.came.acquire()
        library.answers(hung="NVML device 1")
        await library.came.acquire()
        library.answers(devices=[])
        await scans.acquire()
        await vendor.ask()

    async def scene(library, vendor, scans):
        await hang(library, vendor, scans)
        vendor.tell([Event("add", "net", "veth1"), Event("online", "cpu", "cpu1")])
        await vendor.ask()
        assert library.asked.pop() == ("NVML device 1",)
        library.answers(devices=[])
        await scans.acquire()
        await vendor.ask()
        # Events that were lost may have been of a card.
        vendor.tell([LOST])
        await vendor.ask()
        assert library.asked.pop() == ()

    play(scene)


def test_a_prober_that_is_lost_is_replaced_by_itself_and_asked_again():
    async def scene(library, vendor, scans):
        await vendor.ask()
        library.is_lost()
        await scans.acquire()
        state, reason, _ = await vendor.ask()
        assert state == "error"
        assert "it was killed" in reason
        await scans.acquire()  # by a timer, without any event
        await vendor.ask()
        assert len(library.asked) == 2
        library.answers(devices=[])
        await scans.acquire()
        assert (await vendor.ask())[0] == "found"

    play(scene)


def test_a_fabric_that_is_coming_up_is_looked_at_until_it_is_there():
    async def scene(library, vendor, scans):
        for state in ("not_started", "in_progress", "completed"):
            asked = asyncio.ensure_future(vendor.ask())
            await library.came.acquire()
            library.answers(devices=[{"fabric_state": state}, 7])
            await asked
            if state == "completed":
                assert vendor._again.when() < asyncio.get_running_loop().time()
                return
            await scans.acquire()  # by itself, soon

    play(scene, patience=20)


def test_after_what_it_is_asked_and_after_what_not():
    async def scene(library, vendor, scans):
        def asked(*events):
            return vendor.concerned(frozenset(events))

        assert asked(AGAIN)  # it has not answered yet
        library_says = asyncio.ensure_future(vendor.ask())
        await library.came.acquire()
        library.answers(devices=[])
        await library_says
        assert not asked(AGAIN)
        for event in (LOST, ALL, Event("bind", "pci", "x"), Event("online", "cpu", "cpu1")):
            assert asked(event), event
        links = Event("change", "net", "eth0"), Event("change", ROUTES, "")
        assert not asked(*links, Event("change", LIBRARY, "nvidia"))

    play(scene)
