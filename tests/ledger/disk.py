"""What a disk surely has after a cut of the power, and what it may have, from a program's record.

`disk_record.c` writes the record. What is promised by fsync(2), and no more:

- a file's content is on the disk as it was at its last fsync or fdatasync; of what was written
  since, nothing may be there, or all of it, or anything between;
- a name is on the disk when its folder was synced by fsync. fdatasync need not write a folder's
  names, and SQLite, which calls that, may be built without it (SQLITE_DISABLE_DIRSYNC);
- of the changes of names since then each may be there or not, whatever their order was: ext4 and
  XFS keep the order, Btrfs does so only for the file that is synced.

The index of the log, `-shm`, is written through a mapping and made anew at each start: it is left
out everywhere.
"""

from __future__ import annotations

import itertools
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agent.running import Running

_HEAD = struct.Struct("=4sIIIQq")
_SOURCE = Path(__file__).with_name("disk_record.c")


def built(folder: Path) -> Path:
    """Compile the recorder; give the library that is to be loaded first."""
    library = folder / "disk_record.so"
    subprocess.run(
        ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC",
         "-o", library, _SOURCE, "-ldl", "-lpthread"],
        check=True,
    )  # fmt: skip
    return library


class Done(NamedTuple):
    """One thing that was done: see the kinds in disk_record.c."""

    kind: str
    inode: int
    at: int
    first: bytes
    second: bytes


class File:
    """A file: what is on the disk, and what was written since, in its order."""

    def __init__(self, content: bytes = b"") -> None:
        self.synced = bytearray(content)
        self.synced_times = 0
        self.unsynced: list[tuple[int, bytes | None]] = []

    def sync(self) -> None:
        for at, data in self.unsynced:
            _apply(self.synced, at, data)
        self.synced_times += bool(self.unsynced)
        self.unsynced.clear()

    def written(self) -> bytearray:
        content = bytearray(self.synced)
        for at, data in self.unsynced:
            _apply(content, at, data)
        return content


def _apply(content: bytearray, at: int, data: bytes | None) -> None:
    """Write data at a place; without data the file ends there."""
    end = at + len(data or b"")
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if data is None:
        del content[at:]
    else:
        content[at:end] = data


class Change(NamedTuple):
    """A change of names: a file has `new` now, and nothing is called `old` any more."""

    file: File
    old: str
    new: str


Names = dict[str, File]


def _change(names: Names, change: Change) -> None:
    if change.old and names.get(change.old) is change.file:
        del names[change.old]
    if change.new:
        names[change.new] = change.file


def _counts(name: str, start: str) -> bool:
    return name.startswith(start) and not name.endswith("-shm")


class Disk:
    """The disk below one folder, as far as it was recorded: `take` what was done."""

    def __init__(self, folder: Path | None = None) -> None:
        """Begin with a folder whose content is on the disk; without one, before there was any."""
        self.stands = folder is not None
        files = [path for path in folder.iterdir() if path.is_file()] if folder else []
        self._inodes = {path.stat().st_ino: File(path.read_bytes()) for path in files}
        self.now: Names = {path.name: self._inodes[path.stat().st_ino] for path in files}
        self.sure: Names = dict(self.now)
        self.changes: list[Change] = []
        self._given: set[frozenset[tuple[str, File, int]]] = set()

    def take(self, done: Done) -> None:
        one, two = done.first.decode("utf-8", "replace"), done.second.decode()
        match done.kind:
            case "c":
                self._inodes[done.inode] = File()
                self._changed(Change(self._inodes[done.inode], "", one))
            case "t":
                self._inodes[done.inode].unsynced.append((done.at, None))
            case "w":
                self._inodes[done.inode].unsynced.append((done.at, done.first))
            case "s":
                self._inodes[done.inode].sync()
            case "r":
                self._changed(Change(self.now[one], one, two))
            case "l":
                self._changed(Change(self.now[one], "", two))
            case "u":
                self._changed(Change(self.now[one], one, ""))
            case "f":
                self.sure = dict(self.now)
                self.changes.clear()
            case "F":
                self.stands = True
            case "m" if not one:
                self.stands = False
            case "a" | "d":
                pass
            case _:
                raise AssertionError(f"not known here: {done.kind} {one!r}")

    def _changed(self, change: Change) -> None:
        _change(self.now, change)
        self.changes.append(change)

    def possible(self, start: str) -> Iterator[Names]:
        """Give what a cut may leave of the files whose names start so; each way once in all."""
        changes = [one for one in self.changes if _counts(one.old or one.new, start)]
        for count in range(len(changes) + 1):
            for some in itertools.combinations(changes, count):
                names = {name: file for name, file in self.sure.items() if _counts(name, start)}
                for change in some:
                    _change(names, change)
                way = frozenset((name, file, file.synced_times) for name, file in names.items())
                if way not in self._given:
                    self._given.add(way)
                    yield names

    def lay(self, names: Names, folder: Path) -> None:
        """Make a folder as the disk has it: of each file what was synced."""
        for path in folder.iterdir():
            path.unlink()
        for name, file in names.items() if self.stands else ():
            if not name.endswith("-shm"):
                (folder / name).write_bytes(file.synced)

    def lacks(self, folder: Path) -> list[str]:
        """Name the files of a folder that differ from what was recorded of them."""
        there = {path.name for path in folder.iterdir()} | self.now.keys()
        return sorted(
            name
            for name in there
            if not name.endswith("-shm")
            and (
                name not in self.now
                or not (folder / name).exists()
                or (folder / name).read_bytes() != self.now[name].written()
            )
        )


class Answer(NamedTuple):
    """An answer, and how much was written to the ledger's log before it and not synced yet."""

    data: bytes
    unsynced: int


class Recorded(Running):
    """An agent whose disk is recorded from its first start; `library` is what `built` gave.

    `shadow` is an empty folder of the test's, for what the disk has after a cut.
    """

    def __init__(self, library: Path, shadow: Path, *places: Path) -> None:
        super().__init__(*places)
        folder = self.folder
        self.state = folder / "state"
        self.record = folder / "record"
        self.record.touch()
        self.record.chmod(0o666)  # the agent is another user
        self.disk = Disk()
        self.shadow = shadow
        self.answers: list[Answer] = []
        self._read = 0
        shared = folder / library.name  # where the agent's user may read it
        shared.write_bytes(library.read_bytes())
        shared.chmod(0o755)
        self.env |= {
            "LD_PRELOAD": str(shared),
            "DISK_FOLDER": str(self.state),
            "DISK_SOCKET": str(self.socket),
            "DISK_RECORD": str(self.record),
        }

    def done(self) -> Iterator[Done]:
        """Give what was done since this was asked last, each when the disk has taken it."""
        with self.record.open("rb") as file:
            file.seek(self._read)
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                kind, first, second, _, inode, at = _HEAD.unpack(head)
                one, two = file.read(first), file.read(second)
                if len(one) + len(two) < first + second:
                    return  # being written just now
                self._read = file.tell()
                done = Done(kind[:1].decode(), inode, at, one, two)
                self.disk.take(done)
                if done.kind == "a":
                    log = self.disk.now["ledger.db-wal"]
                    self.answers.append(Answer(done.first, len(log.unsynced)))
                yield done

    def cut(self) -> Path:
        """Cut the power now: give a folder with what the disk surely has, and nothing else."""
        for _ in self.done():
            pass
        self.disk.lay(self.disk.sure, self.shadow)
        return self.shadow

    def put_back(self) -> None:
        """Give an agent that has ended what its disk surely has, in the place of what it wrote."""
        owner = self.state.stat()
        self.cut()
        self.disk.lay(self.disk.sure, self.state)
        for path in self.state.iterdir():
            os.chown(path, owner.st_uid, owner.st_gid)
        self.disk = Disk(self.state)
