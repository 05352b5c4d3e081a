"""The store that a fleet is read from: where it is, one look at it, and who follows it."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct, structs, to_builtins

from xce_nodeagent.cli.fleet.reading import Block, Reading
from xce_nodeagent.cli.fleet.view import FleetView
from xce_nodeagent.daemon.account import load, places
from xce_nodeagent.errors import BadConfig, Upstream
from xce_nodeagent.model import upstream
from xce_nodeagent.model.setting import Fault
from xce_nodeagent.model.upstream import ATTRIBUTE, FleetConfig, UpstreamEtcdConfig
from xce_nodeagent.upstream import etcderror
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcdstore import client
from xce_nodeagent.upstream.fleet import Fleet
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.mirror import Mirror
from xce_nodeagent.upstream.sink import Undelivered
from xce_nodeagent.upstream.watcher import State, Watcher

_LOOK = 0.25  # seconds between two looks whether the store is away
_MOST_LETTERS = 253  # of a name that a block is looked for in (RFC 1035)


class Settings(Struct, frozen=True):
    """Which store it is, and how its nodes are judged; `file` is where that was read."""

    file: str
    etcd: UpstreamEtcdConfig
    fleet: FleetConfig

    @property
    def keys(self) -> Keys:
        """The names of its keys."""
        return Keys(self.etcd.prefix)


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


@contextlib.contextmanager
def asking(settings: Settings, seconds: float) -> Iterator[Client]:
    """Give a client for so long; what goes wrong with the store comes out as Upstream."""
    asked = client(settings.etcd, random.Random())  # noqa: S311  # who is asked first is no secret
    timer = threading.Timer(seconds, asked.close)
    timer.daemon = True
    timer.start()
    try:
        yield asked
    except Undelivered as error:  # the password's file
        raise BadConfig(f"[upstream.etcd] password_file: {error.reason}; {error.remedy}") from None
    except etcderror.EtcdError as error:
        late = f"no whole answer in {seconds:g} s" if asked.closed else ""
        raise refused(settings, error, late) from None
    finally:
        timer.cancel()
        asked.close()


def refused(settings: Settings, error: etcderror.EtcdError, why: str = "") -> Upstream:
    """Say what is wrong with the store, and what to do."""
    where = ", ".join(settings.etcd.endpoints)
    return Upstream(
        f"the store at {where}: {why or error.reason}; {_remedy(settings, error)}",
        endpoints=list(settings.etcd.endpoints),
        kind=type(error).__name__,
    )


def _remedy(settings: Settings, error: etcderror.EtcdError) -> str:
    file = f"[upstream.etcd] in {settings.file}"
    match error:
        case etcderror.Unreachable(certificate=True):
            return f"look at ca, cert and key of {file}"
        case etcderror.Unauthenticated() | etcderror.StaleToken():
            return f"look at user and password_file of {file}"
        case etcderror.Denied():
            right = f"to read (for --forget, to write) what is below {settings.etcd.prefix}"
            return f"the user of {file} needs a role with the right {right}"
        case etcderror.OtherCluster():
            return f"look at endpoints and cluster_id of {file}"
        case etcderror.NoLeader():
            return "more than half of its members must be up, and reach each other"
        case _:
            return "see that it runs, or name others with --endpoint; then try again"


class Store:
    """A fleet as it is read now."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        self.reading = Reading(block_of(settings.fleet.block))
        self._fleet = fleet

    def view(self) -> FleetView:
        """Give what is shown of it."""
        return self.reading.view(self._fleet)

    def inventory(self, name: str) -> dict[str, Any] | None:
        """Give a node's inventory as `inventory --json` prints it; None where there is none."""
        found = self._fleet.nodes[name].inventory
        value: dict[str, Any] | None = None if found is None else to_builtins(found)
        return value


def look(settings: Settings, seconds: float) -> Store:
    """Read all of the store once. Raise Upstream."""
    keys = settings.keys
    with asking(settings, seconds) as asked:
        revision, found = asked.range(keys.prefix)
        mirror = Mirror(keys, grace=0)
        now = time.monotonic()
        # One look does not tell since when a node is gone: that is time 0.
        mirror.reset(((kv.key, kv.value, kv.lease) for kv in found), now=now, wall=0.0)
        cluster = str(asked.cluster)
    return Store(settings, mirror.fleet(revision=revision, cluster=cluster, now=now, wall=0.0))


class Followed:
    """A fleet that is followed. `reading` makes views of it."""

    def __init__(self, settings: Settings, watcher: Watcher) -> None:
        self.reading = Reading(block_of(settings.fleet.block))
        self._watcher = watcher

    def next(self, after: tuple[Fleet, str] | None, seconds: float) -> tuple[Fleet, str]:
        """Give the fleet, and why it is out of date; wait until it is another than `after`."""
        deadline = time.monotonic() + seconds
        while True:
            fleet, late = self._watcher.snapshot, outdated(self._watcher.state)
            if fleet.revision and (after is None or fleet is not after[0] or late != after[1]):
                return fleet, late
            if (left := deadline - time.monotonic()) <= 0 and fleet.revision:
                return fleet, late
            with contextlib.suppress(TimeoutError):
                self._watcher.wait_for(
                    lambda other, seen=fleet: other is not seen,  # type: ignore[misc]
                    seconds=min(max(left, 0.01), _LOOK),
                )


@contextlib.contextmanager
def followed(settings: Settings, seconds: float) -> Iterator[Followed]:
    """Follow the store's fleet. Raise Upstream where it cannot be reached now."""
    with asking(settings, seconds) as asked:
        asked.range(settings.keys.all("live"))
    asked = client(settings.etcd, random.Random())  # noqa: S311  # the same
    with Watcher(asked, settings.keys, grace=settings.fleet.grace_seconds) as watcher:
        yield Followed(settings, watcher)


def outdated(state: State) -> str:
    """Say why a fleet may be another by now; empty where the store is followed."""
    if state.phase != "away":
        return ""
    since = datetime.fromtimestamp(state.since).astimezone().isoformat(" ", "seconds")
    return f"the store is away since {since}: {state.reason}"


def block_of(told: str) -> Block:
    """Give what finds a node's switch block, as `[fleet] block` tells it."""
    if told.startswith(ATTRIBUTE):
        attribute = told.removeprefix(ATTRIBUTE)
        return lambda _, attributes: str(attributes.get(attribute, ""))
    if not told:
        return lambda *_: ""
    pattern = re.compile(told)

    def block(name: str, _: Mapping[str, Any]) -> str:
        found = pattern.search(name[:_MOST_LETTERS])
        return (found[1] or "") if found else ""

    return block
