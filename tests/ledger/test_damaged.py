"""A ledger that is cut, flipped, or no ledger at all, under an agent with jobs."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


def prepare(agent, job, *instances, attempt="1", **more):
    return agent.call("Prepare", job=job, attempt=attempt, instances=list(instances), **more)


def word(agent):
    """Give what doctor says of the ledger."""
    return next(c for c in agent.call("Doctor")["checks"] if c["name"] == "ledger")["text"]


def cut_in_half(files):
    os.truncate(files.path, files.path.stat().st_size // 2)


def cut_in_a_page(files):
    os.truncate(files.path, 4096 + 1000)


def flipped_header(files):
    files.flip(files.path, 3)


def flipped_size_of_page(files):
    files.flip(files.path, 16, 0xFF)


def flipped_schema(files):
    at = files.path.read_bytes().index(b"CREATE TABLE events")
    files.flip(files.path, at + 8)


def flipped_row(files):
    at = files.path.read_bytes().rindex(b"XCE_JOB_ID")
    files.flip(files.path, at)


def no_database(files):
    files.path.write_bytes(os.urandom(20_000))


def another_database(files):
    files.path.unlink()
    with contextlib.closing(sqlite3.connect(files.path)) as db:
        db.execute("CREATE TABLE songs (title TEXT)")


def empty_folder(files):
    files.path.unlink()
    files.path.mkdir()


def full_folder(files):
    files.path.unlink()
    files.path.mkdir()
    (files.path / "keep").write_text("me", "utf-8")


HARM = [
    cut_in_half,
    cut_in_a_page,
    flipped_header,
    flipped_size_of_page,
    flipped_schema,
    flipped_row,
    no_database,
    another_database,
    empty_folder,
    full_folder,
]


@pytest.mark.parametrize("harm", HARM)
def test_what_is_damaged_is_moved_aside_and_nothing_is_lost(agent2, ledger_of, jobs, refused, harm):
    files = ledger_of(agent2)
    one, two, three, four, *_ = [i["id"] for i in agent2.instances("gpu")]
    prepare(agent2, "first", one)
    prepare(agent2, "second", two, ports=[{"count": 3, "name": "http"}])
    prepare(agent2, "first", three, add=True)
    before = jobs(agent2)
    agent2.kill()
    files.fold()
    harm(files)
    left = files.path.read_bytes() if files.path.is_file() else None
    owner = files.state.stat()
    os.chown(files.path, owner.st_uid, owner.st_gid)
    agent2.start()
    assert jobs(agent2) == before
    for held in (one, two, three):
        with pytest.raises(refused, match="held by"):
            prepare(agent2, "thief", held)
    prepare(agent2, "new", four)
    (aside,) = files.aside()
    if left is None:
        assert aside.is_dir()
    else:
        assert aside.read_bytes()[:20_000] == left[:20_000]
    assert str(aside) in word(agent2)
    assert agent2.stop() == 0
    agent2.start()
    assert len(agent2.call("ListBindings")["bindings"]) == 3
    for job in ("first", "second", "new"):
        assert agent2.call("Release", job=job)["clean"]
    assert files.aside() == [aside]


def test_drains_and_dead_attempts_are_kept_as_far_as_they_can_be_read(agent2, ledger_of, refused):
    files = ledger_of(agent2)
    one, two, *_ = [i["id"] for i in agent2.instances("gpu")]
    agent2.call("Drain", id=one, reason="its fan is loud")
    prepare(agent2, "over", two)
    agent2.call("Release", job="over", attempt="1")
    prepare(agent2, "live", two)
    agent2.kill()
    files.fold()
    flipped_header(files)
    agent2.start()
    with pytest.raises(refused, match="fan is loud"):
        prepare(agent2, "new", one)
    with pytest.raises(refused, match="was released"):
        prepare(agent2, "over", two)
    assert [view["job"] for view in agent2.call("ListBindings")["bindings"]] == ["live"]


def test_a_flip_in_the_log_does_not_cut_off_what_is_behind_it(agent2, ledger_of, jobs, refused):
    """SQLite takes a log for good up to the first frame that is wrong, and says nothing."""
    files = ledger_of(agent2)
    one, two, three, *_ = [i["id"] for i in agent2.instances("gpu")]
    prepare(agent2, "first", one)
    agent2.call("Drain", id=three, reason="told and acknowledged")
    prepare(agent2, "over", two)
    agent2.call("Release", job="over", attempt="1")
    before = jobs(agent2)
    agent2.kill()
    at = files.wal.read_bytes().index(b'"job":"first"')
    files.flip(files.wal, at)
    agent2.start()
    assert jobs(agent2) == before
    assert "log is damaged" in word(agent2)
    with pytest.raises(refused, match="told and acknowledged"):
        prepare(agent2, "new", three)
    with pytest.raises(refused, match="was released"):
        prepare(agent2, "over", two)


def test_the_database_is_lost_and_its_log_is_not(agent2, ledger_of, jobs):
    files = ledger_of(agent2)
    one, *_ = [i["id"] for i in agent2.instances("gpu")]
    prepare(agent2, "first", one)
    agent2.call("Drain", id=one, reason="still known")
    before = jobs(agent2)
    agent2.kill()
    files.path.unlink()
    agent2.start()
    assert jobs(agent2) == before
    assert "still known" in str(agent2.call("GetInventory")["instances"])


def test_a_few_damaged_ledgers_are_kept_and_the_newest_always(agent2, ledger_of):
    files = ledger_of(agent2)
    newest = None
    for number in range(5):
        agent2.kill()
        files.fold()
        files.path.write_bytes(bytes([number]) * 5000)
        agent2.start()
        newest = bytes([number]) * 5000
    kept = [path.read_bytes() for path in files.aside()]
    assert len(kept) == 3
    assert newest in kept


def test_a_crash_between_the_two_names_loses_nothing(agent2, ledger_of, jobs):
    files = ledger_of(agent2)
    one, *_ = [i["id"] for i in agent2.instances("gpu")]
    prepare(agent2, "first", one)
    agent2.call("Drain", id=one, reason="still known")
    before = jobs(agent2)
    agent2.kill()
    files.fold()
    shutil.move(files.path, files.state / "ledger.db.new")
    agent2.start()
    assert jobs(agent2) == before
    assert "still known" in str(agent2.call("GetInventory")["instances"])
    assert not (files.state / "ledger.db.new").exists()
