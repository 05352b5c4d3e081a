"""From a change of a link to the inventory that tells of it, through a real agent.

The agent runs in a network of its own, where a bridge seems to be a card (tests/changes/staged.py).
An administrator's word takes its link down and up; the kernel tells of that at once. It is counted
from before the word is given until a stream of GetInventory has told the new state.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import Figure, p50
from started import HERE, PATIENCE, Agent, Place, agent

MOST_MS = 200
_STAGED = HERE.parent / "changes" / "staged.py"
_MADE = (
    "link add va type veth peer name vb", "link add nic0 type bridge", "link set va master nic0",
    "link set va up", "link set vb up", "link set nic0 up",
)  # fmt: skip


def figures(place: Place, profile: str, times: int) -> Iterator[Figure]:
    """Measure it so many times; nothing where no PCI function can stand behind the NIC."""
    address = _function()
    if not address:
        return
    folder = place.folder / "staged"
    folder.mkdir()
    before = [sys.executable, str(_STAGED), str(folder), address]
    with agent(place, "heard", profile=profile, ports=(24000, 24999), before=before) as heard:
        took = list(_changes(heard, times))
    note = "from the word to the stream of inventories; the target is in milliseconds"
    yield Figure("event_to_inventory_p50", p50(took), "ms", None, MOST_MS, len(took), note)
    yield Figure("event_to_inventory_longest", max(took), "ms", None, MOST_MS, len(took), note)


def _changes(heard: Agent, times: int) -> Iterator[float]:
    with (
        subprocess.Popen(
            ["nsenter", f"--net=/proc/{heard.process.pid}/ns/net", "ip", "-batch", "-"],
            stdin=subprocess.PIPE, text=True, bufsize=1,
        ) as words,
        socket.socket(socket.AF_UNIX) as stream,
    ):  # fmt: skip
        assert words.stdin is not None
        stream.settimeout(PATIENCE)
        stream.connect(str(heard.socket))
        call = {"method": "io.xce.NodeAgent.GetInventory", "parameters": {}, "more": True}
        stream.sendall(json.dumps(call).encode() + b"\0")
        states = _states(stream)
        words.stdin.write("".join(f"{line}\n" for line in _MADE))
        while next(states) != "up":
            pass
        for number in range(times):
            wanted = "up" if number % 2 else "down"
            time.sleep(0.3)  # as if nothing had been told for a while
            began = time.monotonic()
            words.stdin.write(f"link set nic0 {wanted}\n")
            while next(states) != wanted:
                pass
            yield (time.monotonic() - began) * 1e3
        words.stdin.close()


def _states(stream: socket.socket) -> Iterator[Any]:
    """Give the state of the NIC in each inventory that is told."""
    data = b""
    while True:
        while b"\0" not in data:
            chunk = stream.recv(1 << 16)
            if not chunk:
                raise RuntimeError("the agent has ended")
            data += chunk
        message, _, data = data.partition(b"\0")
        instances = json.loads(message)["parameters"]["instances"]
        nics = [one["attributes"] for one in instances if one["provider"] == "nic"]
        yield nics[0].get("state") if nics else None


def _function() -> str:
    """Find a PCI function that is no network card."""
    for path in sorted(Path("/sys/bus/pci/devices").glob("*")):
        if not (path / "class").read_text("ascii").startswith("0x02"):
            return path.name
    return ""
