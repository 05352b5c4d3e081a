"""What systemd is told (sd_notify(3)): ready, alive, stopping, and a status line for people."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping


class Notifier:
    """Sends to the socket that systemd named; does nothing where it named none.

    It takes the environment as a value, and the socket is made at once: under the agent's
    sandbox it could still be made later, but a path that is wrong should be known at the start.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket: socket.socket | None = None
        address = environment.get("NOTIFY_SOCKET", "")
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            # A leading @ stands for the NUL of the abstract name space.
            self._socket.connect("\0" + address[1:] if address.startswith("@") else address)
        self.watchdog_seconds = _watchdog(environment) if address else None

    def send(self, *lines: str) -> None:
        """Send assignments such as READY=1. Losing one harms nobody but systemd's view."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.send("\n".join(lines).encode())

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()


def _watchdog(environment: Mapping[str, str]) -> float | None:
    """Give half the time after which systemd believes us dead (sd_watchdog_enabled(3))."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2e6 if microseconds.isdigit() and int(microseconds) else None
