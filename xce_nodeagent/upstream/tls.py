"""The files of TLS, and the context that is made of them."""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from xce_nodeagent.upstream import certificate, regular
from xce_nodeagent.upstream.noanswer import NoAnswer, words


class Files(Struct, frozen=True):
    """Files of TLS, in PEM. Without `ca` it is the host's own; without `key` it is in `cert`."""

    ca: str = ""
    cert: str = ""
    key: str = ""


SETTLE_SECONDS = 10.0
"""For so long after one of the files changed the others may have to come yet."""


class Tls:
    """The context of TLS from files, made anew when one of them changed.

    A certificate and its key are two files: while one is new and the other is not, that is no fault
    that somebody has to see to. `clock` is monotonic.
    """

    def __init__(self, files: Files, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.files = files
        self._clock = clock
        self._seen: tuple[tuple[int, ...], ...] | None = None
        self._changed = -math.inf
        self._made_of: tuple[tuple[int, ...], ...] | None = None
        self._context: ssl.SSLContext | None = None
        self._dates: certificate.Dates | None = None  # of our own certificate

    def context(self) -> ssl.SSLContext:
        """Give the context; the same one as long as the files are the same. Raise NoAnswer."""
        now = tuple(_state(path) for path in (self.files.ca, self.files.cert, self.files.key))
        if now != self._seen:
            if self._seen is not None:
                self._changed = self._clock()
            self._seen = now
        if self._context is None or now != self._made_of:
            self._context = self._make()
            self._made_of = now
        return self._context

    def _make(self) -> ssl.SSLContext:
        try:
            if self.files.ca:
                regular.look(self.files.ca)
            context = ssl.create_default_context(cafile=self.files.ca or None)
        except (OSError, ValueError) as error:
            raise self._unread(self.files.ca, error) from None
        context.set_alpn_protocols(["http/1.1"])
        if self.files.cert:
            try:
                for path in filter(None, (self.files.cert, self.files.key)):
                    regular.look(path)
                # Without a password of ours OpenSSL would ask for one on the terminal.
                key = self.files.key or None
                context.load_cert_chain(self.files.cert, key, password=lambda: "")
            except (OSError, ValueError) as error:
                told = " and ".join(filter(None, (self.files.cert, self.files.key)))
                raise self._unread(told, error) from None
        self._dates = certificate.read(Path(self.files.cert)) if self.files.cert else None
        return context

    def _unread(self, files: str, error: Exception) -> NoAnswer:
        settled = self._clock() - self._changed >= SETTLE_SECONDS
        return NoAnswer(f"{files}: {words(error)}", certificate=settled)

    def soon(self) -> str:
        """Say that our own certificate, which is in use, will end soon; empty where not."""
        dates = self._dates
        return certificate.soon(self.files.cert, dates.end, datetime.now(UTC)) if dates else ""

    def wrong(self) -> str:
        """Say what the dates make wrong with our own certificate; empty where nothing."""
        if not self.files.cert:
            return ""
        return certificate.wrong(Path(self.files.cert), datetime.now(UTC))


def _state(path: str) -> tuple[int, ...]:
    if not path:
        return ()
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
