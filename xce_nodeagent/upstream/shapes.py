"""Shapes that no node names any more: found, and deleted.

An agent puts a shape once and deletes none, for other hosts may be of it; so each new driver leaves
the shape of the one before (some 3 kB for each kind of host). Whoever looks after the store calls
`collect` now and then. It is safe beside agents that report: one may just have found a shape there
and be about to name it. What was named meanwhile is put back, and what is named later than that is
missed, and put, by that agent's own look (`etcdsink.py`), within two leases.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcdwire import Kv, absent, delete, put, unchanged
from xce_nodeagent.upstream.keys import EntryKey, Keys, ShapeKey
from xce_nodeagent.upstream.report import HEAD, STATIC, VERSION, Head
from xce_nodeagent.upstream.shape import Static


class Collected(Struct, frozen=True):
    """What `collect` did: the hashes of the shapes that it deleted, and their bytes.

    `unread` are nodes whose `static` cannot be read, or whose report is of a later layout: any
    shape may be theirs, so with one of them nothing is deleted. Forget such a node, or let its
    agent report anew.
    """

    shapes: tuple[str, ...] = ()
    bytes: int = 0
    unread: tuple[str, ...] = ()


def collect(client: Client, keys: Keys, *, dry_run: bool = False) -> Collected:
    """Delete the shapes that no node's `static` names; with `dry_run`, say only which they are.

    It reads all nodes' entries, twice where something is deleted. Raise EtcdError.
    """
    # The shapes first: of those that come after, nothing is known, and nothing is deleted.
    _, found = client.range(keys.all("shape"))
    shapes = {key.sha256: one for one in found if isinstance(key := keys.parse(one.key), ShapeKey)}
    named, unread = _named(client, keys)
    unused = {sha256: shapes[sha256] for sha256 in sorted(shapes.keys() - named)}
    if unread:
        return Collected(unread=unread)
    if not dry_run:
        unused = {sha256: one for sha256, one in unused.items() if _deleted(client, one)}
        unused = _without_named(client, keys, unused)
    size = sum(len(one.key) + len(one.value) for one in unused.values())
    return Collected(shapes=tuple(unused), bytes=size)


def _deleted(client: Client, shape: Kv) -> bool:
    """Delete a shape as it was seen; one that was written since is somebody's."""
    return client.txn([unchanged(shape.key, shape.mod_revision)], [delete(shape.key)]).succeeded


def _without_named(client: Client, keys: Keys, deleted: Mapping[str, Kv]) -> dict[str, Kv]:
    """Put back what was named while it was deleted; give the others."""
    if not deleted:
        return {}
    named, unread = _named(client, keys)
    back = deleted.keys() if unread else deleted.keys() & named
    for sha256 in back:
        one = deleted[sha256]
        client.txn([absent(one.key)], [put(one.key, one.value)])
    return {sha256: one for sha256, one in deleted.items() if sha256 not in back}


def _named(client: Client, keys: Keys) -> tuple[set[str], tuple[str, ...]]:
    """Give the shapes that nodes name, and the nodes of which that is not known."""
    named: set[str] = set()
    unread: set[str] = set()
    _, found = client.range(keys.all("node"))
    for one in found:
        match keys.parse(one.key):
            case EntryKey(node, entry) if entry == STATIC:
                try:
                    named.add(packing.unpack(one.value, Static).shape)
                except packing.Unreadable:
                    unread.add(node)
            case EntryKey(node, entry) if entry == HEAD and _is_later(one.value):
                unread.add(node)
    return named, tuple(sorted(unread))


def _is_later(head: bytes) -> bool:
    try:
        return packing.unpack(head, Head, packing.SMALL).least > VERSION
    except packing.Unreadable:
        return False  # the shape is named by `static`
