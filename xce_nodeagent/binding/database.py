"""The ledger's file: SQLite in WAL mode, rows that are never changed, and what else is remembered.

It knows nothing of bindings. A file that is not whole is `Damaged`; one that cannot be used now,
though it may be whole, is `Enforcement`, and `TooNew` (version.py) where a later version wrote it;
one that somebody else owns is `BadConfig`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xce_nodeagent.binding import salvage, version
from xce_nodeagent.binding.salvage import Row
from xce_nodeagent.binding.version import VERSION
from xce_nodeagent.errors import BadConfig, Enforcement
from xce_nodeagent.host.durable import sync_file, sync_folder
from xce_nodeagent.model.inventory import Seen

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY, time REAL NOT NULL, boot TEXT NOT NULL, crc INTEGER NOT NULL,
    body BLOB NOT NULL, up REAL
);
CREATE TABLE IF NOT EXISTS hardware (
    id TEXT PRIMARY KEY, hash TEXT NOT NULL, changed INTEGER NOT NULL
) WITHOUT ROWID;
"""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_ROWS = 5000
"""Rows of one statement: SQLite takes 32,766 values in one, and a row has six."""


class Damaged(Exception):
    """The file is there, and is not a whole ledger; the text says why."""


class Full(Enforcement):
    """There is no space on the disk for it; the file is as it was."""


class Database:
    """An open file, made where it is missing. `log_bytes` is the size of its log from the start."""

    def __init__(self, path: Path, log_bytes: int) -> None:
        self.path = path
        self._log_bytes = log_bytes
        self._names = (str(path), f"{path}-wal")
        _take_log_back(path)
        _check(path)
        version.look(path)
        log = salvage.log_of(path)
        with _told(path, "opened"):
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=True)
        try:
            with _told(path, "opened"):
                self._open(log)
        except BaseException:
            self.abandon()
            raise
        self._files = self._identity()

    def _open(self, log: bytes) -> None:
        execute = self._db.execute
        tables = {name for (name,) in execute("SELECT name FROM sqlite_master WHERE type='table'")}
        if tables and not {"meta", "events"} <= tables:
            raise Damaged(f"it has the tables {', '.join(sorted(tables))}, which are no ledger's")
        if not tables and salvage.behind(log, 0):
            raise Damaged("its log is damaged at the start")
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=FULL")
        # The log is folded in when idle (`checkpoint`), not in the middle of somebody's prepare.
        execute("PRAGMA wal_autocheckpoint=0")
        if tables:
            self._check_whole(log)
        else:
            said = f"INSERT INTO meta VALUES ('version', '{VERSION}');"  # noqa: S608  # a number of ours
            self._db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} {said} COMMIT;")
            # The folder may be as new as the file.
            sync_folder(self.path.parent)
        if self._log_bytes and _size(f"{self.path}-wal") < self._log_bytes:
            self._grow_log()
        # SQLite syncs the folder of a log that it makes with fdatasync(2), which need not write
        # names, and not at all where it was built with SQLITE_DISABLE_DIRSYNC.
        sync_folder(self.path)

    def _check_whole(self, log: bytes) -> None:
        execute = self._db.execute
        row = execute("SELECT value FROM meta WHERE key='version'").fetchone()
        if row is None or not str(row[0]).isdecimal():
            raise Damaged("it does not say its version")
        version.check(self.path, int(row[0]))
        # Frames of the log behind a damaged one are passed over by SQLite, without a word.
        _, frames, _ = execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        _quick_check(self._db)
        last = execute("SELECT MAX(seq) FROM events").fetchone()[0] or 0
        if any(row.seq > last for row in salvage.behind(log, max(frames, 0))):
            raise Damaged("its log is damaged in the middle")
        if not execute("SELECT 1 FROM pragma_table_info('events') WHERE name='up'").fetchone():
            execute("ALTER TABLE events ADD COLUMN up REAL")
        self._db.executescript(SCHEMA)
        if row[0] != str(VERSION):
            execute("UPDATE meta SET value=? WHERE key='version'", (str(VERSION),))

    def _grow_log(self) -> None:
        """Give the log its size: a transaction too large for the cache spills into it, and goes.

        What is rolled back leaves nothing in the database; its frames in the log are overwritten.
        """
        execute = self._db.execute
        execute("PRAGMA cache_size=8")
        execute("BEGIN IMMEDIATE")
        try:
            execute("CREATE TABLE ballast (body BLOB)")
            execute("INSERT INTO ballast VALUES (zeroblob(?))", (self._log_bytes,))
        except sqlite3.Error as error:
            # It is for speed only; what is on a full disk already may well be enough.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_FULL:
                raise
        finally:
            if self._db.in_transaction:
                execute("ROLLBACK")
        execute("PRAGMA cache_size=-2000")  # SQLite's own default, in KiB
        sync_file(f"{self.path}-wal")

    # ---- events -----------------------------------------------------------------------------

    def boots(self) -> list[tuple[str, float | None]]:
        """Give the boots that have events, in their order, each with the `up` of its last one."""
        with _told(self.path, "read"):
            return self._db.execute(
                "SELECT boot, MAX(up) FROM events GROUP BY boot ORDER BY MIN(seq)"
            ).fetchall()

    def rows(self) -> Iterator[Row]:
        """Read all events in their order, each checked; raise Damaged at the first that is not."""
        with _told(self.path, "read"):
            for row in self._db.execute(
                "SELECT seq, time, boot, up, crc, body FROM events ORDER BY seq"
            ):
                if not isinstance(row[5], bytes) or zlib.crc32(row[5]) != row[4]:
                    raise Damaged(f"event {row[0]}: its checksum differs")
                yield Row(*row)

    def append(self, rows: Sequence[tuple[float, str, float | None, bytes]]) -> int:
        """Write events (time, boot, up, body) in one transaction; give the number of the last."""
        with _told(self.path, "written"):
            if len(rows) <= _ROWS:
                return self._append(rows)
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for start in range(0, len(rows), _ROWS):
                    last = self._append(rows[start : start + _ROWS])
                self._db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            return last

    def _append(self, rows: Sequence[tuple[float, str, float | None, bytes]]) -> int:
        # One statement is one transaction, and spares two others on the way.
        values: list[object] = []
        for time, boot, up, body in rows:
            values += (time, boot, zlib.crc32(body), body, up)
        marks = ",".join(["(?,?,?,?,?)"] * len(rows))
        cursor = self._db.execute(
            f"INSERT INTO events (time, boot, crc, body, up) VALUES {marks}",  # noqa: S608  # only marks
            values,
        )
        return cursor.lastrowid or 0

    def delete(self, rows: Sequence[int]) -> None:
        """Delete events."""
        with _told(self.path, "pruned"):
            marks = ",".join("?" * len(rows))
            self._db.execute(f"DELETE FROM events WHERE seq IN ({marks})", rows)  # noqa: S608  # only marks

    def last(self) -> int:
        """Give the number of the last event; 0 without one."""
        with _told(self.path, "read"):
            return self._db.execute("SELECT MAX(seq) FROM events").fetchone()[0] or 0

    def count(self) -> int:
        """Give how many events there are."""
        with _told(self.path, "read"):
            return int(self._db.execute("SELECT COUNT(*) FROM events").fetchone()[0])

    # ---- what else is remembered ------------------------------------------------------------

    def hardware(self) -> tuple[dict[str, Seen], int | None]:
        """Give what was remembered of the instances, and the N of the last generation."""
        with _told(self.path, "read"):
            rows = self._db.execute("SELECT id, hash, changed FROM hardware").fetchall()
        number = self.note("generation")
        seen = {instance: Seen(digest, changed) for instance, digest, changed in rows}
        return seen, int(number) if number and number.isdecimal() else None

    def remember(self, seen: Mapping[str, Seen], number: int) -> None:
        """Keep these, and no others, durably."""
        self._all(
            ("DELETE FROM hardware", [()]),
            (
                "INSERT INTO hardware VALUES (?, ?, ?)",
                [(key, value.hash, value.changed) for key, value in seen.items()],
            ),
            ("INSERT OR REPLACE INTO meta VALUES ('generation', ?)", [(str(number),)]),
        )

    def note(self, key: str) -> str:
        """Give a note that was kept; "" where there is none."""
        with _told(self.path, "read"):
            row = self._db.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return str(row[0]) if row else ""

    def keep(self, **notes: str) -> None:
        """Keep notes, durably."""
        self._all(("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(notes.items())))

    def _all(self, *statements: tuple[str, Iterable[Sequence[Any]]]) -> None:
        with _told(self.path, "written"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for statement, values in statements:
                    self._db.executemany(statement, values)
                self._db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        # SQLite has rolled back by itself after some errors: a full disk, a failed read.
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    # ---- the file ---------------------------------------------------------------------------

    def stands(self) -> bool:
        """Say whether the files are still those that were opened: nobody is told that they went."""
        return self._identity() == self._files

    def _identity(self) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        return _inode(self._names[0]), _inode(self._names[1])

    def checkpoint(self) -> None:
        """Fold the write-ahead log into the database. For a thread of its own: it syncs twice.

        It uses a connection of its own, so a commit in the main thread does not wait for it.
        """
        with (
            _told(self.path, "checkpointed"),
            contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as db,
        ):
            # While memory has the whole truth: at the next start it may be too late.
            _quick_check(db)
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def look(self) -> None:
        """Raise Damaged where it is not whole. For a thread of its own: it reads all of it."""
        with (
            _told(self.path, "looked at"),
            contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as db,
        ):
            _quick_check(db)

    def close(self) -> None:
        """Close; SQLite folds the log in when the last connection goes."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def abandon(self) -> None:
        """Close a file that is in doubt, and leave its log, which SQLite would delete."""
        with contextlib.suppress(OSError):
            os.unlink(_kept(self.path))
        with contextlib.suppress(OSError):
            os.link(f"{self.path}-wal", _kept(self.path))
            # Else the disk may have that the one name went, and not that the other came.
            sync_folder(self.path)
        self.close()
        _take_log_back(self.path)


def _kept(path: Path) -> str:
    return f"{path}-wal.kept"


def _take_log_back(path: Path) -> None:
    """Give a log that was kept its name again, also after an `abandon` that was cut short."""
    with contextlib.suppress(OSError):
        if os.path.exists(f"{path}-wal"):
            os.unlink(_kept(path))
        else:
            os.rename(_kept(path), f"{path}-wal")


def _quick_check(db: sqlite3.Connection) -> None:
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise Damaged(" ".join(str(found).split()))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check(path: Path) -> None:
    """Look at the file before SQLite does, which takes much for a new database."""
    try:
        found = path.stat()
    except FileNotFoundError:
        found = None
    except OSError as error:
        raise _unusable(path, error) from None
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise Damaged("it is not a file")
    if (found is None or not found.st_size) and _size(f"{path}-wal"):
        raise Damaged("the database is gone, and its log is still there")
    if found is not None:
        for name in (str(path), f"{path}-wal", f"{path}-shm"):
            with contextlib.suppress(FileNotFoundError):
                try:
                    os.close(os.open(name, os.O_RDWR | os.O_CLOEXEC))
                except IsADirectoryError:
                    raise Damaged(f"{name} is a folder") from None
                except FileNotFoundError:
                    raise
                except OSError as error:
                    raise _unusable(Path(name), error) from None


def _unusable(path: Path, error: OSError) -> BadConfig | Enforcement:
    if error.errno in (errno.EACCES, errno.EPERM):
        return BadConfig(
            f"ledger {path}: {error.strerror}: the agent, as uid {os.geteuid()}, must be able to"
            f" read and write it: give the file back to that user: chown {os.geteuid()} {path}"
        )
    return _cannot(path, "opened", error.strerror or str(error))


def _cannot(
    path: Path, what: str, why: object, kind: type[Enforcement] = Enforcement
) -> Enforcement:
    return kind(
        f"ledger {path} cannot be {what}: {why}; no new grants until it can:"
        " check the disk's space and the folder's owner",
        path=str(path),
    )


@contextlib.contextmanager
def _told(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        # An error in our own statement is that of a schema which is not ours.
        if code & 0xFF in _DAMAGE or code == sqlite3.SQLITE_ERROR:
            raise Damaged(str(error)) from error
        kind = Full if code & 0xFF == sqlite3.SQLITE_FULL else Enforcement
        raise _cannot(path, what, error, kind) from error
    except OSError as error:
        kind = Full if error.errno in (errno.ENOSPC, errno.EDQUOT) else Enforcement
        raise _cannot(path, what, error.strerror, kind) from error
    except OverflowError as error:  # a text that is too long for SQLite is no text of ours
        raise Damaged(str(error)) from error
