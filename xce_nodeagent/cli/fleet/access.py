"""Access to a fleet's store for so many seconds, and what is told where it is refused."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator

from xce_nodeagent.cli.fleet.settings import Settings
from xce_nodeagent.errors import BadConfig, Upstream
from xce_nodeagent.upstream import etcderror, etcdremedy
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcdstore import client
from xce_nodeagent.upstream.sink import Undelivered


def asked(settings: Settings) -> Client:
    """Give a client that nobody ends but who got it."""
    return client(settings.etcd, random.Random())  # noqa: S311  # who is asked first is no secret


@contextlib.contextmanager
def asking(settings: Settings, seconds: float) -> Iterator[Client]:
    """Give a client for so long; what goes wrong with the store comes out as Upstream."""
    one = asked(settings)
    timer = threading.Timer(seconds, one.close)
    timer.daemon = True
    timer.start()
    try:
        yield one
    except Undelivered as error:  # the password's file
        raise BadConfig(f"[upstream.etcd] password_file: {error.reason}; {error.remedy}") from None
    except etcderror.EtcdError as error:
        late = f"no whole answer in {seconds:g} s" if one.closed else ""
        raise refused(settings, error, late) from None
    finally:
        timer.cancel()
        one.close()


def refused(settings: Settings, error: etcderror.EtcdError, why: str = "") -> Upstream:
    """Say what is wrong with the store, and what to do."""
    told = f"{why or error.reason}; {etcdremedy.remedy(error, settings.asker)}"
    return missing(settings, told, kind=type(error).__name__)


def missing(settings: Settings, told: str, *, kind: str) -> Upstream:
    """Say that the store is not to be had; `told` has why, and what to do."""
    return Upstream(
        f"the store at {settings.where}: {told}",
        endpoints=list(settings.etcd.endpoints),
        kind=kind,
    )
