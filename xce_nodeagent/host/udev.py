"""What changes on this host, as the kernel and udev tell it; the door to pyudev.

pyudev looks for libudev by `ctypes.util.find_library`, which forks: import this module before the
process gives up that right. Where libudev is missing, the module can be imported all the same.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from typing import Any

from xce_nodeagent.host.accel import CLASSES
from xce_nodeagent.host.event import LOST, Event
from xce_nodeagent.host.linkmonitor import skip

try:
    import pyudev
except ImportError:
    pyudev = None

SUBSYSTEMS = (
    "pci", "net", "infiniband", "infiniband_verbs", "infiniband_mad", "misc", "drm", "nvidia",
    "kfd", *CLASSES, "cxi_user", "hfi1_user", "module", "node", "cpu",
)  # fmt: skip
"""Where a change can be one of the inventory. A module that is loaded registers device numbers."""

BUFFER = 1 << 20
"""Bytes of events that the kernel keeps for us, if it lets us have so many: some thousands."""

AT_ONCE = 128
"""Events that are taken one by one; of more, it is enough to know that there were more."""


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
        self._socket = socket.socket(fileno=os.dup(self._monitor.fileno()))
        # libudev takes 128 MiB where it may. What does not fit costs one look at everything; to
        # read so many costs half a minute of this thread, which serves the jobs.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)

    def fileno(self) -> int:
        """Give the descriptor to wait for."""
        return int(self._monitor.fileno())

    def drain(self) -> tuple[Event, ...]:
        """Take the events that are there, without waiting; LOST stands for those that are not.

        A storm is not read to its end one by one: that would take a second of this thread, which
        serves the jobs, and a look at everything takes some milliseconds.
        """
        events: dict[Event, None] = {}
        try:
            for _ in range(AT_ONCE):
                device = self._monitor.poll(timeout=0)
                if device is None:
                    return tuple(events)
                events[Event(device.action or "", device.subsystem or "", device.sys_name)] = None
        except OSError:
            # ENOBUFS (netlink(7)), but pyudev looks at poll(2) first and says nothing but that it
            # failed. It does so until the error is taken, and the socket is readable all the while.
            self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        skip(self._socket)
        return (*events, LOST)
