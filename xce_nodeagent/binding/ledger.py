"""The ledger: append-only events in SQLite, and the book that is their fold.

One row is one event: its JSON, the CRC of exactly these bytes, the time of day, the boot in which
it was written and the seconds since that boot (absent where an older agent wrote it). What
`commit` returns from is on disk (WAL, synchronous=FULL: SQLite syncs the log in every commit).
What `note` takes is written with the next commit, in the same transaction, or by `flush`: it costs
a job's path next to nothing. Losing a note loses nothing: an outcome that is missing makes the
replay repeat a step that can be repeated.

A row is never changed. Rows of bindings that ended longer ago than attempts are remembered are
deleted, off the job's path.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from xce_nodeagent.binding.book import Book
from xce_nodeagent.binding.elapsed import Elapsed
from xce_nodeagent.errors import Enforcement
from xce_nodeagent.model.binding import (
    Binding,
    Committed,
    Drained,
    Event,
    InvalidTransition,
    Key,
    Undrained,
)
from xce_nodeagent.model.inventory import Seen

VERSION = 1
CHECKPOINT_AFTER = 256
"""Events after which the write-ahead log is worth folding into the database when idle."""

NOTES_LIMIT = 1000
"""Notes that may wait; SQLite takes 32,766 values in a statement, and a note has five."""

LOG_BYTES = 16 << 20
"""The size that the write-ahead log has from the start. A log that grows costs every sync a second
write, of the file's new size: 216 µs instead of 122 for an event of 6 KB, measured."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY, time REAL NOT NULL, boot TEXT NOT NULL, crc INTEGER NOT NULL,
    body BLOB NOT NULL, up REAL
);
CREATE TABLE IF NOT EXISTS hardware (
    id TEXT PRIMARY KEY, hash TEXT NOT NULL, changed INTEGER NOT NULL
) WITHOUT ROWID;
"""

_decode = msgspec.json.Decoder(Event).decode
_encode = msgspec.json.Encoder().encode


class Ledger:
    """An open ledger. One process at a time: whoever runs an agent holds the runtime lock.

    `clock` is the time of day, in seconds, for people to read; `uptime` the seconds since the
    boot, by which attempts are aged, and is `clock` where none is given.
    """

    def __init__(
        self,
        path: Path,
        boot: str,
        clock: Callable[[], float],
        *,
        uptime: Callable[[], float] | None = None,
        log_bytes: int = LOG_BYTES,
    ) -> None:
        self._log_bytes = log_bytes
        self.path = path
        self.boot = boot
        self.book = Book()
        self.boots: dict[Key, str] = {}
        self.written = 0
        self.on_write: Callable[[], None] = lambda: None
        self._notes: list[tuple[float, float, Event]] = []
        self._clock = clock
        self._uptime = uptime or clock
        self._elapsed = Elapsed((), boot, self._uptime)
        self._rows: dict[Key, list[int]] = {}
        self._finished: dict[Key, float] = {}
        with _as_enforcement(path, "opened"):
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=True)
            try:
                self._open()
            except BaseException:
                self._db.close()
                raise

    def _open(self) -> None:
        execute = self._db.execute
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        # The log is folded in when idle (`checkpoint`), not in the middle of somebody's prepare.
        execute("PRAGMA wal_autocheckpoint=0")
        self._db.executescript(_SCHEMA)
        if self._log_bytes:
            self._grow_log()
        row = execute("SELECT value FROM meta WHERE key='version'").fetchone()
        if row is None:
            execute("INSERT INTO meta VALUES ('version', ?)", (str(VERSION),))
        elif row[0] != str(VERSION):
            raise Enforcement(
                f"ledger {self.path}: its format is version {row[0]}, this agent knows {VERSION};"
                " install the agent that wrote it, or release its jobs and move it aside"
            )
        if not execute("SELECT 1 FROM pragma_table_info('events') WHERE name='up'").fetchone():
            execute("ALTER TABLE events ADD COLUMN up REAL")
        boots = execute("SELECT boot, MAX(up) FROM events GROUP BY boot ORDER BY MIN(seq)")
        self._elapsed = Elapsed(boots.fetchall(), self.boot, self._uptime)
        for seq, time, boot, up, crc, body in execute(
            "SELECT seq, time, boot, up, crc, body FROM events ORDER BY seq"
        ):
            if zlib.crc32(body) != crc:
                raise Enforcement(
                    f"ledger {self.path}: event {seq} is damaged (its checksum differs);"
                    " end this node's jobs, then move the ledger aside"
                )
            try:
                event = _decode(body)
                moment = self._elapsed.moment(boot, up)
                self._fold(event, self.book.preview(event, time), moment)
            except (InvalidTransition, msgspec.MsgspecError) as error:
                raise Enforcement(
                    f"ledger {self.path}: event {seq} cannot be replayed: {error};"
                    " end this node's jobs, then move the ledger aside"
                ) from error
            self._take_row(event, seq)
            if isinstance(event, Committed):
                self.boots[event.job, event.attempt] = boot

    def _grow_log(self) -> None:
        """Give the log its size: a transaction too large for the cache spills into it, and goes.

        What is rolled back leaves nothing in the database; its frames in the log are overwritten.
        """
        execute = self._db.execute
        execute("PRAGMA cache_size=8")
        execute("BEGIN IMMEDIATE")
        execute("CREATE TABLE ballast (body BLOB)")
        execute("INSERT INTO ballast VALUES (zeroblob(?))", (self._log_bytes,))
        execute("ROLLBACK")
        execute("PRAGMA cache_size=-2000")  # SQLite's own default, in KiB
        log = os.open(f"{self.path}-wal", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(log)
        finally:
            os.close(log)

    def _take_row(self, event: Event, seq: int) -> None:
        if not isinstance(event, (Drained, Undrained)):
            self._rows.setdefault((event.job, event.attempt), []).append(seq)

    def _fold(self, event: Event, after: Binding | None, moment: float) -> Binding | None:
        self.book.take(event, after, moment)
        if after is not None and after.state == "ended":
            self._finished[after.key] = moment
            self.boots.pop(after.key, None)
        elif isinstance(event, Committed):
            self._finished.pop((event.job, event.attempt), None)
        return after

    def commit(self, event: Event) -> Binding | None:
        """Write an event and wait until it is on disk, then take it into the book.

        Raises Enforcement, with nothing changed, where it cannot be written; InvalidTransition
        where it cannot follow.
        """
        now, up = self._clock(), self._uptime()
        after = self.book.preview(event, now)
        self._write([*self._notes, (now, up, event)])
        if isinstance(event, Committed):
            self.boots[event.job, event.attempt] = self.boot
        return self._fold(event, after, self._elapsed.moment(self.boot, up))

    def note(self, event: Event) -> Binding | None:
        """Take an event into the book now, and write it with the next commit or flush.

        Raises InvalidTransition where it cannot follow.
        """
        now, up = self._clock(), self._uptime()
        moment = self._elapsed.moment(self.boot, up)
        after = self._fold(event, self.book.preview(event, now), moment)
        self._notes.append((now, up, event))
        if len(self._notes) >= NOTES_LIMIT:
            self.flush()
        return after

    def flush(self) -> None:
        """Write the notes that are waiting. Raises Enforcement, and keeps them, if that fails."""
        if self._notes:
            self._write(self._notes[:])

    def _write(self, events: list[tuple[float, float, Event]]) -> None:
        values: list[object] = []
        for time, up, event in events:
            body = _encode(event)
            values += (time, self.boot, zlib.crc32(body), body, up)
        with _as_enforcement(self.path, "written"):
            # One statement is one transaction, and spares two others on the way.
            rows = ",".join(["(?,?,?,?,?)"] * len(events))
            cursor = self._db.execute(
                f"INSERT INTO events (time, boot, crc, body, up) VALUES {rows}",  # noqa: S608  # only marks
                values,
            )
        last = cursor.lastrowid or 0
        self._notes.clear()
        self.written += len(events)
        for (_, _, event), seq in zip(events, range(last - len(events) + 1, last + 1), strict=True):
            self._take_row(event, seq)
        self.on_write()

    def hardware(self) -> tuple[dict[str, Seen], int]:
        """Give what was remembered of the instances, and the N of the last generation."""
        rows = self._db.execute("SELECT id, hash, changed FROM hardware").fetchall()
        number = self._db.execute("SELECT value FROM meta WHERE key='generation'").fetchone()
        seen = {instance: Seen(digest, changed) for instance, digest, changed in rows}
        return seen, int(number[0]) if number else 0

    def remember(self, seen: Mapping[str, Seen], number: int) -> None:
        """Keep them, durably: a generation that was told to somebody must not be told again."""
        with _as_enforcement(self.path, "written"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany(
                    "INSERT OR REPLACE INTO hardware VALUES (?, ?, ?)",
                    [(key, value.hash, value.changed) for key, value in seen.items()],
                )
                self._db.execute(
                    "INSERT OR REPLACE INTO meta VALUES ('generation', ?)", (str(number),)
                )
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise

    def elapsed(self) -> float:
        """Give the moment that it is, on the clock by which attempts are aged (see Elapsed)."""
        return self._elapsed.now()

    def prune(self, before: float, most: int = 500) -> int:
        """Delete the events of bindings that ended before a moment; give how many events went.

        The moment is one of `elapsed`. At most about `most` go at once, so that a call stays in the
        milliseconds.
        """
        self.book.forget(before)
        rows: list[int] = []
        gone: list[Key] = []
        for key, ended in self._finished.items():
            if ended < before and len(rows) < most:
                rows += self._rows.get(key, [])
                gone.append(key)
        if rows:
            with _as_enforcement(self.path, "pruned"):
                marks = ",".join("?" * len(rows))
                self._db.execute(f"DELETE FROM events WHERE seq IN ({marks})", rows)  # noqa: S608  # only marks
            for key in gone:
                del self._finished[key]
                del self._rows[key]
        return len(rows)

    def checkpoint(self) -> None:
        """Fold the write-ahead log into the database. For a thread of its own: it syncs twice.

        It uses a connection of its own, so a commit in the main thread does not wait for it.
        """
        with (
            _as_enforcement(self.path, "checkpointed"),
            contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as db,
        ):
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self.written = 0

    def close(self) -> None:
        """Write what waits and close; SQLite folds the log in when the last connection goes."""
        try:
            self.flush()
        finally:
            self._db.close()


@contextlib.contextmanager
def _as_enforcement(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise Enforcement(
            f"ledger {path} cannot be {what}: {error}; no new grants until it can:"
            " check the disk's space and the folder's owner",
            path=str(path),
        ) from error
