"""Ledgers that are cut and flipped anywhere: nothing wrong is ever read, and little is lost.

What the kernel knows is not asked here; `test_damaged.py` does that with a real agent.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import sqlite3
from pathlib import Path

import msgspec
import pytest

from xce_nodeagent.binding.fold import decode
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.errors import Enforcement
from xce_nodeagent.model import binding as b
from xce_nodeagent.model.plan import CgroupRef, MakeCgroup, Plan, SetEnv

JOBS = 12
TIME = itertools.count(50.0, 2.0)


def committed(number: int) -> b.Committed:
    """A binding whose event goes over some pages."""
    cgroup = MakeCgroup(CgroupRef("cgroup2", f"/sys/fs/cgroup/x/job-{number}"))
    values = (SetEnv(f"V{i}", f"{number}:{i}:" + "v" * 200) for i in range(number * 3))
    return b.Committed(
        job=str(number),
        attempt="1",
        ask=b.Ask(),
        instances=(f"GPU-{number}",),
        excluded=(),
        plan=Plan((cgroup, *values)),
        generation="boot:1",
        enforcement="cgroup2",
    )


def opened(path: Path) -> Ledger:
    return Ledger(
        path, "boot", lambda: 1000.0, uptime=lambda: next(TIME), log_bytes=0, reserve_bytes=0
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Give ledgers as a kill leaves them, all in the log or all in the database; and the truth."""
    folder = tmp_path_factory.mktemp("written")
    path = folder / "ledger.db"
    ledger = opened(path)
    for number in range(JOBS):
        ledger.commit(committed(number))
    ledger.commit(b.ReleaseIntended(job="3", attempt="1"))
    ledger.commit(b.Released(job="3", attempt="1"))
    ledger.commit(b.Drained(id="GPU-99", reason="told"))
    in_log, in_database = folder / "log", folder / "database"
    for to in (in_log, in_database):
        to.mkdir()
        for file in folder.glob("ledger.db*"):
            shutil.copy(file, to / file.name)
    with contextlib.closing(sqlite3.connect(in_database / "ledger.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    live = dict(ledger.book.live)
    ledger.close()
    return in_log, in_database, live


def copy(folder: Path, to: Path) -> Path:
    for old in to.glob("ledger.db*"):
        old.unlink()
    for file in folder.glob("ledger.db*"):
        shutil.copy(file, to / file.name)
    return to / "ledger.db"


def nothing_wrong(ledger: Ledger, live: dict[b.Key, b.Binding]) -> None:
    """What is in the book is word for word what was committed, maybe without its last events."""
    for key, binding in ledger.book.live.items():
        number = int(key[0])
        assert binding.plan == committed(number).plan
        assert binding.instances == (f"GPU-{number}",)
        assert key in live or key == ("3", "1")
    assert set(ledger.book.drained.items()) <= {("GPU-99", "told")}


def test_a_kill_loses_nothing_that_was_acknowledged(written, tmp_path):
    in_log, in_database, live = written
    for folder in (in_log, in_database):
        ledger = opened(copy(folder, tmp_path))
        assert ledger.book.live == live
        assert ledger.rebuilt is None
        ledger.close()


def test_a_log_that_is_cut_anywhere_gives_a_beginning_of_what_was_written(written, tmp_path):
    in_log, _, live = written
    size = (in_log / "ledger.db-wal").stat().st_size
    before = -1
    for end in range(0, size + 1, 512):
        path = copy(in_log, tmp_path)
        os.truncate(f"{path}-wal", min(end, size))
        ledger = opened(path)
        nothing_wrong(ledger, live)
        jobs = {int(job) for job, _ in ledger.book.live}
        assert jobs | {3} >= set(range(max(jobs, default=-1) + 1))  # no hole
        assert len(jobs) + (("3", "1") in ledger.book.over) >= before
        before = len(jobs) + (("3", "1") in ledger.book.over)
        ledger.close()
    assert before == JOBS


@pytest.mark.parametrize("where", ["log", "database"])
def test_a_flipped_byte_loses_one_event_at_most_and_reads_nothing_wrong(written, tmp_path, where):
    in_log, in_database, live = written
    folder = in_log if where == "log" else in_database
    name = "ledger.db-wal" if where == "log" else "ledger.db"
    content = (folder / name).read_bytes()
    chance = random.Random(20261130)  # noqa: S311  # no secret
    places = [*range(40), *(chance.randrange(len(content)) for _ in range(160))]
    for at in places:
        path = copy(folder, tmp_path)
        changed = bytearray(content)
        changed[at] ^= chance.choice([1, 0x40, 0x80, 0xFF])
        (tmp_path / name).write_bytes(changed)
        try:
            ledger = opened(path)
        except Exception as error:
            raise AssertionError(f"byte {at}") from error
        nothing_wrong(ledger, live)
        lost = live.keys() - ledger.book.live.keys()
        assert len(lost) <= 1, (at, lost)
        assert not lost or ledger.rebuilt is not None, at
        ledger.close()


def test_what_is_moved_aside_can_still_be_looked_at(written, tmp_path):
    _, in_database, _ = written
    path = copy(in_database, tmp_path)
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    opened(path).close()
    (aside,) = tmp_path.glob("ledger.db.damaged-*")
    assert aside.read_bytes() == content


def test_a_row_is_read_as_it_was_written_and_is_an_event(written):
    _, in_database, _ = written
    with contextlib.closing(sqlite3.connect(in_database / "ledger.db")) as db:
        for (body,) in db.execute("SELECT body FROM events"):
            assert msgspec.json.encode(decode(body)) == body


def test_damage_under_an_open_ledger_is_written_over_from_memory(written, tmp_path):
    _, in_database, live = written
    path = copy(in_database, tmp_path)
    ledger = opened(path)
    path.write_bytes(b"?" * path.stat().st_size)
    os.truncate(f"{path}-wal", 0)
    for number in (50, 51, 52):
        with contextlib.suppress(Enforcement):
            ledger.commit(committed(number))
        with contextlib.suppress(Enforcement):
            ledger.checkpoint()
    expected = dict(ledger.book.live)
    assert expected.keys() >= live.keys()
    assert ("52", "1") in expected
    ledger.close()
    again = opened(path)
    assert again.book.live == expected
    assert again.book.drained == {"GPU-99": "told"}
    assert ("3", "1") in again.book.over
    again.close()
