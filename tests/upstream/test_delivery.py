"""Delivery decides by what it is told of the time: none of these tests waits for it."""

from __future__ import annotations

import math
import threading

import pytest
from states import after, binding, chance, scanned

from xce_nodeagent.upstream.backoff import CAP_SECONDS, HOPELESS_SECONDS, WISH_SECONDS, Backoff
from xce_nodeagent.upstream.delivery import APART_MOST, Delivery
from xce_nodeagent.upstream.newest import Newest
from xce_nodeagent.upstream.report import Series
from xce_nodeagent.upstream.sink import Undelivered

PATIENCE = 20.0


class Scripted:
    """A sink that keeps what it gets; `fails` are what it raises, one after the other."""

    kind = "file"
    where = "there"
    note = ""

    def __init__(self, *fails, tend=(math.inf,)):
        self.fails = list(fails)
        self.tends = list(tend)
        self.got = []
        self.tended = 0
        self.closed = False

    def deliver(self, report):
        if self.fails and (failure := self.fails.pop(0)) is not None:
            raise failure
        self.got.append(report)
        return 7

    def tend(self):
        self.tended += 1
        told = self.tends.pop(0) if len(self.tends) > 1 else self.tends[0]
        if isinstance(told, Exception):
            raise told
        return told

    def close(self):
        self.closed = True


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def newest():
    return Newest(Series(agent="a"), clock=lambda: 5.0)


def delivery(sink, newest, clock, seed=1):
    return Delivery(sink, newest, chance(seed), clock=clock, wall=lambda: 1000.0 + clock.now)


def test_before_there_is_anything_nothing_is_due(newest, clock):
    sink = Scripted()
    assert delivery(sink, newest, clock).step() == math.inf
    assert (sink.got, sink.tended) == ([], 0)


def test_the_newest_wins_and_what_came_between_is_nowhere(newest, clock):
    sink = Scripted(Undelivered("away"))
    one = delivery(sink, newest, clock)
    newest.tell(scanned(), ())
    pause = one.step()
    for number in range(50):
        newest.tell(scanned(), [binding(str(number))])
        assert one.step() <= pause, "news do not bring the next try forward, or put it off"
    clock.now += pause
    assert one.step() == math.inf
    assert [[b.job for b in report.bindings] for report in sink.got] == [["49"]]
    assert sink.got[0].head.number == 2, "a number is given to what was made, not to what was told"


def test_nothing_is_sent_twice_where_nothing_changed(newest, clock):
    sink = Scripted()
    one = delivery(sink, newest, clock)
    for _ in range(3):
        newest.tell(scanned(), [binding("1")])
        one.step()
        clock.now += APART_MOST
    assert len(sink.got) == 1
    assert (one.status.deliveries, one.status.bytes, one.status.number) == (1, 7, 1)
    assert one.status.lag == 0


def test_deliveries_keep_a_distance_that_grows_with_what_they_cost(newest, clock):
    sink = Scripted()
    one = delivery(sink, newest, clock)
    newest.tell(scanned(), ())
    one.step()
    newest.tell(scanned(), [binding("1")])
    pause = one.step()
    assert 0 < pause <= APART_MOST
    assert len(sink.got) == 1
    clock.now += pause
    one.step()
    assert len(sink.got) == 2


def test_a_failure_is_told_with_its_remedy_until_it_is_over(newest, clock):
    sink = Scripted(Undelivered("no space", remedy="make some"), Undelivered("still none"))
    one = delivery(sink, newest, clock)
    newest.tell(scanned(), ())
    pause = one.step()
    told = one.status
    assert (told.failing, told.reason, told.remedy) == (1100.0, "no space", "make some")
    assert told.wait == pause > 0
    clock.now += pause
    assert one.status.wait == 0
    pause = one.step()
    assert (one.status.failing, one.status.reason, one.status.failures) == (1100.0, "still none", 2)
    assert one.status.lag == clock.now - 100.0
    clock.now += pause
    one.step()
    assert (one.status.failing, one.status.reason, one.status.lag) == (0.0, "", 0.0)
    assert one.status.delivered == 1000.0 + clock.now


def test_what_is_due_by_the_clock_is_done_without_any_news(newest, clock):
    sink = Scripted(tend=(3.0, 4.0, math.inf))
    one = delivery(sink, newest, clock)
    newest.tell(scanned(), ())
    assert one.step() == 3.0
    clock.now += 2.0
    assert one.step() == 1.0
    clock.now += 1.0
    assert one.step() == 4.0
    assert (len(sink.got), sink.tended) == (1, 2)


def test_a_lease_is_kept_while_the_report_waits(newest, clock):
    """A store that is full takes no report for minutes, and ends no lease that is kept alive."""
    full = Undelivered("no space", hopeless=True)
    full.meanwhile = 10.0
    sink = Scripted(full, tend=(10.0,))
    one = delivery(sink, newest, clock)
    newest.tell(scanned(), ())
    pauses = [one.step()]
    while not sink.got:
        assert sink.tended == len(pauses) - 1
        assert one.status.failing == 1100.0, "a lease that lives is no report"
        clock.now += pauses[-1]
        pauses.append(one.step())
    assert sink.tended >= 6, "a minute at least"
    assert set(pauses[:-2]) == {10.0}
    assert one.status.failing == 0


def test_after_a_lease_is_lost_the_newest_is_brought_again(newest, clock):
    sink = Scripted(tend=(3.0, Undelivered("the lease is lost"), math.inf))
    one = delivery(sink, newest, clock)
    newest.tell(scanned(), ())
    clock.now += one.step()
    pause = one.step()
    assert one.status.reason == "the lease is lost"
    clock.now += pause
    assert one.step() == math.inf
    assert len(sink.got) == 2
    assert sink.got[0] is sink.got[1]
    assert not one.status.failing


def test_a_sink_with_a_fault_of_its_own_is_a_sink_that_fails(newest, clock, caplog):
    one = delivery(Scripted(KeyError("x")), newest, clock)
    newest.tell(scanned(), ())
    assert one.step() >= CAP_SECONDS
    assert "KeyError" in one.status.reason
    assert "Traceback" in caplog.text


def test_an_outage_is_logged_once_and_its_end(newest, clock, caplog):
    caplog.set_level("INFO")
    one = delivery(Scripted(*[Undelivered("there: refused")] * 20), newest, clock)
    newest.tell(scanned(), ())
    for _ in range(21):
        clock.now += one.step()
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "the node is not reported to there: refused", "the node is reported to there again",
    ]  # fmt: skip


def test_the_pace_has_full_jitter_a_limit_and_begins_anew():
    limits = [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    paces = [Backoff(chance(seed)) for seed in range(500)]
    for limit in limits:
        told = [pace.failed() for pace in paces]
        assert 0 <= min(told) < limit * 0.02
        assert limit * 0.98 < max(told) <= limit
        assert limit * 0.4 < sum(told) / len(told) < limit * 0.6
    for pace in paces:
        pace.succeeded()
        assert pace.failed() <= 0.5


def test_hopeless_is_seldom_and_a_wish_is_obeyed_within_limits():
    pace = Backoff(chance(1))
    assert all(CAP_SECONDS <= pace.failed(hopeless=True) <= HOPELESS_SECONDS for _ in range(50))
    pace.succeeded()
    assert 30.0 <= pace.failed(after=30.0) <= 30.5
    assert WISH_SECONDS <= pace.failed(after=1e12) <= WISH_SECONDS + 1.0
    assert 0 <= pace.failed(after=-5.0) <= 2.0
    for _ in range(5000):
        pace.failed()
    assert pace.failed() <= CAP_SECONDS


class Gated(Scripted):
    """Hangs in a delivery until the gate opens."""

    def __init__(self):
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def deliver(self, report):
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        return super().deliver(report)


def test_a_sink_that_hangs_holds_nobody_else_and_gets_the_newest_then(newest):
    hanging, other = Gated(), Scripted()
    got = threading.Event()
    other.tend = lambda: got.set() or math.inf
    threads = [Delivery(sink, newest, chance(1)) for sink in (hanging, other)]
    for one in threads:
        one.start()
    newest.tell(scanned(), ())
    assert hanging.entered.wait(PATIENCE)
    assert got.wait(PATIENCE)
    for number in range(100):
        newest.tell(scanned(), [binding(str(number))])
    assert threads[0].status.deliveries == 0
    for one in threads:
        one.stop()
    assert threads[1].join(PATIENCE)
    assert not threads[0].join(0), "who hangs is left to itself"
    assert other.got[-1].bindings[0].job == "99"
    hanging.gate.set()
    assert threads[0].join(PATIENCE)
    assert [len(report.bindings) for report in hanging.got] == [0, 1], "two, and not a hundred"
    assert hanging.got[-1].bindings[0].job == "99"
    assert hanging.closed
    assert other.closed


def test_the_end_does_not_wait_for_a_place_that_is_away(newest):
    failed = threading.Event()
    sink = Scripted()

    def away(_):
        failed.set()
        raise Undelivered("away", hopeless=True)

    sink.deliver = away
    one = Delivery(sink, newest, chance(1))
    one.start()
    newest.tell(scanned(), ())
    assert failed.wait(PATIENCE)
    newest.tell(after(scanned(), 0, healthy=False, reason="x"), ())
    one.stop()
    assert one.join(PATIENCE)
    assert sink.closed


def test_reports_are_made_once_for_all_sinks_and_numbered(newest):
    newest.tell(scanned(), ())
    first = newest.report()
    assert newest.report() is first
    newest.tell(scanned(), ())
    second = newest.report()
    assert second[1] is first[1], "nothing changed, so it is the same report"
    newest.tell(scanned(), [binding("1")])
    third = newest.report()
    assert (first[1].head.number, third[1].head.number) == (1, 2)
    assert third[1].head.time == 5.0
