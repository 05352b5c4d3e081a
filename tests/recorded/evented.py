"""Runs below umockdev: a recorded machine as this one, to which things happen, and who hears it.

    umockdev-wrapper python evented.py RECORD PATH...

Each of the devices is unbound, bound, removed and added. Prints one JSON line for each step: the
events that were heard, the instances, and whether a look after them finds what a look at
everything does.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
from pathlib import Path

from xce_nodeagent.discovery import Discovery, scan
from xce_nodeagent.host import Host, udev
from xce_nodeagent.host.event import Event
from xce_nodeagent.providers import all_providers

PATIENCE = 10.0
_HEARD = frozenset(f"E: SUBSYSTEM={name}" for name in udev.SUBSYSTEMS)


class Testbed:
    """libumockdev, by its C interface."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libumockdev.so.0")
        self._library.umockdev_testbed_new.restype = ctypes.c_void_p
        self._library.umockdev_testbed_get_root_dir.restype = ctypes.c_char_p
        self._self = ctypes.c_void_p(self._library.umockdev_testbed_new())
        self.root = Path(self._library.umockdev_testbed_get_root_dir(self._self).decode())

    def add(self, record: str) -> None:
        """Add the devices of a record."""
        if not self._library.umockdev_testbed_add_from_string(self._self, record.encode(), None):
            raise ValueError("umockdev does not take it")

    def remove(self, path: str) -> None:
        """Take a device away."""
        self._library.umockdev_testbed_remove_device(self._self, path.encode())

    def tell(self, path: str, action: str) -> None:
        """Send what the kernel and udev send."""
        self._library.umockdev_testbed_uevent(self._self, path.encode(), action.encode())


class Steps:
    """The machine, and what was seen of it."""

    def __init__(self, record: str) -> None:
        self.testbed = Testbed()
        self.testbed.add(record)
        self.blocks = {block.partition("\n")[0][3:]: block for block in record.split("\n\n")}
        self._monitor = udev.Monitor()
        self._discovery = Discovery(Host(), all_providers())
        self._seen = self._discovery.look()
        self.say([])

    def say(self, heard: list[Event]) -> None:
        """Tell how it is now."""
        cold = scan(Host(), all_providers(), self._seen)
        found = {one.id: [one.reason, one.attributes] for one in self._seen.instances}
        names = [f"{one.action} {one.subsystem} {one.name}" for one in heard]
        print(json.dumps({"heard": names, "found": found, "cold": cold == self._seen}), flush=True)  # noqa: T201  # what the test reads

    def heard(self, path: str, action: str, *gone: str) -> None:
        """Send an event, hear it after these devices have gone, look, and tell."""
        self.testbed.tell(f"/sys{path}", action)
        for name in gone:
            self.testbed.remove(f"/sys{name}")
        self._hear(1)

    def came(self, *records: str) -> None:
        """Add devices, of which umockdev tells by itself, hear of them all, look, and tell."""
        for record in records:
            self.testbed.add(record)
        lines = [line for record in records for line in record.splitlines()]
        self._hear(sum(line in _HEARD for line in lines))

    def _hear(self, count: int) -> None:
        events: list[Event] = []
        while len(events) < count and select.select([self._monitor], [], [], PATIENCE)[0]:
            events += self._monitor.drain()
        self._seen = self._discovery.look(self._seen, events)
        self.say(events)


def main() -> None:
    """Go through the steps, for each device."""
    record, *paths = sys.argv[1:]
    steps = Steps(Path(record).read_text("utf-8"))
    for path in paths:
        driver = steps.testbed.root / f"sys{path}/driver"
        bound = os.readlink(driver) if driver.is_symlink() else ""
        if bound:
            driver.unlink()
            steps.heard(path, "unbind")
            driver.symlink_to(bound)
            steps.heard(path, "bind")
        below = {
            name: block for name, block in steps.blocks.items() if f"{name}/".startswith(f"{path}/")
        }
        steps.heard(path, "remove", *sorted(below, reverse=True))
        steps.came(*(below[name] for name in sorted(below)))


if __name__ == "__main__":
    main()
