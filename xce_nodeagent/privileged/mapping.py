"""Which devices processes have in their memory, also when no descriptor of them is open any more.

A line of /proc/PID/maps has the file's inode, and not the number of the device behind it. That is
behind the link of the same range in map_files, which needs CAP_CHECKPOINT_RESTORE to be followed
(fs/proc/base.c, proc_map_files_get_link). The same files are mapped all over a host, so each is
followed once.

A process that maps a file of a daemon of its own can keep its memory map locked for ever, and with
it whoever reads it. So a thread reads, and one that is stuck is left behind, with that process.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Sequence

from xce_nodeagent.errors import exhausted

PATIENCE = 1.0
"""Seconds for the map of one process, which takes microseconds."""

STUCK_LIMIT = 16
"""Threads that are left behind. After that nobody's map is read, and all count as hidden."""

_POLL = 0.05
_LINE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ (\S+ [1-9][0-9]* .*)$", re.MULTILINE)

Number = tuple[str, int, int]
"""A device: its type, major and minor."""

Numbers = Callable[[str], Number | None]
"""Give the device that a path is, None for any other file; raise OSError."""


class Maps:
    """Reads maps for one witness. `numbers` looks at a file."""

    def __init__(self, proc: str, numbers: Numbers) -> None:
        self._proc = proc
        self._numbers = numbers
        self._stuck: dict[int, threading.Thread] = {}

    def look(
        self, pids: Sequence[int], wanted: Collection[Number], until: float
    ) -> tuple[dict[int, set[Number]], set[int]]:
        """Give what of the wanted each process has mapped, and whose map could not be read.

        `until` is of the monotonic clock: those that are not read by then are among the last.
        """
        self._stuck = {pid: one for pid, one in self._stuck.items() if one.is_alive()}
        found: dict[int, set[Number]] = {}
        hidden = set(pids) & self._stuck.keys()
        rest = [pid for pid in pids if pid not in self._stuck]
        known: dict[bytes, Number | None] = {}
        while rest:
            if len(self._stuck) >= STUCK_LIMIT or time.monotonic() >= until:
                return found, hidden | set(rest)
            reader = _Reader(self._proc, self._numbers, rest, frozenset(wanted), known)
            stuck = reader.run(until)
            found |= reader.found.copy()
            hidden |= reader.hidden
            if reader.want is not None:
                raise reader.want
            if stuck:
                self._stuck[rest[reader.place]] = reader.thread
                hidden.add(rest[reader.place])
                # The one that is left behind may wake up and write into what it has.
                known = dict(known)
            rest = rest[reader.place + 1 :]
        return found, hidden


class _Reader:
    """One thread, and how far it is."""

    def __init__(
        self,
        proc: str,
        numbers: Numbers,
        pids: Sequence[int],
        wanted: frozenset[Number],
        known: dict[bytes, Number | None],
    ) -> None:
        self._proc = proc
        self._numbers = numbers
        self._pids = pids
        self._wanted = wanted
        self._known = known
        self._left = False
        self.place = 0
        self.found: dict[int, set[Number]] = {}
        self.hidden: set[int] = set()
        self.want: OSError | None = None
        self.thread = threading.Thread(target=self._work, daemon=True, name="maps")

    def run(self, until: float) -> bool:
        """Read until all is read, it is stuck, or the time is over; True when it is stuck."""
        self.thread.start()
        place, since = 0, time.monotonic()
        while True:
            self.thread.join(_POLL)
            if not self.thread.is_alive():
                return False
            now = time.monotonic()
            if self.place != place:
                place, since = self.place, now
            if now - since >= PATIENCE or now >= until:
                self._left = True
                return True

    def _work(self) -> None:
        for place, pid in enumerate(self._pids):
            if self._left:
                return
            self.place = place
            try:
                numbers = self._one(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except OSError as error:
                if exhausted(error):
                    self.want = error
                    return
                self.hidden.add(pid)
                continue
            if numbers and not self._left:
                self.found[pid] = numbers

    def _one(self, pid: int) -> set[Number]:
        about = f"{self._proc}/{pid}"
        text = _read(f"{about}/maps")
        if not text:  # a thread of the kernel; or the first thread has ended, and others have not
            for thread in os.listdir(f"{about}/task"):
                if int(thread) != pid and (text := _read(f"{about}/task/{thread}/maps")):
                    about = f"{about}/task/{thread}"
                    break
        found: set[Number] = set()
        for start, end, file in _LINE.findall(text):
            if file not in self._known:
                try:
                    # The names of map_files have no leading zeros.
                    number = self._numbers(f"{about}/map_files/{int(start, 16):x}-{int(end, 16):x}")
                except FileNotFoundError:
                    continue  # it was unmapped meanwhile
                except PermissionError:
                    number = self._by_name(file)
                self._known[file] = number
            number = self._known[file]
            if number in self._wanted and number is not None:
                found.add(number)
        return found

    def _by_name(self, file: bytes) -> Number | None:
        """Without the capability: believe the name, where it is one of a device."""
        name = file.split(b" ", 2)[2].strip()
        if not name.startswith(b"/dev/"):
            return None
        try:
            return self._numbers(os.fsdecode(name))
        except OSError as error:
            if exhausted(error):
                raise
            return None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
