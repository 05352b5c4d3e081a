"""Requests and answers of etcd's JSON gateway (`/v3`, etcd 3.4 and later), as types. Pure.

Bytes are base64 and 64-bit numbers are strings there; msgspec reads and writes both. What is zero
is left out. Fields that are not used here are passed over.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from xce_nodeagent.upstream import keys

T = TypeVar("T")

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What `read` raises."""


_OBJECTS = 512  # that may be as small as they like: a txn's responses
_OBJECT = 24  # bytes that one of the others has at least: a key with its revisions has 60


class Header(Struct, frozen=True):
    """Of every answer: which cluster and member it comes from, and the store's revision."""

    cluster_id: int = 0
    member_id: int = 0
    revision: int = 0


class Kv(Struct, frozen=True):
    """A key with its value, the revisions of its first and last write, and its lease or 0."""

    key: bytes = b""
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0
    version: int = 0
    lease: int = 0


class Found(Struct, frozen=True):
    """The answer to a range; `count` is of all keys in it, though fewer were asked for."""

    header: Header = Header()
    kvs: tuple[Kv, ...] = ()
    more: bool = False
    count: int = 0


class Response(Struct, frozen=True):
    """Of one operation of a txn; only what was read is of interest."""

    response_range: Found = Found()


class Txn(Struct, frozen=True):
    """The answer to a txn: which branch was taken, and what it gave."""

    header: Header = Header()
    succeeded: bool = False
    responses: tuple[Response, ...] = ()


class Lease(Struct, frozen=True):
    """A lease; `TTL` is in seconds, and 0 for one that ended."""

    header: Header = Header()
    ID: int = 0
    TTL: int = 0


class Status(Struct, frozen=True):
    """What a member says of itself. `leader` of 0 is none; `errors` has the alarms."""

    header: Header = Header()
    version: str = ""
    leader: int = 0
    dbSize: int = 0  # noqa: N815  # etcd's own word
    errors: tuple[str, ...] = ()


class Token(Struct, frozen=True):
    """The answer to a user and a password."""

    header: Header = Header()
    token: str = ""


class Streamed(Struct, frozen=True):
    """A line of a stream of leases."""

    result: Lease


class Event(Struct, frozen=True):
    """A change: a put, or a delete, whose `kv` has the key and the revision only."""

    type: str = "PUT"
    kv: Kv = Kv()

    @property
    def deleted(self) -> bool:
        """Say whether the key is gone."""
        return self.type == "DELETE"


class Watched(Struct, frozen=True):
    """What a watch tells; `fragment`: more of the same revisions follows."""

    header: Header = Header()
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    fragment: bool = False
    events: tuple[Event, ...] = ()


class WatchLine(Struct, frozen=True):
    """A line of a watch; without a result it is an error."""

    result: Watched | None = None


class Compare(Struct, frozen=True, omit_defaults=True):
    """What must be true of a key for a txn's first branch."""

    target: Literal["MOD", "CREATE"]
    key: bytes
    mod_revision: int | None = None
    create_revision: int | None = None


class Range(Struct, frozen=True, omit_defaults=True):
    """A read of keys, from `key` to before `range_end`; without that, of one key.

    A `revision` of 0 is the newest, a `limit` of 0 none.
    """

    key: bytes
    range_end: bytes = b""
    limit: int = 0
    revision: int = 0
    sort_order: Literal["NONE", "ASCEND", "DESCEND"] = "NONE"
    sort_target: Literal["KEY", "VERSION", "CREATE", "MOD", "VALUE"] = "KEY"
    keys_only: bool = False


class Put(Struct, frozen=True, omit_defaults=True):
    """A write of a key; with a lease, the key ends with it."""

    key: bytes
    value: bytes = b""
    lease: int = 0


class Delete(Struct, frozen=True, omit_defaults=True):
    """An end of keys."""

    key: bytes
    range_end: bytes = b""


class Operation(Struct, frozen=True, omit_defaults=True):
    """One operation of a txn."""

    request_put: Put | None = None
    request_range: Range | None = None
    request_delete_range: Delete | None = None


def put(key: bytes, value: bytes, lease: int = 0) -> Operation:
    """Write a key, in a txn."""
    return Operation(request_put=Put(key, value, lease))


def delete(key: bytes) -> Operation:
    """End a key, in a txn."""
    return Operation(request_delete_range=Delete(key))


def get(key: bytes, *, keys_only: bool = False) -> Operation:
    """Read a key, in a txn."""
    return Operation(request_range=Range(key, keys_only=keys_only))


def newest(prefix: bytes) -> Operation:
    """Read, in a txn, which key with a prefix was written last, and how many there are."""
    return Operation(
        request_range=Range(
            prefix,
            keys.end(prefix),
            limit=1,
            sort_order="DESCEND",
            sort_target="MOD",
            keys_only=True,
        )
    )


def names(prefix: bytes, limit: int) -> Operation:
    """Read, in a txn, the first keys with a prefix without their values, and how many there are."""
    return Operation(request_range=Range(prefix, keys.end(prefix), limit=limit, keys_only=True))


def absent(key: bytes) -> Compare:
    """Give the condition that a key is not there."""
    return Compare("CREATE", key, create_revision=0)


def unchanged(key: bytes, mod_revision: int) -> Compare:
    """Give the condition that a key was not written, nor deleted, since a revision."""
    return Compare("MOD", key, mod_revision=mod_revision)


def written(value: Any) -> bytes:
    """Give the JSON of a request."""
    return msgspec.json.encode(value)


def read(data: bytes, kind: type[T]) -> T:
    """Read an answer. Raise one of UNREADABLE."""
    # Three bytes, `{},`, become a hundred. Base64 has no bracket, so these are what is made of it.
    made = data.count(b"{") + data.count(b"[")
    if made > _OBJECTS + len(data) // _OBJECT:
        raise msgspec.ValidationError(f"{made} objects in {len(data)} bytes")
    # Numbers are strings: not strict takes both, and takes "true" for a boolean; no harm here.
    return msgspec.json.decode(data, type=kind, strict=False)
