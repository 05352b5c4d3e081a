"""Puts made fleets into a real store, by transactions, as agents would; and a reader of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from random import Random

from upstream.asking import Asking

from xce_nodeagent.upstream import etcdwire
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.mirror import SETTLE
from xce_nodeagent.upstream.watcher import Watcher

OPERATIONS = 128
"""Of a transaction, as etcd allows by itself (--max-txn-ops)."""


@contextlib.contextmanager
def client(url: str) -> Iterator[Asking]:
    one = Asking([url], Random(1))  # noqa: S311  # which member comes first
    try:
        yield one
    finally:
        one.close()


def lease(one: Client, seconds: int = 3600) -> int:
    return one.grant(seconds).ID


def fill(one: Client, state: Mapping[bytes, tuple[bytes, int]], *, lease: int = 0) -> None:
    """Put all keys; each that has a lease in a made fleet gets this one."""
    operations = [
        etcdwire.put(key, value, lease if leased else 0) for key, (value, leased) in state.items()
    ]
    commit(one, operations)


def commit(one: Client, operations: Iterable[etcdwire.Operation]) -> None:
    every = list(operations)
    for at in range(0, len(every), OPERATIONS):
        assert one.txn((), every[at : at + OPERATIONS]).succeeded


@contextlib.contextmanager
def watching(
    url: str, keys: Keys, *, grace: float = 60.0, settle: float = SETTLE
) -> Iterator[Watcher]:
    """Run a reader."""
    store = Client([url], Random(2), seconds=20.0)  # noqa: S311  # which member comes first
    with Watcher(store, keys, grace=grace, settle=settle) as one:
        yield one
