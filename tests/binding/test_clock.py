"""The clock of the day is set forth and back: attempts are remembered as long as they should be."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from xce_nodeagent import errors
from xce_nodeagent.binding.elapsed import Elapsed
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.recovery import recover
from xce_nodeagent.model import wire

DAY = 86_400.0


def run(work):
    return asyncio.run(work)


def prepare(node, job="1", attempt="a"):
    return run(node.life.prepare(wire.Prepare(job=job, attempt=attempt)))


def over(node, job="1"):
    """Prepare and release: this attempt is dead from now on."""
    prepare(node, job)
    run(node.life.releases.release(wire.Release(job=job, attempt="a")))
    node.ledger.flush()


def maintain(node):
    node.ledger.prune(node.ledger.elapsed() - node.life.site.attempt_memory_seconds)


def restart(node):
    node.crash()
    node.open()
    run(recover(node.ledger, node.executor, node.life))


def reboot(node):
    node.crash()
    node.reboot()
    run(recover(node.ledger, node.executor, node.life))


@pytest.mark.parametrize("step", [DAY + 1, 30 * DAY, -DAY], ids=["forth", "a month forth", "back"])
@pytest.mark.parametrize("after", [maintain, restart, lambda _: None], ids=["prune", "restart", ""])
def test_a_clock_that_is_set_forth_or_back_does_not_revive_a_dead_attempt(node, step, after):
    over(node)
    node.clock.now += step
    after(node)
    with pytest.raises(errors.Stale):
        prepare(node)


@pytest.mark.parametrize("after", [maintain, restart], ids=["prune", "restart"])
def test_a_clock_that_is_set_back_does_not_keep_an_attempt_for_longer(node, after):
    over(node)
    node.clock.now -= 30 * DAY
    node.uptime.now += DAY + 1
    after(node)
    prepare(node)


def test_a_clock_that_goes_back_and_forth_leaves_every_binding_as_it_is(node):
    for turn in range(20):
        node.clock.now += DAY if turn % 2 else -DAY
        prepare(node, str(turn))
        restart(node)
        maintain(node)
    assert {b.job for b in node.ledger.book} == {str(turn) for turn in range(20)}


def test_an_attempt_stays_dead_over_a_reboot_whatever_the_new_boot_takes_the_day_for(node):
    over(node)
    node.clock.now += 400 * DAY
    reboot(node)
    maintain(node)
    with pytest.raises(errors.Stale):
        prepare(node)
    node.uptime.now += DAY + 10
    maintain(node)
    prepare(node)


def test_a_host_that_boots_twice_a_day_forgets_its_attempts_nevertheless(node):
    over(node)
    for turn in range(3):
        node.uptime.now += DAY / 2
        prepare(node, f"of boot {turn}".replace(" ", "-"))
        reboot(node)
    maintain(node)
    prepare(node)


def test_what_is_pruned_makes_nothing_older_than_it_is(node):
    over(node, "1")
    node.uptime.now += DAY + 1
    over(node, "2")
    maintain(node)
    reboot(node)
    maintain(node)
    with pytest.raises(errors.Stale):
        prepare(node, "2")
    prepare(node, "1")


def without_uptime(node):
    """Make the database one of an agent that did not record it."""
    node.crash()
    with sqlite3.connect(node.path) as db:
        db.execute("ALTER TABLE events DROP COLUMN up")
    db.close()


def test_a_database_without_the_column_is_read_and_its_attempts_stay_dead(node):
    over(node)
    prepare(node, "2")
    without_uptime(node)
    node.uptime.now += 40 * DAY
    node.open()
    assert [b.job for b in node.ledger.book] == ["2"]
    maintain(node)
    with pytest.raises(errors.Stale):
        prepare(node)
    node.uptime.now += DAY + 1
    prepare(node)


def test_an_event_that_does_not_have_the_column_is_read(node):
    over(node)
    prepare(node, "2")
    node.crash()
    with sqlite3.connect(node.path) as db:  # as that agent writes: four columns by their names
        db.execute(
            "INSERT INTO events (time, boot, crc, body)"
            " SELECT time, boot, crc, body FROM events ORDER BY seq LIMIT 1"
        )
    db.close()
    node.open()
    assert sorted(b.job for b in node.ledger.book) == ["1", "2"]


def test_the_moments_of_earlier_boots_are_never_later_than_what_was_seen_of_them():
    up = 7.0
    elapsed = Elapsed([("a", 100.0), ("b", None), ("c", 10.0), ("now", 5.0)], "now", lambda: up)
    assert elapsed.moment("a", 40.0) == 40
    assert elapsed.moment("a", None) == 100
    assert elapsed.moment("b", None) == 100
    assert elapsed.moment("c", 4.0) == 104
    assert elapsed.moment("now", 5.0) == 115
    assert elapsed.moment("now", None) == elapsed.now() == 117
    assert elapsed.moment("never seen", None) == 110


def test_a_ledger_that_is_given_one_clock_ages_by_it(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db", "boot", lambda: 7.0, log_bytes=0)
    assert ledger.elapsed() == 7
    ledger.close()
