"""A thousand agents' reporters and one etcd: how soon a reader sees a change, and what it costs.

The reporters are the product's own, a thread each, in four processes; etcd is a real one, with its
data in memory; the reader is the product's. The floor of a change is one put by hand, seen by one
stream that is read by hand, at the same time and on the same host: all that lies above it is ours.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import shutil
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from figures import ENOUGH_FOR_P99, Figure, p50, p99
from started import HERE

sys.path.append(str(HERE.parent))

from upstream import etcds, fleets, swarm  # of that path

from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.fleet import Fleet
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.watcher import Watcher

NAMES = ("fleet_start", "fleet_quiet", "fleet_event", "fleet_bytes", "fleet_change",
         "fleet_reconnect")  # fmt: skip
"""What the names of these figures begin with."""
ASKED_MS = 250.0
"""From a change on a node to a reader's fleet, at p99."""
PATIENCE = 120.0
WINDOW = 1.0
"""Seconds over which a rate is taken."""

# A store that is away is meant here, and no news.
logging.getLogger("xce_nodeagent").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Size:
    """How many reporters, and what is done to them."""

    count: int
    processes: int
    lease: int
    quiet_seconds: float
    changes: int
    rate: float
    """Changes in a second, in all."""
    away_seconds: float
    cap: float
    """Seconds between two tries at most; reached by all while the store is away."""


USUAL = Size(1000, 4, 30, 10.0, 1000, 40.0, 20.0, 8.0)
QUICK = Size(30, 1, 3, 1.2, 40, 40.0, 1.5, 1.0)


def figures(size: Size) -> list[Figure]:
    """Measure all of it."""
    if not (shutil.which("etcd") and shutil.which("etcdctl")):
        raise RuntimeError("needs etcd and etcdctl, from etcd-server and etcd-client")
    with etcds.running() as etcd:
        options = {"processes": size.processes, "lease": size.lease, "cap": size.cap}
        with swarm.running([etcd.url], size.count, **options) as agents:
            return list(_measured(size, etcd, agents))


def _measured(size: Size, etcd: etcds.Etcd, agents: swarm.Swarm) -> Iterator[Figure]:
    client = Client([etcd.url], Random(0))  # noqa: S311  # which member comes first
    with Watcher(client, Keys(agents.prefix), grace=PATIENCE) as reader:
        began, alone = time.monotonic(), etcd.metric("process_resident_memory_bytes")
        agents.start()
        agents.settle()
        yield Figure(
            f"fleet_start_{size.count}", time.monotonic() - began, "s", samples=size.count,
            note="all reporters come up at once, with nothing in the store",
        )  # fmt: skip
        _same(agents, reader)
        grown = etcd.metric("process_resident_memory_bytes") - alone
        yield Figure(
            "fleet_start_etcd_bytes_per_node", grown / size.count, "bytes", samples=size.count,
            note="by which etcd has grown: a connection, a lease, and the keys with their history",
        )  # fmt: skip
        yield from _quiet(size, etcd, agents)
        yield from _changes(size, etcd, agents, reader)
        yield from _reconnect(size, etcd, agents)
        _same(agents, reader)


def _same(agents: swarm.Swarm, reader: Watcher) -> None:
    """Wait until the reader has what each agent has to tell; raise where it never does."""
    agents.settle()
    wanted = agents.reports()

    def whole(fleet: Fleet) -> bool:
        found = {name: node.head.report for name, node in fleet.nodes.items() if node.head}
        return found == wanted and all(node.available for node in fleet.nodes.values())

    reader.wait_for(whole, seconds=PATIENCE)


# ---- nothing happens -------------------------------------------------------------------------


def _quiet(size: Size, etcd: etcds.Etcd, agents: swarm.Swarm) -> Iterator[Figure]:
    asked, revision, used = etcd.requests(), etcd.revision(), agents.cost()["cpu"]
    busy, began = etcd.metric("process_cpu_seconds_total"), time.monotonic()
    time.sleep(size.quiet_seconds)
    took = time.monotonic() - began
    alive = etcd.requests()["LeaseKeepAlive"] - asked["LeaseKeepAlive"]
    yield Figure(
        "fleet_quiet_writes", etcd.revision() - revision, "writes", target=0, samples=size.count,
        note=f"by {size.count} reporters in {took:.0f} s in which nothing changes",
    )  # fmt: skip
    yield Figure(
        "fleet_quiet_keep_alives", alive / size.count / took * size.lease / 3, "1/third",
        target=1.1, samples=alive, note="by each in a third of its lease",
    )  # fmt: skip
    yield Figure(
        "fleet_quiet_keep_alive_etcd_cpu",
        1e3 * (etcd.metric("process_cpu_seconds_total") - busy) / max(1, alive), "ms",
        samples=alive, note="of etcd's, for a keep-alive",
    )  # fmt: skip
    yield Figure(
        "fleet_quiet_keep_alive_agent_cpu",
        1e3 * (agents.cost()["cpu"] - used) / max(1, alive), "ms",
        samples=alive, note="of an agent's, for a keep-alive",
    )  # fmt: skip


# ---- nodes change ----------------------------------------------------------------------------


class Seen:
    """Waits in the reader's thread for the jobs that nodes were told to have."""

    def __init__(self, reader: Watcher) -> None:
        self.took: list[float] = []
        self._wanted: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()
        self._reader = reader
        self._cancel = reader.subscribe(self._look)

    def expect(self, at: int, job: str, told: float) -> None:
        """Note when a node was told of its job."""
        with self._lock:
            self._wanted[fleets.name(at)] = job, told
        self._look(self._reader.snapshot)

    def _look(self, fleet: Fleet) -> None:
        now = time.monotonic()
        with self._lock:
            for name, (job, told) in list(self._wanted.items()):
                if any(one.job == job for one in fleet.nodes[name].bindings):
                    del self._wanted[name]
                    self.took.append(1e3 * (now - told))

    def close(self) -> None:
        """Wait for all; raise where one is never seen."""
        end = time.monotonic() + PATIENCE
        while self._wanted:
            if time.monotonic() > end:
                raise RuntimeError(f"{len(self._wanted)} changes were never seen")
            time.sleep(0.01)
        self._cancel()


def _changes(
    size: Size, etcd: etcds.Etcd, agents: swarm.Swarm, reader: Watcher
) -> Iterator[Figure]:
    states = agents.states()
    before, busy = sum(one["bytes"] for one in states.values()), agents.cost()["cpu"]
    whole = before / size.count
    seen, by_hand = Seen(reader), ByHand(etcd.url)
    order = list(range(size.count))
    Random(1).shuffle(order)  # noqa: S311  # the same nodes each time
    due = time.monotonic()
    for number in range(size.changes):
        due += 1 / size.rate
        time.sleep(max(0.0, due - 0.5 / size.rate - time.monotonic()))
        by_hand.put()
        time.sleep(max(0.0, due - time.monotonic()))
        at = order[number % size.count]
        seen.expect(at, f"c{number}", agents.tell(at, f"c{number}"))
    seen.close()
    by_hand.close()
    agents.settle()
    written = sum(one["bytes"] for one in agents.states().values()) - before
    note = (
        f"{size.count} nodes, {size.rate:g} changes a second; asked: {ASKED_MS:g} ms at p99;"
        " floor: a put and a stream by hand"
    )
    count = len(seen.took)
    for name, of in (("p50", p50), ("p99", p99)):
        if name == "p50" or count >= ENOUGH_FOR_P99:
            floor = of(by_hand.took)
            yield Figure(
                f"fleet_event_to_reader_{name}", of(seen.took), "ms", floor,
                round(ASKED_MS / floor, 1), count, note,
            )  # fmt: skip
    yield Figure(
        "fleet_bytes_per_change", written / size.changes, "bytes", samples=size.changes,
        note=f"keys and values; the whole report of a node has {whole:.0f}",
    )  # fmt: skip
    yield Figure(
        "fleet_change_agent_cpu", 1e3 * (agents.cost()["cpu"] - busy) / size.changes, "ms",
        samples=size.changes, note="of an agent's, for a change; with the keep-alive of all",
    )  # fmt: skip


class ByHand:
    """A put, and a stream that sees it, with nothing of the product between."""

    def __init__(self, url: str) -> None:
        self.took: list[float] = []
        self._put: list[float] = []
        place = url.removeprefix("http://")
        self._key = b64encode(b"/by-hand").decode()
        self._writing = http.client.HTTPConnection(place, timeout=PATIENCE)
        self._reading = http.client.HTTPConnection(place, timeout=PATIENCE)
        self._reading.request(
            "POST", "/v3/watch", json.dumps({"create_request": {"key": self._key}})
        )
        self._stream = self._reading.getresponse()
        self._stream.readline()  # it is open
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def put(self) -> None:
        """Write once."""
        self._put.append(time.monotonic())
        value = b64encode(str(len(self._put)).encode()).decode()
        self._writing.request("POST", "/v3/kv/put", json.dumps({"key": self._key, "value": value}))
        self._writing.getresponse().read()

    def _follow(self) -> None:
        for line in self._stream:
            now = time.monotonic()
            for event in json.loads(line)["result"].get("events", ()):
                value = b64decode(event["kv"]["value"])
                if value == b"end":
                    return
                self.took.append(1e3 * (now - self._put[int(value) - 1]))

    def close(self) -> None:
        """Wait for the last."""
        value = b64encode(b"end").decode()
        self._writing.request("POST", "/v3/kv/put", json.dumps({"key": self._key, "value": value}))
        self._writing.getresponse().read()
        self._thread.join(PATIENCE)
        self._writing.close()
        self._reading.close()


# ---- the store goes away, and comes back -------------------------------------------------------


def _reconnect(size: Size, etcd: etcds.Etcd, agents: swarm.Swarm) -> Iterator[Figure]:
    etcd.kill()
    gone = time.monotonic()
    for number in range(3):
        for at in range(0, size.count, 10):
            agents.tell(at, f"away-{number}")
    time.sleep(max(0.0, gone + size.away_seconds - time.monotonic()))
    failing = sum(one["failing"] for one in agents.states().values())
    etcd.start()
    back = time.monotonic()
    counts: list[tuple[float, Counter[str]]] = [(0.0, Counter())]
    with _sampling(lambda: counts.append((time.monotonic() - back, etcd.requests()))):
        while any(one["failing"] for one in agents.states().values()):
            if time.monotonic() - back > PATIENCE:
                raise RuntimeError("some reporters do not come back")
            time.sleep(0.1)
    end, asked = counts[-1]
    # Each asks a member once who it is, before it asks for anything else.
    came = [(at, found["Status"]) for at, found in counts]
    # Until nearly all are back: the last few would make the mean as low as one likes.
    nearly = 0.95 * came[-1][1]
    most = next(at for at, found in came if found >= nearly)
    yield Figure(
        "fleet_reconnect_peak", _peak(came), "nodes/s", nearly / most, 3, came[-1][1],
        f"who comes back in the worst second, of {failing} that tried in vain for"
        f" {back - gone:.0f} s and wait {size.cap:g} s at most (60 in an agent);"
        f" floor: the mean until 19 of 20 are back, {most:.1f} s",
    )  # fmt: skip
    others = asked.total() - asked["LeaseKeepAlive"]
    yield Figure(
        "fleet_reconnect_requests", others / size.count + 1, "requests", samples=size.count,
        note=f"of each to come back; a tenth had news; the last was back after {end:.1f} s",
    )  # fmt: skip


@contextlib.contextmanager
def _sampling(sample: Callable[[], object]) -> Iterator[None]:
    """Take a sample every tenth of a second, and one at the end."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(0.1):
            sample()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        sample()


def _peak(counts: Sequence[tuple[float, int]]) -> float:
    """Give the most requests in any window of a second, from running counts."""
    best, first = 0.0, 0
    for at, count in counts:
        while at - counts[first][0] > WINDOW:
            first += 1
        before = counts[max(0, first - 1)]
        best = max(best, (count - before[1]) / max(WINDOW, at - before[0]))
    return best
