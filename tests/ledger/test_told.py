"""What was told while the disk was full is on the disk as soon as that can be written."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing

import pytest

from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.rebuilt import Rebuilt
from xce_nodeagent.daemon import bookkeeping
from xce_nodeagent.model.binding import Drained
from xce_nodeagent.model.inventory import Seen

SEEN = {"card": Seen("hash", 41)}


@pytest.fixture
def open_ledger(tmp_path):
    """Open the ledger of a folder again and again, on a clock that runs."""
    opened = []
    now = [100.0]

    def clock():
        now[0] += 0.05
        return now[0]

    def make():
        opened.append(
            Ledger(tmp_path / "ledger.db", "boot", clock, log_bytes=0, reserve_bytes=65_536)
        )
        return opened[-1]

    make.clock = clock
    yield make
    for ledger in opened:
        ledger.close()


@pytest.mark.parametrize("how", ["flush", "commit", "check", "anew"])
def test_a_generation_that_was_told_unrecorded_is_written_with_whatever_comes_next(
    open_ledger, how
):
    ledger = open_ledger()
    ledger.remember({}, 7)
    ledger.owe(SEEN, 42)
    match how:
        case "flush":
            ledger.flush()
        case "commit":
            ledger.commit(Drained(id="card", reason="x"))
        case "check":
            assert ledger.check() == ""
        case "anew":
            ledger.path.unlink()
            ledger.commit(Drained(id="card", reason="x"))
    assert open_ledger().hardware() == (SEEN, 42)


def test_what_became_of_a_ledger_is_told_after_it_was_written_anew(open_ledger):
    ledger = open_ledger()
    ledger.confirm("2 bindings")
    ledger.path.unlink()
    ledger.commit(Drained(id="card", reason="x"))
    again = open_ledger()
    assert again.rebuilt is not None
    assert again.rebuilt.kernel == "2 bindings"


def word(ledger, now):
    return asyncio.run(bookkeeping.ledger(ledger, now, enforced=True))


def test_the_word_of_a_rebuilt_ledger_ends_with_the_damaged_file_or_after_a_week(
    open_ledger, tmp_path
):
    ledger = open_ledger()
    aside = tmp_path / "ledger.db.damaged-1"
    aside.touch()
    ledger.rebuilt = Rebuilt(at=100.0, why="torn", aside=str(aside), rows=3)
    assert word(ledger, 200.0).state == "warning"
    assert "delete" in word(ledger, 200.0).remedy
    assert word(ledger, 100.0 + 7 * 86_400).state == "ok"
    aside.unlink()
    assert word(ledger, 200.0).state == "ok"


@pytest.mark.parametrize("how", ["overwritten", "replaced"])
def test_a_file_that_is_harmed_under_the_agent_is_seen_and_written_anew(open_ledger, how):
    ledger = open_ledger()
    for number in range(20):
        ledger.commit(Drained(id=f"card{number}", reason="x"))
    ledger.checkpoint()
    if how == "overwritten":
        size = ledger.path.stat().st_size
        with ledger.path.open("r+b") as file:
            file.write(os.urandom(size))
        with closing(sqlite3.connect(ledger.path)) as db, pytest.raises(sqlite3.DatabaseError):
            db.execute("PRAGMA quick_check").fetchone()
    else:
        other = ledger.path.with_name("other")
        other.write_bytes(ledger.path.read_bytes())
        os.replace(other, ledger.path)
    check = word(ledger, 200.0)
    assert (check.state, "written anew" in check.text) == ("warning", True)
    assert word(ledger, 200.0).state == "ok"
    assert len(open_ledger().book.drained) == 20


def test_a_disk_with_too_little_space_is_told_before_it_is_full(tmp_path):
    path = tmp_path / "ledger.db"
    assert bookkeeping.space(path) == []  # there is none
    with path.open("wb") as file:
        disk = os.statvfs(tmp_path)
        file.truncate(disk.f_blocks * disk.f_frsize)  # a hole; written anew it takes all the disk
    (check,) = bookkeeping.space(path)
    assert (check.name, check.state) == ("space", "warning")
