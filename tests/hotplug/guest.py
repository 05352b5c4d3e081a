"""What runs inside: the monitors and the discovery of an agent, which tell what they see.

    guest.py TERMINAL

Lines of JSON come in: `{"write": [PATH, TEXT]}` or `{"run": [PROGRAM, ARGUMENT...]}`, each answered
by `{"did": "..."}`, empty where all went well. Each look is told as `{"events": [...], "nics":
{...}, "cold": ...}`, where `cold` says whether a look at everything finds the same.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tty
from pathlib import Path
from typing import Any

from xce_nodeagent.discovery import Discovery, scan
from xce_nodeagent.host import Host, linkmonitor, udev
from xce_nodeagent.host.event import AGAIN, Event
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.providers import all_providers

SETTLE_SECONDS = 0.2
SHOWN = (
    "pci_address", "pcie_root", "pcie_switch", "numa_node", "netdev", "state", "carrier", "mac",
    "rdma_device", "model",
)  # fmt: skip


class Told:
    """The line to the test."""

    def __init__(self, terminal: str) -> None:
        self.fd = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(self.fd)
        self._data = b""

    def say(self, **what: Any) -> None:
        """Tell something."""
        line = json.dumps(what).encode() + b"\n"
        while line:
            line = line[os.write(self.fd, line) :]

    def orders(self) -> list[dict[str, Any]]:
        """Give the orders that have come whole."""
        self._data += os.read(self.fd, 4096)
        *lines, self._data = self._data.split(b"\n")
        return [json.loads(line) for line in lines]


def main() -> None:
    """Look, tell, and listen, until nobody is there any more."""
    told = Told(sys.argv[1])
    links = linkmonitor.LinkMonitor()
    # As in the agent: links are told of by netlink.
    devices = udev.Monitor(set(udev.SUBSYSTEMS) - {"net"})
    providers = all_providers()
    discovery = Discovery(Host(), providers)
    seen = discovery.look()
    source = "udev" if Path("/run/udev/control").exists() else "kernel"
    told.say(events=[], nics=_nics(seen), cold=True, source=source)
    pending: set[Event] = set()
    while True:
        ready = select.select([told.fd, links, devices], [], [], SETTLE_SECONDS)[0]
        for monitor in (links, devices):
            if monitor in ready:
                pending.update(monitor.drain())
        if told.fd in ready:
            for order in told.orders():
                told.say(did=_follow(order))
        if not ready and pending:
            events, pending = pending, set()
            seen = discovery.look(seen, events)
            # What changed in this very moment is told by events that are there by now.
            cold = scan(Host(), providers, seen)
            while cold != seen and select.select([links, devices], [], [], 1.0)[0]:
                seen = discovery.look(seen, {*links.drain(), *devices.drain(), AGAIN})
                cold = scan(Host(), providers, seen)
            names = sorted(f"{one.action} {one.subsystem} {one.name}" for one in events)
            told.say(events=names, nics=_nics(seen), cold=cold == seen)


def _nics(seen: Inventory) -> dict[str, dict[str, Any]]:
    return {
        one.id: {name: one.attributes[name] for name in SHOWN if name in one.attributes}
        for one in seen.instances
        if one.type == "nic"
    }


def _follow(order: dict[str, Any]) -> str:
    """Do what the test says; say what went wrong."""
    try:
        if "write" in order:
            path, text = order["write"]
            Path(path).write_text(text, "utf-8")
        else:
            subprocess.run(order["run"], check=True, capture_output=True, text=True, timeout=30)
    except subprocess.SubprocessError as error:
        return f"{error}: {getattr(error, 'stderr', '')}"
    except OSError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main()
