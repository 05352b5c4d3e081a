"""What can still be read of a damaged ledger: every row whose checksum is right, wherever it is.

SQLite gives up at the first page that makes no sense. Here each page is looked at on its own, of
the database and of its log: a leaf of a table has its rows in itself, and a row of ours says by its
CRC whether it is whole. Nothing else is believed: no header, no tree, no list of free pages. So a
row that was deleted may come back, and what it said is to be compared with the kernel.

The formats are SQLite's (https://www.sqlite.org/fileformat2.html), sections 1.6, 2.1 and 4.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_LEAF = 0x0D
_LOG_HEADER, _FRAME_HEADER = 32, 24
_MAGIC = (0x377F0682, 0x377F0683)
_SIZES = [512 << i for i in range(8)]
_USUAL = 4096
_TRIES = 16
"""Versions of pages that are tried together, where a row goes over several."""
_ROW_LIMIT = 1 << 20


class Row(NamedTuple):
    """One event as it is stored; the body fits its CRC. `up` is absent in an older version's."""

    seq: int
    time: float
    boot: str
    up: float | None
    crc: int
    body: bytes


Pages = dict[int, list[bytes]]
"""The versions of each page, by its number, the newest first."""


def log_of(path: Path) -> bytes:
    """Read the log of a database; nothing where there is none."""
    return _read(f"{path}-wal")


def read(path: Path, log: bytes | None = None) -> list[Row]:
    """Give what can be read, in the order of writing. `log` is the log as it was, where known."""
    data = _read(str(path))
    log = log_of(path) if log is None else log
    size = _page_size(data, log)
    pages: Pages = {}
    for number, page in _frames(log, size, 0):
        pages.setdefault(number, []).insert(0, page)
    for start in range(0, len(data), size):
        pages.setdefault(start // size + 1, []).append(data[start : start + size])
    return _rows(pages, size)


def behind(log: bytes, frames: int) -> list[Row]:
    """Give the rows in a log that SQLite does not see: behind the frames that it takes for whole.

    What was never committed may be among them, and what a transaction left that was rolled back.
    """
    size = _page_size(b"", log)
    pages: Pages = {}
    for number, page in _frames(log, size, frames):
        pages.setdefault(number, []).insert(0, page)
    return _rows(pages, size) if pages else []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _page_size(data: bytes, log: bytes) -> int:
    said = [struct.unpack(">H", data[16:18])[0]] if len(data) >= 18 else []
    said += [struct.unpack(">I", log[8:12])[0]] if len(log) >= _LOG_HEADER else []
    return next((size for size in said if size in _SIZES), _USUAL)


def _frames(log: bytes, size: int, skip: int) -> Iterator[tuple[int, bytes]]:
    """Give the number and the content of each page in a log, of its last round where that is known.

    A log is written from its start again and again, each round with a salt of its own. Where the
    header cannot be believed, every frame is taken.
    """
    if len(log) < _LOG_HEADER:
        return
    whole = struct.unpack(">I", log[:4])[0] in _MAGIC and _sum(log[:24]) == log[24:32]
    salt = log[16:24] if whole else None
    step = _FRAME_HEADER + size
    for start in range(_LOG_HEADER + skip * step, len(log) - step + 1, step):
        if salt is None or log[start + 8 : start + 16] == salt:
            number = int.from_bytes(log[start : start + 4], "big")
            yield number, log[start + _FRAME_HEADER : start + step]


def _sum(data: bytes) -> bytes:
    """Give SQLite's checksum of a header, in the order of bytes that its magic number says."""
    order = ">" if data[3] & 1 else "<"
    first = second = 0
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for left, right in zip(words[::2], words[1::2], strict=True):
        first = (first + left + second) & 0xFFFFFFFF
        second = (second + right + first) & 0xFFFFFFFF
    return struct.pack(">2I", first, second)


def _rows(pages: Pages, size: int) -> list[Row]:
    found: dict[int, Row] = {}
    known: set[bytes] = set()

    def versions(number: int) -> Sequence[bytes]:
        return pages.get(number, ())

    for number, page in ((n, page) for n, several in pages.items() for page in several):
        for cell in _cells(page, 100 if number == 1 else 0):
            start = bytes(page[cell : cell + 64])
            if start in known:  # a page is in the log once for each of its rows
                continue
            row = _row(page, cell, size, versions)
            if row is not None:
                known.add(start)
                # A number may be given twice, once the last rows were deleted: the later one is it.
                other = found.get(row.seq)
                if other is None or other.time <= row.time:
                    found[row.seq] = row
    return [found[seq] for seq in sorted(found)]


def _cells(page: bytes, start: int) -> Iterator[int]:
    """Give where the cells of a leaf are."""
    if len(page) < start + 8 or page[start] != _LEAF:
        return
    count = int.from_bytes(page[start + 3 : start + 5], "big")
    pointers = page[start + 8 : start + 8 + 2 * count]
    for at in range(0, len(pointers) - 1, 2):
        yield int.from_bytes(pointers[at : at + 2], "big")


def _row(
    page: bytes, cell: int, size: int, versions: Callable[[int], Sequence[bytes]]
) -> Row | None:
    """Read a row; None where it is none of ours, or not whole."""
    try:
        length, at = _varint(page, cell)
        seq, at = _varint(page, at)
    except IndexError:
        return None
    if not 0 < length <= _ROW_LIMIT:
        return None
    # Section 1.6: as much as fits is in the cell, and the rest in a list of pages.
    most, least = size - 35, (size - 12) * 32 // 255 - 23
    if length <= most:
        return _checked(seq, page[at : at + length])
    local = least + (length - least) % (size - 4)
    local = local if local <= most else least
    more = int.from_bytes(page[at + local : at + local + 4], "big")
    rests = _rests(more, length - local, size, versions)
    for rest in itertools.islice(rests, _TRIES):
        if row := _checked(seq, page[at : at + local] + rest):
            return row
    return None


def _rests(
    number: int, length: int, size: int, versions: Callable[[int], Sequence[bytes]]
) -> Iterator[bytes]:
    """Give what a list of pages may hold, the newest versions first."""
    for page in versions(number):
        part = page[4 : 4 + min(length, size - 4)]
        if length <= size - 4:
            yield part
        else:
            following = int.from_bytes(page[:4], "big")
            for rest in _rests(following, length - len(part), size, versions):
                yield part + rest


def _checked(seq: int, payload: bytes) -> Row | None:
    try:
        values = _values(payload)
    except (IndexError, struct.error, UnicodeDecodeError):
        return None
    if len(values) not in (5, 6):  # before there was `up`
        return None
    _, time, boot, crc, body, *more = values
    up = more[0] if more else None
    if (
        not isinstance(time, (int, float))
        or not isinstance(boot, str)
        or not isinstance(body, bytes)
        or not isinstance(up, (int, float, type(None)))
        or zlib.crc32(body) != crc
    ):
        return None
    return Row(seq, float(time), boot, None if up is None else float(up), zlib.crc32(body), body)


def _values(payload: bytes) -> list[object]:
    """Read the columns of a record (section 2.1)."""
    end, at = _varint(payload, 0)
    kinds: list[int] = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    values: list[object] = []
    for kind in kinds:
        length = _length(kind)
        part = payload[at : at + length]
        if len(part) != length:
            raise IndexError(at)
        at += length
        values.append(_value(kind, part))
    return values


def _length(kind: int) -> int:
    if kind >= 12:
        return (kind - 12) // 2
    return (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)[kind]


def _value(kind: int, part: bytes) -> object:
    match kind:
        case 0:
            return None
        case 7:
            return struct.unpack(">d", part)[0]
        case 8 | 9:
            return kind - 8
        case _ if kind < 12:
            return int.from_bytes(part, "big", signed=True)
        case _:
            return part.decode() if kind % 2 else part


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            return value, at
    return value << 8 | data[at], at + 1
