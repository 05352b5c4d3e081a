"""A thousand agents' reporters, as they are in a thousand agents, in a few processes.

Each has the product's own delivery, sink and connection, and its thread; what it reports is a node
of `fleets.py`. This file is both: run as a program it is one of the processes, which does what its
stdin says; imported it is whoever started them. Times are CLOCK_MONOTONIC, which all of them share.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from upstream import fleets

from xce_nodeagent.upstream.delivery import Delivery, Status
from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.etcdsink import EtcdSink
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.newest import Newest
from xce_nodeagent.upstream.report import Series

DEADLINE = 120.0
STACK = 512 << 10
"""Bytes of a thread's stack: hundreds of them are in one process here, and one in an agent."""


class Reporter:
    """What one agent has for its reports, and the node that it tells of."""

    def __init__(self, at: int, urls: Sequence[str], prefix: str, lease: int, cap: float) -> None:
        self.at = at
        self._inventory = fleets.inventory(at)
        self._usual = tuple(fleets.bindings(at, self._inventory))
        self.newest = Newest(Series(agent=fleets.agent(at), program="swarm"))
        client = Client(urls, Random(at))  # noqa: S311  # no secret
        sink = EtcdSink(client, Keys(prefix), lease_seconds=lease)
        self.delivery = Delivery(sink, self.newest, Random(at), cap=cap)  # noqa: S311  # no secret

    def tell(self, job: str = "") -> float:
        """Have a job with the last card, or none any more; give when it was told."""
        cards = [one for one in self._inventory.instances if one.type in ("gpu", "mig")]
        more = (fleets.binding(job, cards[-1:], self._inventory),) if job else ()
        now = time.monotonic()
        self.newest.tell(self._inventory, (*self._usual, *more))
        return now

    def state(self) -> dict[str, Any]:
        """Say how it stands, and what it has to tell."""
        status: Status = self.delivery.status
        made = self.newest.report()
        return {
            "at": self.at,
            "failing": status.failing > 0,
            "reason": status.reason,
            "note": status.note,
            "current": made is not None and not status.lag and not status.failing,
            "report": made[1].head.report if made else "",
            "bytes": status.bytes,
            "deliveries": status.deliveries,
            "failures": status.failures,
        }


def obey(settings: dict[str, Any]) -> None:
    """Run reporters until stdin ends; each of its lines is a command, and gets a line."""
    threading.stack_size(STACK)
    start, stop, step = settings["nodes"]
    rest = settings["urls"], settings["prefix"], settings["lease"], settings["cap"]
    reporters = {at: Reporter(at, *rest) for at in range(start, stop, step)}
    acts: dict[str, Callable[[dict[str, Any]], Any]] = {
        "start": lambda _: [_started(one) for one in reporters.values()] and None,
        "tell": lambda asked: reporters[asked["at"]].tell(asked["job"]),
        "states": lambda _: [one.state() for one in reporters.values()],
        "cost": lambda _: _cost(),
    }
    _answer(None)
    for line in sys.stdin:
        asked = json.loads(line)
        _answer(acts[asked["do"]](asked))
    for one in reporters.values():
        one.delivery.stop()
    until = time.monotonic() + 10
    for one in reporters.values():
        one.delivery.join(max(0.0, until - time.monotonic()))
    os._exit(0)  # threads that still wait for a store that is gone end with it


def _started(one: Reporter) -> None:
    one.tell()
    one.delivery.start()


def _answer(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _cost() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    resident = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return {"cpu": used.ru_utime + used.ru_stime, "resident_mib": resident / 1024}


class Swarm:
    """The processes, as whoever started them has them."""

    def __init__(
        self,
        urls: Sequence[str],
        count: int,
        *,
        prefix: str = "/swarm/",
        processes: int = 4,
        lease: int = 30,
        cap: float = 60.0,
    ) -> None:
        self.count = count
        self.prefix = prefix
        settings = {"urls": list(urls), "prefix": prefix, "lease": lease, "cap": cap}
        self._processes = [
            subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, __file__,
                 json.dumps({**settings, "nodes": (at, count, processes)})],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True,
            )
            for at in range(processes)
        ]  # fmt: skip
        for one in self._processes:
            self._read(one)

    def start(self) -> None:
        """Have all come up at once."""
        self._all("start")

    def tell(self, at: int, job: str) -> float:
        """Have a job at a node, or none (an empty name); give when its agent was told."""
        one = self._processes[at % len(self._processes)]
        self._write(one, {"do": "tell", "at": at, "job": job})
        told: float = self._read(one)
        return told

    def states(self) -> dict[int, dict[str, Any]]:
        """Give how it stands with each node."""
        found = (state for part in self._all("states") for state in part)
        return {state["at"]: state for state in found}

    def reports(self) -> dict[str, str]:
        """Give the digests of what each node has to tell now, by the nodes' names."""
        return {fleets.name(at): state["report"] for at, state in self.states().items()}

    def cost(self) -> dict[str, float]:
        """Give the CPU seconds and the resident MiB of all processes together."""
        found = self._all("cost")
        return {name: sum(one[name] for one in found) for name in found[0]}

    def settle(self, seconds: float = DEADLINE, *, but: int = 0) -> float:
        """Wait until the store has the newest of all nodes but so many; give how long it took."""
        began = time.monotonic()
        while True:
            states = self.states().values()
            late = [one for one in states if not one["current"]]
            if len(late) <= but:
                return time.monotonic() - began
            if time.monotonic() - began > seconds:
                reasons = {one["reason"] for one in late}
                raise TimeoutError(f"{len(late)} of {self.count} are late: {sorted(reasons)[:5]}")
            time.sleep(0.05)

    def close(self) -> None:
        """End all; their leases go on."""
        for one in self._processes:
            with contextlib.suppress(OSError):
                one.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        for one in self._processes:
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
            one.stdout.close()  # type: ignore[union-attr]  # it is a pipe

    def _all(self, do: str) -> list[Any]:
        for one in self._processes:
            self._write(one, {"do": do})
        return [self._read(one) for one in self._processes]

    @staticmethod
    def _write(one: subprocess.Popen[str], asked: dict[str, Any]) -> None:
        one.stdin.write(json.dumps(asked) + "\n")  # type: ignore[union-attr]  # it is a pipe
        one.stdin.flush()  # type: ignore[union-attr]  # it was started with a pipe

    @staticmethod
    def _read(one: subprocess.Popen[str]) -> Any:
        line = one.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
        if not line:
            raise RuntimeError(f"a process of reporters ended with {one.wait()}")
        return json.loads(line)


@contextlib.contextmanager
def running(urls: Sequence[str], count: int, **options: Any) -> Iterator[Swarm]:
    """Run so many reporters; they are ready, and begin with `start`."""
    one = Swarm(urls, count, **options)
    try:
        yield one
    finally:
        one.close()


if __name__ == "__main__":
    obey(json.loads(sys.argv[1]))
