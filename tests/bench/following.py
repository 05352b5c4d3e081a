"""What it costs to read a fleet from a real store, and to follow it, beside doing that by hand."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from figures import Figure, latency
from msgspec import structs

sys.path.insert(0, str(Path(__file__).parents[1] / "upstream"))

import etcds
import fleets

from xce_nodeagent.upstream import etcdwire, packing
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.report import HEAD, Report, digest
from xce_nodeagent.upstream.shape import State
from xce_nodeagent.upstream.watcher import Watcher

READER = Path(__file__).with_name("fleet_reader.py")
KEYS = Keys()
CHANGING = 400
"""Nodes that change in turn."""
DIFFERENT = 960
"""Nodes whose reports are made; a multiple of all that goes by turns in them."""
TOGETHER = 4
"""Nodes whose reports share a transaction, so that one writer comes to a thousand a second."""


def figures(nodes: int, changes: int, samples: int) -> list[Figure]:
    """Fill a store with so many nodes, read it, and follow so many changes of its nodes.

    `samples` changes are made one by one, to see when each is in a snapshot.
    """
    if not shutil.which("etcd"):
        raise RuntimeError("etcd is not on this machine")
    with etcds.running("--quota-backend-bytes", str(4 << 30)) as etcd:
        store = Client([etcd.url], Random(1))  # noqa: S311  # an order
        with contextlib.closing(store):
            stored = _fill(store, nodes)
            writer = _Writer(store, min(nodes, CHANGING))
            late = _late(etcd.url, writer, samples)
            sides = {side: _side(side, etcd.url, nodes, changes, writer) for side in _SIDES}
    product, floor = sides["product"], sides["floor"]
    what = f"{nodes} nodes, {stored / nodes:.0f} bytes each; floor: http.client, json, base64"
    rate = f"{product['rate']:.0f} reports a second of {nodes} nodes; floor: as above"
    return [
        *latency("fleet_change_seen", *late, (None, None), f"of {nodes} nodes; floor: the commit"),
        Figure("fleet_read_10000", product["seconds"], "s", floor["seconds"], 8, 1, what),
        Figure(
            "fleet_memory_bytes_per_node", product["bytes"] / nodes, "bytes",
            floor["bytes"] / nodes, 3, 1, "resident; floor: the keys and values alone",
        ),
        Figure(
            "fleet_follow_cpu_per_change", product["cpu_ms"], "ms", floor["cpu_ms"], 10,
            changes, f"CPU; {rate}",
        ),
    ]  # fmt: skip


def _late(url: str, writer: _Writer, samples: int) -> tuple[list[float], list[float]]:
    """Give the milliseconds from before a commit to its snapshot, and to its answer."""
    seen, answered = [], []
    reader = Watcher(Client([url], Random(3)), KEYS)  # noqa: S311  # an order
    with reader:
        reader.wait_for(lambda _: True, seconds=60)
        writer.one()
        reader.wait_for(lambda fleet: fleet.revision >= writer.revision, seconds=60)
        for _ in range(samples):
            began = time.monotonic()
            writer.one()
            answered.append(1000 * (time.monotonic() - began))
            reader.wait_for(lambda fleet: fleet.revision >= writer.revision, seconds=60)
            seen.append(1000 * (time.monotonic() - began))
    return seen, answered


_SIDES = ("product", "floor")


def _fill(store: Client, nodes: int) -> int:
    """Put the fleet; give the bytes of its keys and values."""
    lease = store.grant(3600).ID
    stored = 0
    shapes: set[bytes] = set()
    operations: list[etcdwire.Operation] = []
    for at in range(nodes):
        for key, value in _keys(at).items():
            if key in shapes:
                continue
            if key.startswith(KEYS.all("shape")):
                shapes.add(key)
            operations.append(etcdwire.put(key, value))
            stored += len(key) + len(value)
        operations.append(etcdwire.put(KEYS.live(fleets.name(at)), fleets.live(at), lease))
        if len(operations) > 100:
            store.txn((), operations)
            operations = []
    if operations:
        store.txn((), operations)
    return stored


def _keys(at: int) -> dict[bytes, bytes]:
    """Give a node's keys; past the first thousand the hardware of another under a new name."""
    one = fleets.reported(at % DIFFERENT)
    node, boot = fleets.name(at), fleets.boot(at)
    number = one.head.generation.rpartition(":")[2]
    head = structs.replace(
        one.head, node=node, agent=fleets.agent(at), boot_id=boot, generation=f"{boot}:{number}"
    )
    entries = {**one.entries, HEAD: packing.pack(head)}
    found = {KEYS.entry(node, name): data for name, data in entries.items()}
    return {KEYS.shape(one.shape): one.shape_data, **found}


class _Writer:
    """Writes reports: of each node in turn a card is drained, and then is not."""

    def __init__(self, store: Client, nodes: int) -> None:
        self._store = store
        self._steps = [_toggled(at, fleets.reported(at), drained=on) for on in (True, False)
                       for at in range(nodes)]  # fmt: skip
        self._at = 0
        self.revision = 0

    def one(self) -> None:
        """Write the next report."""
        told = self._store.txn((), self._steps[self._at])
        self._at = (self._at + 1) % len(self._steps)
        self.revision = told.header.revision

    def write(self, events: int) -> float:
        """Write until there were so many events; give how many reports a second that was."""
        began, count, written = time.monotonic(), 0, 0
        while written < events:
            operations = []
            for _ in range(TOGETHER):
                operations += self._steps[self._at]
                self._at = (self._at + 1) % len(self._steps)
            self._store.txn((), operations)
            written += len(operations)
            count += TOGETHER
            # A thousand a second, and no more: the reader's cost is asked, not how far it goes.
            ahead = count / 1000 - (time.monotonic() - began)
            if ahead > 0:
                time.sleep(ahead)
        return count / (time.monotonic() - began)


def _toggled(at: int, one: Report, *, drained: bool) -> list[etcdwire.Operation]:
    """Give the next report of a node as a delta: its head, and the state of one instance."""
    entry = "state/ff00:00:bench"
    state = packing.pack(State(drained=drained, reason="bench" * (1 + drained)))
    report = digest({**one.entries, entry: state})
    head = packing.pack(structs.replace(one.head, report=report, number=9))
    node = fleets.name(at)
    return [etcdwire.put(KEYS.entry(node, name), data) for name, data in
            ((entry, state), (HEAD, head))]  # fmt: skip


def _side(side: str, url: str, nodes: int, changes: int, writer: _Writer) -> dict[str, Any]:
    events = 2 * changes
    with _running(side, url, nodes, events) as reader:
        assert reader.stdout is not None
        started = json.loads(reader.stdout.readline())
        rate = writer.write(events + 2 * TOGETHER)
        ended = json.loads(reader.stdout.readline())
    return {**started, "rate": rate, "cpu_ms": 2000 * ended["cpu"]}


@contextlib.contextmanager
def _running(side: str, url: str, nodes: int, events: int) -> Iterator[subprocess.Popen[str]]:
    prefix = KEYS.prefix.decode()
    command = [sys.executable, str(READER), side, url, prefix, str(nodes), str(events)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
