"""The watch over systemd's folders, on folders of a test's own; and when it has fences verified."""

from __future__ import annotations

import asyncio
import os
import select

import pytest

from xce_nodeagent.daemon.reloads import Reloads
from xce_nodeagent.host.reload import ReloadWatch


@pytest.fixture
def places(tmp_path):
    run, etc = tmp_path / "run", tmp_path / "etc"
    run.mkdir()
    etc.mkdir()
    return run, etc


@pytest.fixture
def watch(places):
    watch = ReloadWatch(places)
    yield watch
    watch.close()


def signs(watch):
    """Whether something came that matters."""
    readable, _, _ = select.select([watch.fileno()], [], [], 0)
    return bool(readable) and watch.drain()


def test_nothing_happens_where_nothing_changes(watch, places):
    assert not signs(watch)
    (places[0] / "notify").touch()
    (places[1] / "system.conf").touch()
    assert not signs(watch)


@pytest.mark.parametrize("name", ["generator", "generator.early", "generator.late"])
def test_reload_is_seen_by_the_folders_that_it_makes_anew(watch, places, name):
    (places[0] / name).mkdir()
    assert signs(watch)
    assert not signs(watch)
    (places[0] / name).rmdir()
    assert signs(watch)


@pytest.mark.parametrize("place", [0, 1])
def test_properties_are_seen_each_time_that_they_are_set(watch, places, place):
    control = places[place] / "system.control"
    control.mkdir()
    assert signs(watch)
    unit = control / "jobs.service.d"
    unit.mkdir()
    assert signs(watch)
    for _ in range(3):
        (unit / ".new").write_text("[Service]\n")
        os.rename(unit / ".new", unit / "50-DeviceAllow.conf")
        assert signs(watch)
    (unit / "50-DeviceAllow.conf").unlink()
    assert signs(watch)
    unit.rmdir()
    control.rmdir()
    assert signs(watch)
    control.mkdir()
    assert signs(watch)
    (control / "other.service.d").mkdir()
    assert signs(watch)


def test_queue_that_overflowed_counts(watch, places):
    with open("/proc/sys/fs/inotify/max_queued_events") as limit:
        most = int(limit.read())
    for number in range(most + 2):  # events that mean nothing, no two in a row alike
        os.close(os.open(places[0] / f"x{number % 2}", os.O_WRONLY | os.O_CREAT))
    assert signs(watch)


def test_where_there_is_no_systemd_it_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        ReloadWatch((tmp_path / "run", tmp_path / "etc"))


def test_one_reload_is_verified_at_once_and_once_more(places):
    async def scenario():
        looked = []
        twice = asyncio.Event()
        clock = asyncio.get_running_loop().time

        def look():
            looked.append(clock())
            if len(looked) == 2:
                twice.set()

        reloads = Reloads(ReloadWatch(places), look, lambda: 0.0, soon=0.02, again=0.3)
        started = clock()
        for name in ("generator", "generator.early", "generator.late"):
            (places[0] / name).mkdir()
            await asyncio.sleep(0.001)
        await twice.wait()
        await asyncio.sleep(0.4)
        reloads.close()
        assert len(looked) == 2
        assert looked[0] - started >= 0.02
        assert looked[1] - started >= 0.3

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_reloads_in_a_loop_are_not_verified_more_often_than_they_cost(places):
    async def scenario():
        looked = []
        reloads = Reloads(
            ReloadWatch(places), lambda: looked.append(1), lambda: 0.05, soon=0.001, again=10
        )
        for _ in range(100):
            (places[0] / "generator").mkdir()
            (places[0] / "generator").rmdir()
            await asyncio.sleep(0.005)
        seen = reloads.seen
        reloads.close()
        assert seen > 20
        assert 1 <= len(looked) <= 2  # one a second, at 20 times 0.05 s

    asyncio.run(asyncio.wait_for(scenario(), 30))
