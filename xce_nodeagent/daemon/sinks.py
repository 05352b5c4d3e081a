"""The sinks that are configured; of what they need, only that is imported."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from xce_nodeagent.daemon.account import Places, load
from xce_nodeagent.errors import BadConfig
from xce_nodeagent.model.config import Config
from xce_nodeagent.upstream.file import FileSink
from xce_nodeagent.upstream.sink import Sink

log = logging.getLogger(__name__)

_LATE = ("encodings.idna", "stringprep", "unicodedata", "email.parser", "http.client", "ssl")
"""What sockets and HTTP import when they are used first; see `prepare`."""


def configured(
    config: Config, program: str, renew: Callable[[], Sequence[str]] | None = None
) -> tuple[Sink, ...]:
    """Make the sinks; nothing is opened yet.

    `program` is this program's version, `renew` gives etcd's endpoints as they are configured then.
    """
    return tuple(_configured(config, program, renew))


class Endpoints:
    """etcd's endpoints as the configuration file has them when it is asked: a store may move.

    None where the file has a fault by then, which is logged once.
    """

    def __init__(self, where: Places) -> None:
        self._where = where
        self._told = ""

    def __call__(self) -> Sequence[str]:
        """Read them."""
        try:
            found = load(self._where).upstream_etcd.endpoints
        except BadConfig as fault:
            if fault.message != self._told:
                log.warning("whether the store moved cannot be read: %s", fault.message)
            self._told = fault.message
            return ()
        self._told = ""
        return found


def _configured(
    config: Config, program: str, renew: Callable[[], Sequence[str]] | None
) -> Iterator[Sink]:
    if config.upstream_file.path:
        yield FileSink(Path(config.upstream_file.path))
    if config.upstream_http.url:
        from xce_nodeagent.upstream.post import HttpSink  # noqa: PLC0415  # see above

        yield HttpSink(config.upstream_http, Random(), program=program)  # noqa: S311  # for jitter
    if config.upstream_etcd.endpoints:
        from xce_nodeagent.upstream import etcdstore  # noqa: PLC0415  # see above

        yield etcdstore.sink(
            config.upstream_etcd,
            Random(),  # noqa: S311  # the same
            host=os.uname().nodename,
            renew=renew,
        )


def prepare(config: Config) -> None:
    """Import and load what sinks will need: before the filter, and while root may read it."""
    if not any(sink.kind != "file" for sink in configured(config, "")):
        return
    for name in _LATE:
        importlib.import_module(name)
    import ssl  # noqa: PLC0415  # only where it is used

    # OpenSSL reads its configuration, and loads its providers, with the first context.
    ssl.create_default_context()
