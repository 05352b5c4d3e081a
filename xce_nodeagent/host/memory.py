"""What a look at the machine has read: nothing twice in one look, and little anew in the next.

Between looks two things are kept.

- What a device is: that does not change while it is there, its driver bound and its name the same.
  An event that names the device ends that.
- How a card is, where the kernel tells of each change. A card is what is in one slot of the PCI
  bus, with the interfaces, RDMA devices and nodes that hang on it, because its functions depend on
  each other. An event of any of them ends that for all of them. An event of what is in no slot
  ends it for all cards: a bond changes what the RDMA devices below it say. So does an event of a
  device that nobody knows.

All else is read anew in each look; so is what devices there are, and how they are joined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from xce_nodeagent.host.event import AGAIN, Event

_LASTING = re.compile(
    r"/sys/bus/pci/devices/([^/]+)/"
    r"(?:class|vendor|device|subsystem_vendor|subsystem_device|revision|numa_node|local_cpulist"
    r"|max_link_speed|max_link_width|driver|uevent|physfn)"
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

_STATE = re.compile(
    r"/sys/class/(net)/([^/]+)(?:/(?:address|operstate|carrier|speed|master|brport/bridge))?"
    r"|/sys/class/(infiniband)/([^/]+)"
    r"(?:/ports/[0-9]+/(?:state|phys_state|rate|gid_attrs/ndevs(?:/[0-9]+)?))?"
    r"|/sys/bus/(pci)/devices/([^/]+)"
    r"(?:/sriov_numvfs|/drm(?:/(?:card|renderD)[0-9]+/(?:dev|gt))?)?"  # codespell:ignore
)
"""How a card is; the groups are where a device's link is, and its name."""

_COUNTED = re.compile(r"/sys/bus/pci/devices(?:/[^/]+(?:/sriov_numvfs)?)?")
"""What changes as well where functions come and go, virtual ones, too."""

_FOLDERS = {
    "net": "/sys/class/net/{}/device",
    "infiniband": "/sys/class/infiniband/{}/device",
    "infiniband_verbs": "/sys/class/infiniband_verbs/{}/device",
    "infiniband_mad": "/sys/class/infiniband_mad/{}/device",
    "drm": "/sys/class/drm/{}/device",
    "pci": "",  # its name is its place
}
"""By subsystem: the link that says what a device hangs on."""

_SLOT = re.compile(r"/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-7](?=/|$)")

MOST = 50_000
"""Answers that are kept: a large machine has some thousands. What has more forgets all of them."""

_SYSTEM = frozenset({"cpu", "node"})
_STAY = frozenset({"change", "bind", "unbind"})
"""Actions after which the same functions are there."""

_NOTHING: Any = object()

Known = TypeVar("Known")


class Memory:
    """What is known from this look, and what outlasts it.

    Keys have a letter for the question before the path: one path may be a folder and a link.
    `where` follows a link, and gives None where there is none.
    """

    def __init__(self, where: Callable[[str], str | None]) -> None:
        self._where = where
        self._seen: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}
        self._of: dict[str, set[str]] = {}  # keys of what lasts, by the device's name
        self._in: dict[str, set[str]] = {}  # keys of how a card is, by its slot
        self._counted: set[str] = set()
        self._slots: dict[tuple[str, str], str] = {}  # by subsystem and name

    def begin(self, events: Iterable[Event] | None) -> None:
        """Begin a new look, after these events; None: anything may have happened."""
        self._seen.clear()
        events = None if events is None or len(self._kept) > MOST else tuple(events)
        # Which CPUs are near to a function changes with the CPUs.
        if events is None or any(event.subsystem in _SYSTEM for event in events):
            for known in (self._kept, self._of, self._in, self._counted, self._slots):
                known.clear()
            return
        for event in events:
            self._forget(self._of.pop(event.name, ()))
        for event in events:
            if event.subsystem in _FOLDERS or event == AGAIN:
                self._forget_cards(self._concerned(event))
            if event.subsystem == "pci" and event.action not in _STAY:
                self._forget(self._counted)
                self._counted.clear()

    def known(self, kind: str, name: str, ask: Callable[[], Known]) -> Known:
        """Give what was answered to this question; `ask` it where that is not known."""
        key = kind + name
        answer: Known = self._kept.get(key, _NOTHING)
        if answer is _NOTHING:
            answer = self._seen.get(key, _NOTHING)
        if answer is not _NOTHING:
            return answer
        answer = self._seen[key] = ask()
        if self._lasts(kind, name, key):
            self._kept[key] = answer
        return answer

    def _lasts(self, kind: str, name: str, key: str) -> bool:
        """Say whether an answer outlasts this look; note then what ends it."""
        lasting = _LASTING.fullmatch(name) or (kind in "ld" and _LASTING_LINK.fullmatch(name))
        if lasting:
            if lasting.lastindex:
                self._of.setdefault(lasting[lasting.lastindex], set()).add(key)
            return True
        if state := _STATE.fullmatch(name):
            subsystem, device = (part for part in state.groups() if part)
            slot = self._slot(subsystem, device)
            # The kernel tells of a port by its interface; where it has none, by nothing.
            if not slot or (subsystem == "infiniband" and not self._has_interface(slot)):
                return False
            self._in.setdefault(slot, set()).add(key)
        counted = _COUNTED.fullmatch(name)
        if counted:
            self._counted.add(key)
        return bool(state or counted)

    def _slot(self, subsystem: str, name: str) -> str:
        """Give the slot of the PCI bus that a device hangs in; empty where it is in none."""
        if subsystem == "pci":
            path = f"/{name}"
        elif known := self._slots.get((subsystem, name)):
            return known
        else:
            link = _FOLDERS[subsystem].format(name)
            path = self.known("l", link, lambda: self._where(link)) or ""
        slot: str = next(iter(_SLOT.findall(path)[-1:]), "")
        if slot and subsystem != "pci":
            self._slots[subsystem, name] = slot
        return slot

    def _has_interface(self, slot: str) -> bool:
        return any(of == slot for (subsystem, _), of in self._slots.items() if subsystem == "net")

    def _concerned(self, event: Event) -> set[str]:
        """Give the slots that an event is about, before and after it; none where it is no card's.

        A name may be that of another device since, and a device may have another name.
        """
        if event == AGAIN:
            return set()
        before = self._slots.pop((event.subsystem, event.name), "")
        after = self._slot(event.subsystem, event.name)
        if after and not before:
            for (subsystem, name), slot in tuple(self._slots.items()):
                if (subsystem, slot) == (event.subsystem, after) and name != event.name:
                    self._forget(self._of.pop(name, ()))
                    del self._slots[subsystem, name]
        return {before, after} - {""}

    def _forget_cards(self, slots: Collection[str]) -> None:
        for slot in slots or tuple(self._in):
            self._forget(self._in.pop(slot, ()))

    def _forget(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._kept.pop(key, None)
