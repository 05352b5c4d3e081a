"""The names of the keys in etcd, and back. Pure.

    PREFIX node/NODE/ENTRY      an entry of a node's report
    PREFIX shape/SHA256         what hosts of one kind share; written once, by who has it first
    PREFIX live/NODE            who reports this node now; ends with its lease
    PREFIX rival/NODE/AGENT     another living agent that claims the node; ends with its lease

Each name is percent-escaped by itself, all but `A-Za-z0-9._-`, so that a key has as many slashes
as it has parts. An entry's own slashes stay: `binding/12/1` is three parts. What `parse` does not
take is nobody's key of this layout: a reader passes over it.
"""

from __future__ import annotations

import re
import string
from typing import Literal
from urllib.parse import quote_from_bytes, unquote_to_bytes

from msgspec import Struct

from xce_nodeagent.model.upstream import PREFIX

_PLAIN = re.compile(rb"[A-Za-z0-9._-]*")
_HEX = frozenset(string.hexdigits.lower())


class EntryKey(Struct, frozen=True):
    """The key of an entry of a node's report."""

    node: str
    entry: str


class ShapeKey(Struct, frozen=True):
    """The key of a shape."""

    sha256: str


class LiveKey(Struct, frozen=True):
    """The key that is there as long as a node's agent lives."""

    node: str


class RivalKey(Struct, frozen=True):
    """The key of an agent that claims a node that another one has."""

    node: str
    agent: str


Key = EntryKey | ShapeKey | LiveKey | RivalKey

Kind = Literal["node", "shape", "live", "rival"]


class Keys:
    """The keys below a prefix, which ends with a slash; a missing one is added."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self.prefix = (prefix if prefix.endswith("/") else prefix + "/").encode()

    def entry(self, node: str, entry: str) -> bytes:
        """Give the key of an entry."""
        return self.node(node) + b"/".join(escape(part) for part in entry.split("/"))

    def node(self, node: str) -> bytes:
        """Give what all keys of a node's report begin with."""
        return self.prefix + b"node/" + escape(node) + b"/"

    def shape(self, sha256: str) -> bytes:
        """Give the key of a shape."""
        return self.prefix + b"shape/" + escape(sha256)

    def live(self, node: str) -> bytes:
        """Give the key of a node's agent."""
        return self.prefix + b"live/" + escape(node)

    def rival(self, node: str, agent: str) -> bytes:
        """Give the key of another agent that claims a node."""
        return self.rivals(node) + escape(agent)

    def rivals(self, node: str) -> bytes:
        """Give what the keys of all who claim a node begin with."""
        return self.prefix + b"rival/" + escape(node) + b"/"

    def all(self, kind: Kind) -> bytes:
        """Give what all keys of a kind begin with."""
        return self.prefix + kind.encode() + b"/"

    def parse(self, key: bytes) -> Key | None:
        """Read a key; None where it is none of this layout, or not written as it is written here.

        A name that could be written in two ways would be two keys for one thing.
        """
        if not key.startswith(self.prefix):
            return None
        kind, *parts = key[len(self.prefix) :].split(b"/")
        try:
            names = [_name(part) for part in parts]
        except ValueError:
            return None
        match kind, names:
            case b"node", [node, first, *rest] if node and first:
                entry = "/".join((first, *rest))
                # An entry's own slashes are never escaped.
                return EntryKey(node, entry) if entry.count("/") == len(rest) else None
            case b"shape", [sha256] if len(sha256) == 64 and _HEX.issuperset(sha256):
                return ShapeKey(sha256)
            case b"live", [node] if node:
                return LiveKey(node)
            case b"rival", [node, agent] if node and agent:
                return RivalKey(node, agent)
        return None

    def write(self, key: Key) -> bytes:
        """Give the bytes of a key that was read."""
        match key:
            case EntryKey(node, entry):
                return self.entry(node, entry)
            case ShapeKey(sha256):
                return self.shape(sha256)
            case LiveKey(node):
                return self.live(node)
            case RivalKey(node, agent):
                return self.rival(node, agent)


def escape(name: str) -> bytes:
    """Write a name as a part of a key; what is not UTF-8 survives (PEP 383)."""
    raw = name.encode("utf-8", "surrogateescape")
    # quote leaves `~` as it is, too (RFC 3986).
    return quote_from_bytes(raw, safe="").replace("~", "%7E").encode()


def unescape(part: bytes) -> str:
    """Read a part of a key. Raise ValueError where it is not ASCII."""
    return unquote_to_bytes(part.decode("ascii")).decode("utf-8", "surrogateescape")


def _name(part: bytes) -> str:
    """Read a part that is written as `escape` writes it. Raise ValueError where it is not."""
    if _PLAIN.fullmatch(part):  # nearly all are, and a fleet has half a million of them
        return part.decode("ascii")
    name = unescape(part)
    if escape(name) != part:
        raise ValueError(f"{part!r} is not how {name!r} is written")
    return name


def end(prefix: bytes) -> bytes:
    """Give the key after all that begin with a prefix, as etcd's `range_end` wants it."""
    kept = prefix.rstrip(b"\xff")
    # All above is said by a NUL (etcd's API).
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else b"\0"
