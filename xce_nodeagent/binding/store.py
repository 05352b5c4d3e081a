"""The store: the ledger's file through everything that a disk may do to it.

A disk may be full, read-only, failing, or not there at all, and may be well again later: nobody has
to restart the agent for that. Memory has the whole truth meanwhile, and writes it anew where the
file was lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from xce_nodeagent.binding import aside
from xce_nodeagent.binding.database import Damaged, Database, Full
from xce_nodeagent.binding.fold import Written
from xce_nodeagent.binding.reserve import Reserve
from xce_nodeagent.errors import Enforcement
from xce_nodeagent.host.durable import sync_file, sync_folder
from xce_nodeagent.model.inventory import Seen

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""How soon a file that could not be used is tried again: it may take long to find that out."""

T = TypeVar("T")


class Store:
    """Writes events, or says why not: `fault`, which is empty while all is well.

    `write_anew` calls the method of that name with all that is to be known.
    """

    def __init__(
        self,
        path: Path,
        *,
        log_bytes: int,
        reserve_bytes: int,
        clock: Callable[[], float],
        uptime: Callable[[], float],
        write_anew: Callable[[], None],
    ) -> None:
        self.path = path
        self.fault = ""
        self.db: Database | None = None
        self._reserve = Reserve(path.with_name("ledger.reserve"), reserve_bytes)
        self._log_bytes = log_bytes
        self._clock = clock
        self._uptime = uptime
        self._write_anew = write_anew
        self._last = 0
        self._suspect = False
        self._tried = float("-inf")
        self._new = path.with_name(f"{path.name}.new")

    def open(self) -> Database:
        """Open the file. Raises Damaged, BadConfig, TooNew, and Enforcement."""
        if os.path.exists(self._new) and not os.path.lexists(self.path):
            # The power went between two names: this one was complete before the other went.
            try:
                if any(os.path.lexists(f"{self.path}{end}") for end in ("-wal", "-shm")):
                    # The other's log: it would be taken for this one's.
                    aside.move(self.path, self._clock())
                os.rename(self._new, self.path)
            except OSError as error:
                raise Enforcement(
                    f"ledger {self.path}: {self._new} cannot take its place: {error.strerror}; no"
                    " new grants until it can: check the disk's space and the folder's owner",
                    path=str(self.path),
                ) from None
            sync_folder(self.path)
        self._drop_new()
        self.db = Database(self.path, self._log_bytes)
        self._last = self.db.last()
        return self.db

    def leave(self) -> None:
        """Close a file that is damaged, and leave it as it is."""
        if self.db is not None:
            self.db.abandon()
            self.db = None

    def failed(self, error: Enforcement, last: int = -1) -> None:
        """Go on without the file, up to whose event `last` all is in memory."""
        self.fault = error.message
        self._last = last
        self._tried = self._uptime()

    # ---- writing ----------------------------------------------------------------------------

    def refuse_grants(self) -> None:
        """Raise Enforcement where the space in reserve cannot be had: releases come first."""
        if why := self._reserve.take():
            self.fault = (
                f"ledger {self.path}: {why}: 1 MiB beside it is kept in reserve for releases, and"
                " cannot be had now; no new grants until it can: make space on this disk"
            )
            raise Enforcement(self.fault, path=str(self.path))

    def ready(self, *, last_resort: bool = False) -> None:
        """Have the file open, and be the one that we know; raise Enforcement.

        What is in memory may have been written with that. `last_resort`: with the space that is
        kept in reserve, where there is no other.
        """
        if self.db is None or self._suspect or not self.db.stands():
            self._try(self._get_back, last_resort=last_resort)

    def append(self, rows: Sequence[Written], *, last_resort: bool = False) -> int:
        """Write events durably to a file that is ready; give the number of the last."""
        self._last = self._write(lambda db: db.append(rows), last_resort=last_resort)
        return self._last

    def count(self) -> int:
        """Give how many events a file that is ready has."""
        return self._try(lambda: self._guarded(lambda db: db.count()), last_resort=False)

    def delete(self, rows: Sequence[int]) -> None:
        """Delete events."""
        self._write(lambda db: db.delete(rows))
        self._last = self._write(lambda db: db.last())

    def remember(self, seen: Mapping[str, Seen], number: int) -> None:
        """Keep what is known of the hardware, and these only, durably."""
        self._write(lambda db: db.remember(seen, number))

    def keep(self, **notes: str) -> None:
        """Keep notes, durably."""
        self._write(lambda db: db.keep(**notes))

    def _write(self, act: Callable[[Database], T], *, last_resort: bool = False) -> T:
        done = self._try(lambda: self._guarded(act), last_resort=last_resort)
        if self.fault:
            log.warning("ledger %s can be written again", self.path)
            self.fault = ""
        return done

    def _try(self, act: Callable[[], T], *, last_resort: bool) -> T:
        try:
            try:
                return act()
            except Full:
                if not last_resort or not self._reserve.give_up():
                    raise
                log.warning("the disk of %s is full: the reserve is given up", self.path)
                self._tried = float("-inf")
                return act()
        except Enforcement as error:
            if not self.fault:
                log.error("%s", error.message)
            self.fault = error.message
            raise

    def _guarded(self, act: Callable[[Database], T]) -> T:
        assert self.db is not None  # noqa: S101  # `ready` was called
        try:
            return act(self.db)
        except Full:
            raise
        except Enforcement:
            self._suspect = True
            raise
        except Damaged as damage:
            self._suspect = True
            raise Enforcement(
                f"ledger {self.path} is damaged: {damage}; the next try writes it anew from memory",
                path=str(self.path),
            ) from None

    def checkpoint(self) -> None:
        """Fold the log in; see Database.checkpoint."""
        if self.db is not None and not self._suspect and self.db.stands():
            try:
                self.db.checkpoint()
            except Damaged as damage:
                self._suspect = True
                raise Enforcement(
                    f"ledger {self.path} is damaged: {damage}; the next event writes it anew from"
                    " memory",
                    path=str(self.path),
                ) from None

    def look(self) -> str:
        """Say what is wrong with the file; one that is damaged is written anew by `ready`."""
        if self.db is None or self._suspect:
            return ""  # it is known, and being got back
        try:
            if not self.db.stands():
                return f"ledger {self.path} is not the file any more that was opened"
            self.db.look()
        except Damaged as damage:
            self._suspect = True
            log.error("ledger %s is damaged: %s", self.path, damage)
            return f"ledger {self.path} is damaged: {damage}"
        except Enforcement as error:
            return error.message
        return ""

    def close(self) -> None:
        """Close; a file that is in doubt stays as it is."""
        if self.db is not None:
            if self._suspect or not self.db.stands():
                self.db.abandon()
            else:
                self.db.close()
            self.db = None

    # ---- getting it back --------------------------------------------------------------------

    def _get_back(self) -> None:
        """Open the file again, or have it written anew where it is lost."""
        now = self._uptime()
        if self.fault and now - self._tried < RETRY_SECONDS:
            raise Enforcement(self.fault, path=str(self.path))
        self._tried = now
        self.leave()
        try:
            db = Database(self.path, self._log_bytes) if os.path.exists(self.path) else None
            if db is not None and db.last() != self._last:
                # A commit that failed may be on the disk for all that; whoever asked was told no.
                db.abandon()
                db = None
        except Damaged as damage:
            log.error("ledger %s is damaged: %s", self.path, damage)
            db = None
        if db is None:
            self._write_anew()
            log.warning("ledger %s is written anew from memory", self.path)
        else:
            self.db, self._suspect = db, False

    def write_anew(
        self,
        rows: Sequence[Written],
        hardware: tuple[Mapping[str, Seen], int] | None,
        **notes: str,
    ) -> str:
        """Put a new file in the place of what is there, which is moved aside; give where that is.

        Whatever happens meanwhile, there is the whole old one or the whole new one.
        """
        try:
            self._drop_new()
            db = Database(self._new, 0)
            try:
                if rows:
                    db.append(rows)
                if hardware is not None:
                    db.remember(*hardware)
                if notes:
                    db.keep(**notes)
            finally:
                db.close()
            sync_file(self._new)
            moved = ""
            if any(os.path.lexists(f"{self.path}{end}") for end in ("", "-wal")):
                moved = str(aside.move(self.path, self._clock()))
            os.rename(self._new, self.path)
            sync_folder(self.path)
        except OSError as error:
            self._drop_new()
            raise Enforcement(
                f"ledger {self.path} cannot be written anew: {error.strerror}; no new grants until"
                " it can: check the disk's space and the folder's owner",
                path=str(self.path),
            ) from None
        except Damaged as damage:
            raise Enforcement(f"ledger {self._new}: {damage}", path=str(self._new)) from None
        except Enforcement:
            self._drop_new()
            raise
        self.db = Database(self.path, self._log_bytes)
        self._last, self._suspect = self.db.last(), False
        return moved

    def _drop_new(self) -> None:
        for end in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                os.unlink(f"{self._new}{end}")
