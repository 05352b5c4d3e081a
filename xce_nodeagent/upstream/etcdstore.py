"""The store of `[upstream.etcd]`: the client that asks it, and the sink that writes there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from xce_nodeagent.model.upstream import UpstreamEtcdConfig, in_plain
from xce_nodeagent.upstream import secret
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcdsink import EtcdSink
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.sink import PLAIN
from xce_nodeagent.upstream.tls import Files, Tls


def client(config: UpstreamEtcdConfig, random: Random, tls: Tls | None = None) -> Client:
    """Make a client. The password is read when it is wanted, and may raise Undelivered then."""
    return Client(
        config.endpoints,
        random,
        tls=tls or _tls(config),
        credentials=(lambda: (config.user, secret.read(Path(config.password_file))))
        if config.user
        else None,
        pinned=cluster(config.cluster_id),
    )


def sink(
    config: UpstreamEtcdConfig,
    random: Random,
    *,
    host: str = "",
    renew: Callable[[], Sequence[str]] | None = None,
) -> EtcdSink:
    """Make a sink; `renew` gives the endpoints as the configuration file has them then.

    `host` is what this host calls itself.
    """
    tls = _tls(config)
    plain = PLAIN if any(map(in_plain, config.endpoints)) else ""
    return EtcdSink(
        client(config, random, tls),
        Keys(config.prefix),
        lease_seconds=config.lease_seconds,
        user=config.user,
        host=host,
        remark=lambda: "; ".join(filter(None, (plain, tls.soon()))),
        renew=renew,
    )


def _tls(config: UpstreamEtcdConfig) -> Tls:
    return Tls(Files(config.ca, config.cert, config.key))


def cluster(told: str) -> frozenset[int]:
    """Give the ids that a cluster's id may mean: of digits alone it may be either notation."""
    if not told:
        return frozenset()
    return frozenset({int(told, 16), *([int(told)] if told.isdecimal() else [])})
