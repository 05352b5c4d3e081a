"""The sinks that are configured; of what they need, only that is imported."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

from xce_nodeagent.model.config import Config
from xce_nodeagent.upstream.file import FileSink
from xce_nodeagent.upstream.sink import Sink

_LATE = ("encodings.idna", "stringprep", "unicodedata", "email.parser", "http.client", "ssl")
"""What sockets and HTTP import when they are used first; see `prepare`."""


def configured(config: Config, program: str) -> tuple[Sink, ...]:
    """Make the sinks. `program` is this program's version."""
    return tuple(_configured(config, program))


def _configured(config: Config, program: str) -> Iterator[Sink]:
    if config.upstream_file.path:
        yield FileSink(Path(config.upstream_file.path))
    if config.upstream_http.url:
        from xce_nodeagent.upstream.post import HttpSink  # noqa: PLC0415  # see above

        yield HttpSink(config.upstream_http, Random(), program=program)  # noqa: S311  # for jitter


def prepare(config: Config) -> None:
    """Import and load what sinks will need: before the filter, and while root may read it."""
    if not any(sink.kind != "file" for sink in configured(config, "")):
        return
    for name in _LATE:
        importlib.import_module(name)
    import ssl  # noqa: PLC0415  # only where it is used

    # OpenSSL reads its configuration, and loads its providers, with the first context.
    ssl.create_default_context()
