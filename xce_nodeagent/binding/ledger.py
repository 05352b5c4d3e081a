"""The ledger: append-only events, and the book that is their fold.

One row is one event: its JSON, the CRC of exactly these bytes, the time of day, the boot in which
it was written and the seconds since that boot (absent where an older agent wrote it). What
`commit` returns from is on disk (WAL, synchronous=FULL: SQLite syncs the log in every commit).
What `note` takes is written with the next commit, in the same transaction, or by `flush`: it costs
a job's path next to nothing. Losing a note loses nothing: an outcome that is missing makes the
replay repeat a step that can be repeated.

A row is never changed. Rows of bindings that ended longer ago than attempts are remembered are
deleted, off the job's path.

A ledger that cannot be read whole is moved aside, and begins anew with what could be read of it;
`doubted` says so, until the kernel was asked (rebuild.py).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from xce_nodeagent.binding import salvage
from xce_nodeagent.binding.book import Book
from xce_nodeagent.binding.database import Damaged
from xce_nodeagent.binding.fold import Fold, Occurred, Written, boots_of
from xce_nodeagent.binding.owed import Owed
from xce_nodeagent.binding.rebuilt import Rebuilt
from xce_nodeagent.binding.reserve import BYTES as RESERVE_BYTES
from xce_nodeagent.binding.salvage import Row
from xce_nodeagent.binding.store import Store
from xce_nodeagent.binding.version import VERSION, TooNew
from xce_nodeagent.errors import BadConfig, Enforcement
from xce_nodeagent.model.binding import Binding, BindingEvent, Event, InvalidTransition, Key
from xce_nodeagent.model.inventory import Seen

__all__ = ["CHECKPOINT_AFTER", "VERSION", "Ledger"]

log = logging.getLogger(__name__)

CHECKPOINT_AFTER = 256
"""Events after which the write-ahead log is worth folding into the database when idle."""

NOTES_LIMIT = 1000
"""Notes that may wait before they are written for their own sake."""

LOG_BYTES = 16 << 20
"""The size that the write-ahead log has from the start. A log that grows costs every sync a second
write, of the file's new size: 216 µs instead of 122 for an event of 6 KB, measured."""

_encode = msgspec.json.Encoder().encode


class Ledger:
    """An open ledger. One process at a time: whoever runs an agent holds the runtime lock.

    `clock` is the time of day, in seconds, for people to read; `uptime` the seconds since the
    boot, by which attempts are aged, and is `clock` where none is given. A disk that cannot be
    written, now or later, is no reason to end: what is known is known, and releases go on. Nor is
    a file of a later version (`newer`) where jobs are `fenced`: the kernel has what is bound.
    """

    def __init__(
        self,
        path: Path,
        boot: str,
        clock: Callable[[], float],
        *,
        uptime: Callable[[], float] | None = None,
        log_bytes: int = LOG_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        fenced: bool = False,
    ) -> None:
        self.path = path
        self.boot = boot
        self.written = 0
        self.on_write: Callable[[], None] = lambda: None
        self.doubted, self.newer, self.unseen = False, False, ""
        self.rebuilt: Rebuilt | None = None
        self._clock = clock
        self._uptime = uptime or clock
        self._notes: list[Occurred] = []
        self._unrecorded: set[Key] = set()
        self._owed = Owed(({}, self._fresh_number()))
        self._salvaged: int | None = None
        self._store = Store(
            path,
            log_bytes=log_bytes,
            reserve_bytes=reserve_bytes,
            clock=clock,
            uptime=self._uptime,
            write_anew=self._write_anew,
        )
        self._fold = self._begin(())
        try:
            self._open()
        except BadConfig:
            raise
        except Damaged as damage:
            self._rebuild(str(damage))
        except Enforcement as error:
            if isinstance(error, TooNew) and not fenced:
                raise
            self._read(error)

    def _begin(self, boots: Iterable[tuple[str, float | None]]) -> Fold:
        return Fold(boots, self.boot, self._clock, self._uptime)

    @property
    def book(self) -> Book:
        """The live bindings, the attempts that are over, the instances that are drained."""
        return self._fold.book

    @property
    def boots(self) -> Mapping[Key, str]:
        """The boot in which each live binding was made."""
        return self._fold.boots

    @property
    def departed(self) -> Sequence[Binding]:
        """The bindings that were released last, when this ledger was read."""
        return self._fold.departed

    # ---- opening ----------------------------------------------------------------------------

    def _open(self) -> None:
        db = self._store.open()
        fold = self._begin(db.boots())
        for row in db.rows():
            try:
                fold.replay(row)
            except (InvalidTransition, msgspec.MsgspecError) as error:
                raise Damaged(f"event {row.seq} cannot be replayed: {error}") from None
        seen, number = db.hardware()
        self._owed.hardware = seen, self._fresh_number() if number is None else number
        self.doubted = bool(db.note("doubted"))
        if text := db.note("rebuilt"):
            self.rebuilt = msgspec.json.decode(text, type=Rebuilt)
        self._fold = fold

    def _fresh_number(self) -> int:
        """Give an N that was not told in this boot, whatever is lost: the milliseconds of it.

        A generation is a durable write, so N does not rise as fast as that.
        """
        return int(self._uptime() * 1000)

    def _rebuild(self, why: str) -> None:
        """Move aside what is damaged, and begin anew with the rows that are whole."""
        log.error("ledger %s is damaged: %s", self.path, why)
        self._store.leave()
        rows = self._salvage()
        told = "ledger %s: %d events could be read; the rest is asked of the kernel"
        log.error(told, self.path, len(rows))
        self.doubted = True
        self.rebuilt = Rebuilt(at=self._clock(), why=why, aside="", rows=len(rows))
        written = [Written(row.time, row.boot, row.up, row.body) for row in rows]
        try:
            moved = self._store.write_anew(written, self._owed.hardware, doubted="1")
            self.rebuilt = msgspec.structs.replace(self.rebuilt, aside=moved)
            self._keep(rebuilt=_encode(self.rebuilt).decode())
            self._open()
        except Damaged as error:
            self._store.failed(Enforcement(f"ledger {self.path}: {error}"))
        except Enforcement as error:
            # What was read is in memory; it is written as soon as the disk can take it.
            self._store.failed(error)

    def _read(self, error: Enforcement) -> None:
        """Read what cannot be opened for writing; of a later version nothing can be believed."""
        log.error("%s", error.message)
        self.doubted, self.newer = True, isinstance(error, TooNew)
        rows = [] if self.newer else self._salvage()
        self._store.failed(error, -1 if self.newer else rows[-1].seq if rows else 0)
        self._salvaged = None if self.newer else len(rows)
        why = "it could not be opened for writing at the start: " + error.message.partition(";")[0]
        self.rebuilt = Rebuilt(at=self._clock(), why=why, aside="", rows=len(rows))

    def _salvage(self) -> list[Row]:
        found = salvage.read(self.path)
        self._fold = self._begin(boots_of(found).items())
        return self._fold.replay_what_can(found)

    def confirm(self, kernel: str, unseen: str = "") -> None:
        """Take the book for true again: the kernel was asked, with this result for people.

        Where it was not asked to the end, `unseen` says why: the doubt stays, over a restart, too.
        """
        if self.rebuilt is None or not self.doubted:
            why = "it did not have what the kernel has: it was lost, or put back from an old copy"
            self.rebuilt = Rebuilt(at=self._clock(), why=why, aside="", rows=0)
        self.rebuilt = msgspec.structs.replace(self.rebuilt, kernel=kernel)
        self.doubted, self.unseen = bool(unseen), unseen
        self._keep(doubted="1" if unseen else "", rebuilt=_encode(self.rebuilt).decode())

    def _keep(self, **notes: str) -> None:
        """Keep notes: now, or with what is written next."""
        self._owed.keep(**notes)
        try:
            self._pay()
        except Enforcement as error:
            log.error("%s", error.message)

    def _ready(self, *, last_resort: bool = False) -> None:
        """Have the file open, and pay what it is owed: what was told must not be lost again."""
        self._store.ready(last_resort=last_resort)
        try:
            if self._owed:
                self._pay()
        except Enforcement:
            if not last_resort:
                raise

    def _pay(self) -> None:
        self._store.ready()
        if self._salvaged is not None:
            # It could be read, and not opened, at the start: was that all of it?
            whole = self._store.count() == self._salvaged
            self._salvaged = None
            if whole and self.rebuilt is not None:
                self.rebuilt = msgspec.structs.replace(self.rebuilt, whole=True)
                self._owed.keep(rebuilt=_encode(self.rebuilt).decode())
        self._owed.pay(self._store)

    # ---- writing ----------------------------------------------------------------------------

    @property
    def fault(self) -> str:
        """Why nothing can be written now; "" while it can."""
        return self._store.fault

    def commit(self, event: Event) -> Binding | None:
        """Write an event and wait until it is on disk, then take it into the book.

        Raises Enforcement, with nothing changed, where it cannot be written, or where there would
        be no space left for a release; InvalidTransition where it cannot follow.
        """
        occurred = self._fold.now(event)
        self._store.refuse_grants()
        self._write(occurred)
        return self._fold.take(occurred)

    def record(self, event: BindingEvent) -> bool:
        """Take an event that gives something back; say whether it is on disk.

        It stands also where it cannot be written: it is written with the next event that can be.
        Nobody gets what it gave back before that, for a grant is such an event.
        """
        occurred = self._fold.now(event)
        try:
            self._write(occurred, last_resort=True)
        except Enforcement:
            self._fold.take(occurred)
            self._notes.append(occurred)
            self._unrecorded.add((event.job, event.attempt))
            return False
        self._fold.take(occurred)
        return True

    def recorded(self, job: str, attempt: str | None = None) -> bool:
        """Say whether all that a job gave back is on disk; try to write it, where it is not."""
        if self._unrecorded or self.newer:
            with contextlib.suppress(Enforcement):
                self.flush()
        if self.newer:  # it may have jobs that are not known here
            return False
        return not any(key[0] == job and attempt in (None, key[1]) for key in self._unrecorded)

    def note(self, event: Event) -> Binding | None:
        """Take an event into the book now, and write it with the next commit or flush.

        Raises InvalidTransition where it cannot follow.
        """
        occurred = self._fold.now(event)
        after = self._fold.take(occurred)
        self._notes.append(occurred)
        if len(self._notes) % NOTES_LIMIT == 0:
            try:
                self.flush()
            except Enforcement as error:
                log.error("%s", error.message)
        return after

    def flush(self) -> None:
        """Write what is waiting. Raises Enforcement, and keeps it, if that fails."""
        if self._notes:
            self._write(last_resort=bool(self._unrecorded))
        if self._owed:
            self._pay()

    @property
    def waits(self) -> int:
        """How much waits to be written."""
        return len(self._notes) + bool(self._owed)

    def check(self) -> str:
        """Try whether a grant could be recorded now; say why not, or nothing."""
        try:
            self._store.refuse_grants()
            self.flush()
            self._store.ready()
            self._store.keep(checked=str(self._clock()))
        except Enforcement as error:
            return error.message
        return ""

    def _write(self, *events: Occurred, last_resort: bool = False) -> None:
        self._ready(last_resort=last_resort)
        together = [*self._notes, *events]
        if not together:
            return
        rows = [self._fold.written(occurred) for occurred in together]
        last = self._store.append(rows, last_resort=last_resort)
        self._notes.clear()
        self._unrecorded.clear()
        self.written += len(rows)
        for seq, occurred in enumerate(together, last - len(rows) + 1):
            self._fold.belongs(occurred.event, seq)
        self.on_write()

    def _write_anew(self) -> None:
        """Write all that is known into a new file, in the place of one that was lost."""
        events = self._fold.again()
        rows = [self._fold.written_again(event) for event in events]
        notes = {"doubted": "1"} if self.doubted else {}
        if self.rebuilt is not None:
            notes["rebuilt"] = _encode(self.rebuilt).decode()
        self._store.write_anew(rows, self._owed.hardware, **notes)
        self._fold.renumber(events)
        self._salvaged, self.newer = None, False
        self._owed.paid()
        self._notes.clear()  # the book has them
        self._unrecorded.clear()

    # ---- what else is remembered ------------------------------------------------------------

    def hardware(self) -> tuple[Mapping[str, Seen], int]:
        """Give what was remembered of the instances, and the N of the last generation."""
        return self._owed.hardware

    def remember(self, seen: Mapping[str, Seen], number: int) -> None:
        """Keep them, durably: a generation that was told to somebody must not be told again.

        Raises Enforcement where they cannot be written now; `flush` tries again.
        """
        self.owe(seen, number)
        self._pay()

    def owe(self, seen: Mapping[str, Seen], number: int) -> None:
        """Keep them as soon as anything can be written; they are told already."""
        self._owed.tell((seen, number))

    def unused_number(self) -> int:
        """Give an N that nobody was told, for what cannot be recorded, or was lost."""
        return max(self._owed.hardware[1], self._fresh_number())

    def ended(self, key: Key, up: float) -> bool:
        """Say whether a binding whose content was decided at `up` of this boot ended after that."""
        moment = self._fold.finished.get(key)
        return moment is not None and self._fold.elapsed.moment(self.boot, up) <= moment

    def elapsed(self) -> float:
        """Give the moment that it is, on the clock by which attempts are aged (see Elapsed)."""
        return self._fold.elapsed.now()

    # ---- upkeep -----------------------------------------------------------------------------

    def prune(self, before: float, most: int = 500) -> int:
        """Delete the events of bindings that ended before a moment; give how many events went.

        The moment is one of `elapsed`. At most about `most` go at once, so that a call stays in the
        milliseconds.
        """
        self._fold.book.forget(before)
        gone, rows = self._fold.old(before, most)
        if rows:
            self._store.ready()
            self._store.delete(rows)
            self._fold.drop(gone)
        return len(rows)

    def look(self) -> str:
        """Say what is wrong with the file, which is written anew next. For a thread of its own."""
        return self._store.look()

    def checkpoint(self) -> None:
        """Fold the write-ahead log into the database. For a thread of its own: it syncs twice."""
        self._store.checkpoint()
        self.written = 0

    def close(self) -> None:
        """Write what waits and close."""
        try:
            self.flush()
        finally:
            self._store.close()
