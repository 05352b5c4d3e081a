"""A name's addresses, with a deadline.

The C library's resolver asks as long as /etc/resolv.conf says (10 s and more, for each server), and
cannot be interrupted. So it is asked in a thread, which is left to itself where it is late.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from xce_nodeagent.upstream.noanswer import Unresolved

Found = list[Any]
"""As `socket.getaddrinfo` gives it."""


class Lookup:
    """Asks for one host, in one thread at a time. `resolve` is `socket.getaddrinfo`."""

    def __init__(
        self, host: str, port: int, resolve: Callable[..., Found] = socket.getaddrinfo
    ) -> None:
        self._host = host
        self._port = port
        self._resolve = resolve
        self._asked: _Asked | None = None

    def addresses(self, end: float) -> Found:
        """Give the addresses until a time of the monotonic clock. Raise OSError; Unresolved is one.

        Where the question before is still unanswered, its answer is waited for.
        """
        try:  # an address is one
            return socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        except socket.gaierror:
            asked = self._asked
        if asked is None:
            asked = self._asked = _Asked(self._look)
        if not asked.done.wait(max(0.0, end - time.monotonic())):
            raise Unresolved
        self._asked = None
        if asked.error is not None:
            raise asked.error
        return asked.found

    def _look(self) -> Found:
        return self._resolve(self._host, self._port, type=socket.SOCK_STREAM)


class _Asked:
    """A question, and its answer when it is `done`."""

    def __init__(self, look: Callable[[], Found]) -> None:
        self.done = threading.Event()
        self.found: Found = []
        self.error: Exception | None = None
        self._look = look
        threading.Thread(target=self._run, name="resolve", daemon=True).start()

    def _run(self) -> None:
        try:
            self.found = self._look()
        except Exception as error:  # noqa: BLE001  # whoever waits has it
            self.error = error
        self.done.set()
