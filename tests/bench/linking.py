"""From a change of a link to the inventory that tells of it, and on to the reader of a fleet.

The agent runs in a network of its own, where a bridge seems to be a card (tests/changes/staged.py).
An administrator's word takes its link down and up; the kernel tells of that at once. It is counted
from before the word is given until a stream of GetInventory has told the new state; and until a
`Watcher` has it, which follows a real etcd that the agent reports to, in the same network.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from figures import Figure, p50
from started import HERE, PATIENCE, Agent, Place, agent

sys.path.insert(0, str(HERE.parent / "upstream"))

import etcds  # of that path

from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.fleet import Fleet
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.watcher import Watcher

MOST_MS = 200
FLEET_MS = 250
CLONE_NEWNET = 0x40000000
STORE, PEER = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
"""In a network that nobody else is in."""
_STAGED = HERE.parent / "changes" / "staged.py"
_MADE = (
    "link add va type veth peer name vb", "link add nic0 type bridge", "link set va master nic0",
    "link set va up", "link set vb up", "link set nic0 up",
)  # fmt: skip


def figures(place: Place, profile: str, times: int) -> Iterator[Figure]:
    """Measure the way to the inventory; nothing where no PCI function can stand behind the NIC."""
    if not (before := _before(place, "heard")):
        return
    with (
        agent(place, "heard", profile=profile, ports=(24000, 24999), before=before) as heard,
        socket.socket(socket.AF_UNIX) as stream,
    ):
        stream.settimeout(PATIENCE)
        stream.connect(str(heard.socket))
        call = {"method": "io.xce.NodeAgent.GetInventory", "parameters": {}, "more": True}
        stream.sendall(json.dumps(call).encode() + b"\0")
        states = _states(stream)

        def until(wanted: str) -> None:
            while next(states) != wanted:
                pass

        took = list(_changes(heard, times, until))
    note = "from the word to the stream of inventories; the target is in milliseconds"
    yield from _shown("event_to_inventory", took, MOST_MS, note)


def to_fleet(place: Place, profile: str, times: int) -> Iterator[Figure]:
    """Measure the whole way, from the word to the snapshot of who follows the fleet."""
    before = _before(place, "followed")
    if not before or not shutil.which("etcd"):
        return
    extra = "[upstream.etcd]", f'endpoints = ["{STORE}"]'
    ports = (23000, 23999)
    with (
        agent(place, "followed", profile=profile, ports=ports, before=before, extra=extra) as told,
        _inside(told),
        _store(place.folder / "followed-etcd"),
        contextlib.closing(Client([STORE], Random(0))) as client,  # noqa: S311  # no secret
        Watcher(client, Keys()) as reader,
    ):

        def until(wanted: str) -> None:
            reader.wait_for(lambda fleet: _nic(fleet) == wanted, seconds=2 * PATIENCE)

        took = list(_changes(told, times, until))
    note = "from the word, through agent and etcd, to a reader's snapshot; the target as above"
    yield from _shown("event_to_fleet", took, FLEET_MS, note)


def _shown(name: str, took: Sequence[float], most: float, note: str) -> Iterator[Figure]:
    yield Figure(f"{name}_p50", p50(took), "ms", None, most, len(took), note)
    yield Figure(f"{name}_longest", max(took), "ms", None, most, len(took), note)


def _before(place: Place, name: str) -> list[str]:
    """Give the program that becomes an agent in a network of its own; nothing if there can be none.

    A PCI function that is no network card stands behind the NIC.
    """
    address = _function()
    if not address:
        return []
    folder = place.folder / f"staged-{name}"
    folder.mkdir()
    return [sys.executable, str(_STAGED), str(folder), address]


def _changes(heard: Agent, times: int, until: Callable[[str], None]) -> Iterator[float]:
    """Take the link down and up; `until` waits for the state that is told."""
    with subprocess.Popen(
        ["nsenter", f"--net=/proc/{heard.process.pid}/ns/net", "ip", "-batch", "-"],
        stdin=subprocess.PIPE, text=True, bufsize=1,
    ) as words:  # fmt: skip
        assert words.stdin is not None
        words.stdin.write("".join(f"{line}\n" for line in _MADE))
        until("up")
        for number in range(times):
            wanted = "up" if number % 2 else "down"
            time.sleep(0.3)  # as if nothing had been told for a while
            began = time.monotonic()
            words.stdin.write(f"link set nic0 {wanted}\n")
            until(wanted)
            yield (time.monotonic() - began) * 1e3
        words.stdin.close()


@contextlib.contextmanager
def _inside(one: Agent) -> Iterator[None]:
    """Have this thread, and what it starts, in the network of an agent."""
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.ExitStack() as stack:
        for path in ("/proc/thread-self/ns/net", f"/proc/{one.process.pid}/ns/net"):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            if path.startswith("/proc/thread-self"):
                stack.callback(libc.setns, fd, CLONE_NEWNET)
            elif libc.setns(fd, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield


@contextlib.contextmanager
def _store(folder: Path) -> Iterator[None]:
    folder.mkdir()
    etcd = etcds.Etcd(folder, url=STORE, peer=PEER)
    try:
        etcd.start()
        yield
    finally:
        etcd.kill()


def _nic(fleet: Fleet) -> Any:
    """Give the state of the NIC of the one node that there is."""
    for node in fleet.nodes.values():
        if found := node.inventory:
            states = [one.attributes for one in found.instances if one.provider == "nic"]
            return states[0].get("state") if states else None
    return None


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
