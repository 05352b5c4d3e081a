"""What a look at the machine has read: nothing twice in one look, and little anew in the next.

Between looks only that is kept which does not change while a device is there, its driver bound and
its name the same: what it is. An event that names the device ends that. All else is read anew in
each look; so is what devices there are, and how they are joined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from xce_nodeagent.host.event import Event

_LASTING = re.compile(
    r"/sys/bus/pci/devices/([^/]+)/"
    r"(?:class|vendor|device|subsystem_vendor|subsystem_device|revision|numa_node|local_cpulist"
    r"|max_link_speed|max_link_width|driver|uevent)"
    r"|/sys/class/net/([^/]+)/"
    r"(?:ifindex|iflink|type|dev_port|dev_id|uevent|phys_port_name|device)"
    r"|/sys/class/infiniband/([^/]+)/"
    r"(?:node_type|board_id|fw_ver|device|ports|ports/[0-9]+/link_layer)"
    r"|/sys/class/infiniband_(?:verbs|mad)/([^/]+)/(?:dev|ibdev)"
    r"|/sys/devices/system/.*"
)
"""What lasts; the group is the name of the device, which its events have, too."""

_LASTING_LINK = re.compile(
    r"/sys/devices/pci(?:[^/]+/)+([0-9a-f:]+\.[0-7])(?:/(?:subsystem|physfn))?"
    r"|/sys/class/infiniband/([^/]+)|/sys/bus/pci/devices/([^/]+)"
)
"""The same, of where links lead, and what follows from it: what is in these folders changes."""

MOST = 50_000
"""Answers that are kept: a large machine has some thousands. What has more forgets all of them."""

_SYSTEM = frozenset({"cpu", "node"})

Known = TypeVar("Known")


class Memory:
    """What is known from this look, and what outlasts it.

    Keys have a letter for the question before the path: one path may be a folder and a link.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}
        self._of: dict[str, list[str]] = {}

    def begin(self, events: Iterable[Event] | None) -> None:
        """Begin a new look, after these events; None: anything may have happened."""
        self._seen.clear()
        if events is None or len(self._kept) > MOST:
            self._kept.clear()
            self._of.clear()
            return
        for event in events:
            # Which CPUs are near to a function changes with the CPUs.
            if event.subsystem in _SYSTEM:
                self.begin(None)
            else:
                for name in self._of.pop(event.name, ()):
                    self._kept.pop(name, None)

    def known(self, kind: str, name: str, ask: Callable[[], Known]) -> Known:
        """Give what was answered to this question; `ask` it where that is not known."""
        key = kind + name
        if key in self._kept:
            kept: Known = self._kept[key]
            return kept
        if key in self._seen:
            seen: Known = self._seen[key]
            return seen
        answer = self._seen[key] = ask()
        lasting = _LASTING.fullmatch(name) or (kind in "ld" and _LASTING_LINK.fullmatch(name))
        if lasting:
            self._kept[key] = answer
            if lasting.lastindex:
                self._of.setdefault(lasting[lasting.lastindex], []).append(key)
        return answer
