"""A real store with a fleet in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random

import fleets
from upstream.asking import Asking

from xce_nodeagent.upstream.etcdwire import put
from xce_nodeagent.upstream.keys import Keys

COUNT = 20


class Filled:
    """A store with a fleet below a prefix of its own, and a configuration that names it."""

    def __init__(self, etcd, folder) -> None:
        self.prefix = f"/{folder.name}/"
        self.keys = Keys(self.prefix)
        self.client = Asking([etcd.url], Random(1))  # noqa: S311  # a test
        self.lease = self.client.grant(3600).ID
        self.fill(etcd, folder)

    def fill(self, etcd, folder) -> None:
        for at in range(COUNT):
            every = fleets.keys(at, self.keys).items()
            self.client.txn((), [put(key, value) for key, value in every])
            if not fleets.is_stale(at):
                self.live(at)
        self.config = folder / "config.toml"
        self.config.write_text(
            f'[upstream.etcd]\nendpoints = ["{etcd.url}"]\nprefix = "{self.prefix}"\n'
            '[fleet]\nblock = "^(r[0-9]+)-"\ngrace_seconds = 0\n'
        )

    def live(self, at: int) -> None:
        key = self.keys.live(fleets.name(at))
        self.client.txn((), [put(key, fleets.live(at), self.lease)])

    def close(self) -> None:
        self.client.revoke(self.lease)
        self.client.close()


@contextlib.contextmanager
def filled(etcd, folder) -> Iterator[Filled]:
    """Fill a store, and end what it has of lives afterwards, where it is still there."""
    store = Filled(etcd, folder)
    try:
        yield store
    finally:
        store.close()
