"""Delivery: brings the newest report to one sink, from a thread of its own.

A sink that hangs holds its own thread and nothing else. What failed is tried again after the waits
of `backoff.py`, with the report that is the newest then; what was not delivered meanwhile is
skipped.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from random import Random

from msgspec import Struct, structs

from xce_nodeagent.model.name import printable
from xce_nodeagent.upstream.backoff import CAP_SECONDS, Backoff
from xce_nodeagent.upstream.newest import Newest
from xce_nodeagent.upstream.report import Report
from xce_nodeagent.upstream.sink import Sink, Undelivered

log = logging.getLogger(__name__)

SHARE = 10.0
"""How many times the CPU time of a delivery lies between it and the next: a tenth of a CPU at most,
however fast jobs come and go."""

APART_MOST = 1.0
"""Seconds that deliveries are kept apart at most."""

_LONGEST = 2000  # characters of what people are told; several members each say something

_UNKNOWN = "an error of this program: {}; the log has more"


class Status(Struct, frozen=True, kw_only=True):
    """How it stands with one sink.

    `number` is that of the last report that got there, 0 for none; `delivered` and `failing` are
    times of day: of that delivery, and since when nothing gets there (0 while it does). `lag` is
    for how many seconds there is something that has not got there; `wait` is in how many seconds it
    is tried again where it fails, 0 while it is. `reason` and `remedy` are those
    of the last failure, while it fails; `note` is the sink's. `bytes`, `deliveries` and `failures`
    count since the agent's start; what `tend` sends again (a whole report in `full_seconds`, what
    somebody else spoilt) is in none of the first two.
    """

    kind: str
    where: str
    number: int = 0
    delivered: float = 0.0
    lag: float = 0.0
    failing: float = 0.0
    wait: float = 0.0
    reason: str = ""
    remedy: str = ""
    note: str = ""
    bytes: int = 0
    deliveries: int = 0
    failures: int = 0


class Delivery:
    """Runs one sink, in a thread from `start` to `stop`.

    `clock` is monotonic, `wall` the time of day. `cap` is how many seconds lie between two tries at
    most, where trying is of use.
    """

    def __init__(
        self,
        sink: Sink,
        newest: Newest,
        random: Random,
        *,
        cap: float = CAP_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._sink = sink
        self._newest = newest
        self._backoff = Backoff(random, cap)
        self._clock = clock
        self._wall = wall
        self._status = Status(kind=sink.kind, where=sink.where)
        self._delivered: Report | None = None
        self._count = 0
        self._behind: float | None = None
        self._retry = self._earliest = -math.inf
        self._tend = math.inf
        self._stopping = False
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"report-{sink.kind}", daemon=True)
        newest.subscribe(self._told)

    @property
    def status(self) -> Status:
        """How it stands now. For any thread."""
        behind = self._behind
        now = self._clock()
        return structs.replace(
            self._status,
            lag=0.0 if behind is None else max(0.0, now - behind),
            wait=max(0.0, self._retry - now),
            note=_shown(self._sink.note),
        )

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Have the newest delivered once more, if all is well, and then nothing any more."""
        self._stopping = True
        self._bell.set()

    def join(self, seconds: float) -> bool:
        """Wait for the end after `stop`; say whether it came. One that hangs is left to itself."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _told(self) -> None:
        if self._behind is None:
            self._behind = self._clock()
        self._bell.set()

    def _run(self) -> None:
        while not self._stopping:
            pause = self.step()
            self._bell.wait(None if pause == math.inf else min(pause, threading.TIMEOUT_MAX))
            self._bell.clear()
        if not self._backoff.failures:
            self._earliest = -math.inf
            self.step()
        self._sink.close()

    def step(self) -> float:
        """Do what is due; give the seconds until something will be, if nothing comes before."""
        now = self._clock()
        used = time.thread_time()
        try:
            if self._is_behind() and now >= max(self._earliest, self._retry):
                self._deliver()
                self._tend = -math.inf
                apart = min(SHARE * (time.thread_time() - used), APART_MOST)
                self._earliest = now + apart
            if self._tend <= now:
                self._tend = self._clock() + self._sink.tend()
                if now >= self._retry:  # before that, a lease was kept whose report still waits
                    self._well()
        except Undelivered as failure:
            self._failed(failure)
        except Exception as error:
            log.exception("the report to %s", self._sink.where)
            told = _UNKNOWN.format(f"{type(error).__name__}: {error}")
            self._failed(Undelivered(told, hopeless=True))
        next_try = max(self._earliest, self._retry) if self._is_behind() else math.inf
        return max(0.0, min(self._tend, next_try) - self._clock())

    def _is_behind(self) -> bool:
        return self._count != self._newest.told

    def _deliver(self) -> None:
        taken = self._clock()
        made = self._newest.report()
        if made is None:
            return
        count, report = made
        if report is not self._delivered:
            size = self._sink.deliver(report)
            before = self._status
            self._status = structs.replace(
                before,
                number=report.head.number,
                delivered=self._wall(),
                bytes=before.bytes + size,
                deliveries=before.deliveries + 1,
            )
            self._delivered = report
        self._count = count
        # In this order: what comes in between is seen as not delivered, and not the other way.
        self._behind = None
        if self._is_behind():
            self._behind = taken

    def _failed(self, failure: Undelivered) -> None:
        before, reason = self._status, _shown(failure.reason)
        self._retry = self._clock() + self._backoff.failed(
            hopeless=failure.hopeless, after=failure.after
        )
        # What is there is not known any more: the newest goes there again, whatever was delivered.
        self._delivered, self._count = None, 0
        self._tend, self._earliest = self._clock() + failure.meanwhile, -math.inf
        if self._behind is None:
            self._behind = self._clock()
        self._status = structs.replace(
            before,
            failing=before.failing or self._wall(),
            reason=reason,
            remedy=_shown(failure.remedy),
            failures=before.failures + 1,
        )
        if not before.failing:  # once, and not with every try
            log.warning("the node is not reported to %s", reason)

    def _well(self) -> None:
        if self._status.failing:
            log.info("the node is reported to %s again", self._sink.where)
            self._status = structs.replace(self._status, failing=0.0, reason="", remedy="")
        self._backoff.succeeded()


def _shown(text: str) -> str:
    """Give what a sink says as a terminal may have it; some of it others chose."""
    text = printable(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
