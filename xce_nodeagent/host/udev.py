"""What changes on this host, as the kernel and udev tell it; the door to pyudev.

pyudev looks for libudev by `ctypes.util.find_library`, which forks: import this module before the
process gives up that right. Where libudev is missing, the module can be imported all the same.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from msgspec import Struct

try:
    import pyudev
except ImportError:
    pyudev = None

SUBSYSTEMS = (
    "pci", "net", "infiniband", "infiniband_verbs", "infiniband_mad", "drm", "nvidia", "kfd",
    "accel", "node", "cpu",
)  # fmt: skip
"""Where a change can be one of the inventory."""


class Event(Struct, frozen=True):
    """Something came, went or changed. `name` is the kernel's own of the device."""

    action: str
    subsystem: str
    name: str


class Monitor:
    """A socket that becomes readable when something changes: `fileno` is for an event loop.

    Where udev runs, its events are taken: they come when names and nodes are in place. Elsewhere
    (most containers) the kernel's own are. Raise OSError where libudev is missing or refuses.
    """

    def __init__(self, subsystems: Collection[str] = SUBSYSTEMS) -> None:
        if pyudev is None:
            raise OSError("libudev cannot be loaded: install it (libudev1), or rescan by a timer")
        source = "udev" if os.path.exists("/run/udev/control") else "kernel"
        self._monitor: Any = pyudev.Monitor.from_netlink(pyudev.Context(), source=source)
        for subsystem in subsystems:
            self._monitor.filter_by(subsystem)
        self._monitor.start()

    def fileno(self) -> int:
        """Give the descriptor to wait for."""
        return int(self._monitor.fileno())

    def drain(self) -> tuple[Event, ...]:
        """Take all events that are there, without waiting."""
        events: list[Event] = []
        while (device := self._monitor.poll(timeout=0)) is not None:
            events.append(Event(device.action or "", device.subsystem or "", str(device.sys_name)))
        return tuple(events)
