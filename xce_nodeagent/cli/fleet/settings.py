"""Which store a fleet is read from, and how its nodes are judged: from the configuration."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, structs

from xce_nodeagent.daemon.account import load, places
from xce_nodeagent.errors import BadConfig
from xce_nodeagent.model import upstream
from xce_nodeagent.model.setting import Fault
from xce_nodeagent.model.upstream import FleetConfig, UpstreamEtcdConfig
from xce_nodeagent.upstream.etcdremedy import Asker
from xce_nodeagent.upstream.keys import Keys


class Settings(Struct, frozen=True):
    """Which store it is, and how its nodes are judged; `file` is where that was read."""

    file: str
    etcd: UpstreamEtcdConfig
    fleet: FleetConfig

    @property
    def keys(self) -> Keys:
        """The names of its keys."""
        return Keys(self.etcd.prefix)

    @property
    def where(self) -> str:
        """The store, for people."""
        return ", ".join(self.etcd.endpoints)

    @property
    def asker(self) -> Asker:
        """Who asks the store, for what is told of its errors."""
        return Asker(
            reads=True,
            prefix=self.etcd.prefix,
            user=self.etcd.user,
            section=f"[upstream.etcd] in {self.file}",
        )


def settings(
    environ: Mapping[str, str], config: str | None, endpoints: tuple[str, ...]
) -> Settings:
    """Read the configuration; `endpoints` go before those that it names. Raise BadConfig."""
    where = places(environ, config)
    read = load(where)
    etcd = read.upstream_etcd
    if endpoints:
        try:
            etcd = structs.replace(etcd, endpoints=upstream.endpoints(list(endpoints)))
        except Fault as fault:
            raise BadConfig(f"--endpoint: {fault}") from None
    if not etcd.endpoints:
        raise BadConfig(
            f"{where.config} names no store: expected [upstream.etcd] endpoints, as in"
            " ['https://etcd1:2379'], or --endpoint URL"
        )
    return Settings(where.config, etcd, read.fleet)
