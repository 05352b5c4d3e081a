"""Telling systemd how we are (sd_notify(3)); does nothing where nobody asked."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping


class Notify:
    """The service manager's socket, from the environment it gave us."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # A name that starts with @ is in the abstract namespace (unix(7)).
        self._address = "\0" + address[1:] if address.startswith("@") else address
        microseconds = environment.get("WATCHDOG_USEC", "")
        self.watchdog = int(microseconds) / 1e6 if microseconds.isdigit() else 0.0
        """Seconds within which systemd wants to hear of us each time; 0 when it does not care."""

    def __call__(self, state: str) -> None:
        """Tell a state, such as `READY=1`. A manager that is away is not our failure."""
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end,
        ):
            end.sendto(state.encode(), socket.MSG_DONTWAIT, self._address)
