"""What a look at the machine has read: nothing twice in one look, and little anew in the next.

Between looks only that is kept which does not change while a device is there: the identity and the
place of PCI functions, and what is told of CPUs and NUMA nodes. All else is read anew in each
look, and so is every folder and every link: what there is, is never remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from xce_nodeagent.host.event import Event

_LASTING = re.compile(
    r"/sys/bus/pci/devices/([^/]+)/"
    r"(?:class|vendor|device|subsystem_vendor|subsystem_device|revision|numa_node|local_cpulist)"
    r"|/sys/devices/system/.+"
)
_SYSTEM = frozenset({"cpu", "node"})


class Memory:
    """What is known from this look, and what outlasts it."""

    def __init__(self) -> None:
        self._texts: dict[str, str | None] = {}
        self._listings: dict[str, tuple[str, ...]] = {}
        self._links: dict[str, str | None] = {}
        self._kept: dict[str, str] = {}
        self._of: dict[str, list[str]] = {}

    def begin(self, events: Iterable[Event] | None) -> None:
        """Begin a new look, after these events; None: anything may have happened."""
        self._texts.clear()
        self._listings.clear()
        self._links.clear()
        if events is None:
            self._kept.clear()
            self._of.clear()
            return
        for event in events:
            # Which CPUs are near to a function changes with the CPUs.
            if event.subsystem in _SYSTEM:
                self.begin(None)
            elif event.subsystem == "pci":
                for name in self._of.pop(event.name, ()):
                    self._kept.pop(name, None)

    def text(self, name: str, read: Callable[[], str | None]) -> str | None:
        """Give what is in a file; `read` it where that is not known."""
        known = self._kept.get(name)
        if known is not None:
            return known
        if name not in self._texts:
            text = self._texts[name] = read()
            if text is not None and (lasting := _LASTING.fullmatch(name)):
                self._kept[name] = text
                self._of.setdefault(lasting[1] or "", []).append(name)
        return self._texts[name]

    def listing(self, name: str, read: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        """Give the names in a folder; `read` them where they are not known."""
        if name not in self._listings:
            self._listings[name] = read()
        return self._listings[name]

    def link(self, name: str, read: Callable[[], str | None]) -> str | None:
        """Give where a link leads; `read` it where that is not known."""
        if name not in self._links:
            self._links[name] = read()
        return self._links[name]
