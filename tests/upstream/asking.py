"""A client that asks a store, besides, for what only tests want: leases and history that end."""

from __future__ import annotations

from msgspec import Struct

from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcderror import LeaseGone
from xce_nodeagent.upstream.etcdwire import Header, Lease


class Done(Struct, frozen=True):
    header: Header = Header()


class Asking(Client):
    def time_to_live(self, lease: int) -> int:
        """Give the seconds that a lease has left. Raise LeaseGone."""
        told = self._call("lease/timetolive", {"ID": lease}, Lease)
        if told.TTL <= 0:
            raise LeaseGone(f"{lease}: requested lease not found")
        return told.TTL

    def revoke(self, lease: int) -> None:
        """End a lease, and the keys that have it. Raise LeaseGone."""
        self._call("lease/revoke", {"ID": lease}, Done)

    def compact(self, revision: int) -> None:
        """Have the store forget what was before a revision."""
        self._call("kv/compaction", {"revision": revision}, Done)
