"""Values in the store: JSON, deflated where that saves much; read with limits.

Anybody who may write to the store could have put anything there.
A value tells by its first byte what it is: `{` is JSON, 0x78 is zlib (RFC 1950) around JSON.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

LARGEST = 4 << 20
"""Bytes of JSON that a reader takes at most: a hundred times the largest host that is known."""

SMALL = 64 << 10
"""The same of a value that tells of one thing: an instance's state, a head, a sign of life."""

MOST_OBJECTS = 1 << 16
"""Objects and arrays of a value: ten times what the shape of the largest host has."""

_WORTH = 512
"""Bytes below which a deflated value would be no smaller in any way that counts."""
_ZLIB = b"\x78"


class Unreadable(ValueError):
    """A value that is not what it should be; the message says what is wrong with it."""


class Packed(NamedTuple):
    """A value's bytes, and the SHA-256 of its JSON."""

    data: bytes
    digest: str


def packed(value: Any) -> Packed:
    """Give the bytes of a value and their digest: the same for equal values, on every host."""
    plain = msgspec.json.encode(value, order="sorted")
    # Level 6 of zlib gives other bytes in another version of zlib; a hash is of the plain JSON.
    data = zlib.compress(plain, 6) if len(plain) > _WORTH else plain
    return Packed(data, hashlib.sha256(plain).hexdigest())


def pack(value: Any) -> bytes:
    """Give the bytes of a value; see `packed`."""
    return packed(value).data


def plain(data: bytes, limit: int = LARGEST) -> bytes:
    """Give the JSON of a value, of `limit` bytes at most. Raise Unreadable."""
    if not data.startswith(_ZLIB):
        if len(data) > limit:
            raise Unreadable(f"{len(data)} bytes; at most {limit} are read")
        return data
    inflating = zlib.decompressobj()
    try:
        found = inflating.decompress(data, limit)
    except zlib.error as error:
        raise Unreadable(f"not deflated data: {error}") from None
    if inflating.unconsumed_tail or not inflating.eof:
        raise Unreadable(f"more than {limit} bytes, or cut short")
    return found


def unpack(data: bytes, kind: type[T], limit: int = LARGEST) -> T:
    """Read a value. Fields that this version does not know are passed over. Raise Unreadable."""
    found = plain(data, limit)
    if len(found) > MOST_OBJECTS:
        # Three bytes, `[],`, become a hundred, and time. Those in texts count, and are few.
        made = found.count(b"{") + found.count(b"[")
        if made > MOST_OBJECTS:
            raise Unreadable(f"{made} objects; at most {MOST_OBJECTS} are read")
    try:
        return msgspec.json.decode(found, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"not a {kind.__name__}: {error}") from None


def digest(data: bytes) -> str:
    """Give the SHA-256 of a value's JSON, whether it is deflated or not."""
    return hashlib.sha256(plain(data)).hexdigest()
