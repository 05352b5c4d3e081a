"""The fold: what the ledger's events come to, and which of its rows say what. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from xce_nodeagent.binding.book import Book
from xce_nodeagent.binding.elapsed import Elapsed
from xce_nodeagent.binding.salvage import Row
from xce_nodeagent.model.binding import (
    Adopted,
    Binding,
    Committed,
    Drained,
    Ended,
    Event,
    InvalidTransition,
    Key,
    Released,
    Undrained,
    Withheld,
)

DEPARTED = 64
"""Releases, the last ones, of which the bindings are remembered when a ledger is read."""

decode = msgspec.json.Decoder(Event).decode
encode = msgspec.json.Encoder().encode


class Written(NamedTuple):
    """An event on its way to the disk; `up` is in seconds since that boot."""

    time: float
    boot: str
    up: float | None
    body: bytes


class Fold:
    """The book, when each attempt ended, in which boot each binding was made, and whose a row is.

    `boots` are those that have events, as Elapsed takes them.
    """

    def __init__(
        self,
        boots: Iterable[tuple[str, float | None]],
        boot: str,
        clock: Callable[[], float],
        uptime: Callable[[], float],
    ) -> None:
        self.book = Book()
        self.boots: dict[Key, str] = {}
        self.rows: dict[Key, list[int]] = {}
        self.finished: dict[Key, float] = {}
        self.departed: list[Binding] = []
        self.elapsed = Elapsed(boots, boot, uptime)
        self._boot = boot
        self._clock = clock
        self._uptime = uptime

    def now(self, event: Event) -> Occurred:
        """See what an event would do now. Raises InvalidTransition where it cannot follow."""
        time, up = self._clock(), self._uptime()
        return Occurred(event, time, up, self.book.preview(event, time, up))

    def take(self, occurred: Occurred) -> Binding | None:
        """Take in what happened now."""
        moment = self.elapsed.moment(self._boot, occurred.up)
        return self._take(occurred.event, occurred.after, moment, self._boot)

    def written(self, occurred: Occurred) -> Written:
        """Give it as it goes to the disk."""
        return Written(occurred.time, self._boot, occurred.up, encode(occurred.event))

    def replay(self, row: Row) -> None:
        """Take a row in. Raises InvalidTransition, or MsgspecError where it is no event."""
        event = decode(row.body)
        after = self.book.preview(event, row.time, row.up)
        self._take(event, after, self.elapsed.moment(row.boot, row.up), row.boot)
        self.belongs(event, row.seq)
        if isinstance(event, Released) and after and after.state == "ended":
            self.departed.append(after)
            del self.departed[:-DEPARTED]

    def replay_what_can(self, rows: Iterable[Row]) -> list[Row]:
        """Take in the rows that can follow, where some are lost; give these."""
        kept: list[Row] = []
        for row in rows:
            try:
                self.replay(row)
            except (InvalidTransition, msgspec.MsgspecError):
                continue
            kept.append(row)
        return kept

    def belongs(self, event: Event, seq: int) -> None:
        """Remember whose a row is."""
        if not isinstance(event, (Drained, Undrained)):
            self.rows.setdefault((event.job, event.attempt), []).append(seq)

    def _take(
        self, event: Event, after: Binding | None, moment: float, boot: str
    ) -> Binding | None:
        self.book.take(event, after, moment)
        match event:
            case Committed() | Adopted() | Withheld():
                self.finished.pop((event.job, event.attempt), None)
                self.boots[event.job, event.attempt] = boot
            case Ended():
                self.finished[event.job, event.attempt] = moment
            case _ if after is not None and after.state == "ended":
                self.finished[after.key] = moment
                self.boots.pop(after.key, None)
        return after

    def old(self, before: float, most: int) -> tuple[list[Key], list[int]]:
        """Give bindings that ended before a moment, and their rows: at most about so many."""
        gone: list[Key] = []
        rows: list[int] = []
        for key, ended in self.finished.items():
            if ended < before and len(rows) < most:
                rows += self.rows.get(key, [])
                gone.append(key)
        return gone, rows

    def drop(self, gone: Iterable[Key]) -> None:
        """Forget bindings that ended: their rows are deleted."""
        for key in gone:
            del self.finished[key]
            self.rows.pop(key, None)

    def again(self) -> list[Event]:
        """Give all that is known as events, for a ledger that is written anew."""
        ended: list[Event] = [Ended(job=job, attempt=attempt) for job, attempt in self.book.over]
        live = [Adopted(job=b.job, attempt=b.attempt, binding=b) for b in self.book]
        drained = [Drained(id=one, reason=why) for one, why in self.book.drained.items()]
        return [*ended, *live, *drained]

    def written_again(self, event: Event) -> Written:
        """Give one of these as it goes to the disk, with the time that it had."""
        time, up = self._clock(), self._uptime()
        match event:
            case Adopted(binding=binding):
                boot = self.boots.get(binding.key, self._boot)
                return Written(binding.changed, boot, binding.up, encode(event))
            case Ended(job=job, attempt=attempt):
                up -= self.elapsed.now() - self.book.over[job, attempt]
        return Written(time, self._boot, up, encode(event))

    def renumber(self, events: Iterable[Event]) -> None:
        """Know the rows of a ledger that was written anew with these events, from 1 on."""
        self.rows.clear()
        self.finished = dict(self.book.over)
        for seq, event in enumerate(events, 1):
            self.belongs(event, seq)


class Occurred(NamedTuple):
    """An event that happens now, and the binding as it leaves it."""

    event: Event
    time: float
    up: float
    after: Binding | None


def boots_of(rows: Iterable[Row]) -> Mapping[str, float | None]:
    """Give the boots of some rows, in their order, each with the `up` of its last one."""
    last: dict[str, float | None] = {}
    for row in rows:
        before = last.setdefault(row.boot, None)
        if row.up is not None:
            last[row.boot] = max(before or 0.0, row.up)
    return last
