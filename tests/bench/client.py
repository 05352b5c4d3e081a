"""A client that costs next to nothing: raw sockets, and messages that are built before the clock.

The same client asks the product and the floor, so its own cost is in both.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

INTERFACE = "io.xce.NodeAgent"


class Refused(RuntimeError):
    """The other side answered with an error: nothing that was measured can be believed."""


def message(method: str, **parameters: Any) -> bytes:
    """Build one call."""
    call = {"method": f"{INTERFACE}.{method}", "parameters": parameters}
    return json.dumps(call).encode() + b"\0"


class Shape:
    """What the jobs of a series ask for: instances by name, and a number of ports."""

    def __init__(self, instances: Sequence[str] = (), ports: int = 0) -> None:
        self.instances = tuple(instances)
        self.ports = ports

    def prepare(self, job: str) -> bytes:
        """Build the Prepare for one job."""
        asked: dict[str, Any] = {"instances": self.instances}
        if self.ports:
            asked["ports"] = [{"count": self.ports}]
        return message("Prepare", job=job, attempt="1", **asked)

    @staticmethod
    def release(job: str) -> bytes:
        """Build the Release of it."""
        return message("Release", job=job, attempt="1")


class Client:
    """Some connections to one socket, kept open; latencies are in milliseconds."""

    def __init__(self, path: str, connections: int = 1) -> None:
        self.sockets: list[socket.socket] = []
        self.poll = select.poll()
        self.by_descriptor: dict[int, int] = {}
        for number in range(connections):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sockets.append(connection)
            connection.settimeout(30)
            connection.connect(path)
            self.poll.register(connection, select.POLLIN)
            self.by_descriptor[connection.fileno()] = number

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        for connection in self.sockets:
            connection.close()

    def call(self, wire: bytes) -> tuple[float, dict[str, Any]]:
        """Ask once: how long the answer took, and the answer's parameters."""
        connection = self.sockets[0]
        started = time.perf_counter_ns()
        connection.sendall(wire)
        reply = connection.recv(262_144)
        while not reply.endswith(b"\0"):
            more = connection.recv(262_144)
            if not more:
                raise Refused(f"the other side hung up after {reply!r}")
            reply += more
        took = (time.perf_counter_ns() - started) / 1e6
        return took, self._answer(reply)

    def at_once(self, wires: Sequence[bytes]) -> list[float]:
        """Ask on every connection before reading any answer; how long each waited for its own."""
        started = [0] * len(wires)
        ended = [0] * len(wires)
        replies = [b""] * len(wires)
        for number, wire in enumerate(wires):
            started[number] = time.perf_counter_ns()
            self.sockets[number].sendall(wire)
        waiting = len(wires)
        while waiting:
            for descriptor, _ in self.poll.poll(30_000) or self._silent():
                number = self.by_descriptor[descriptor]
                data = self.sockets[number].recv(262_144)
                ended[number] = time.perf_counter_ns()
                replies[number] += data
                if not data:
                    raise Refused("the other side hung up")
                waiting -= data.endswith(b"\0")
        for reply in replies:
            self._answer(reply)
        return [(b - a) / 1e6 for a, b in zip(started, ended, strict=True)]

    @staticmethod
    def _silent() -> list[tuple[int, int]]:
        raise Refused("no answer for 30 s")

    @staticmethod
    def _answer(reply: bytes) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(reply[:-1])
        if "error" in answer:
            raise Refused(json.dumps(answer))
        parameters: dict[str, Any] = answer.get("parameters", {})
        return parameters


class Target:
    """One side of a comparison: a name, a client, and whether it holds many bindings already."""

    def __init__(self, name: str, path: str, live: int) -> None:
        self.name = name
        self.path = path
        self.live = live

    def fill(self, jobs: int) -> None:
        """Prepare jobs without an instance, each of them fenced, which stay."""
        empty = Shape()
        with Client(self.path) as client:
            for number in range(jobs):
                client.call(empty.prepare(f"live-{number}"))


Samples = dict[tuple[str, str], list[float]]
"""(target's name, "prepare" or "release") to milliseconds."""


def names(prefix: str) -> Iterator[str]:
    """Give job ids that nobody has used; an attempt that was released stays dead."""
    number = 0
    while True:
        yield f"{prefix}-{number}"
        number += 1


def one_client(
    targets: Mapping[str, tuple[Target, int]],
    shape: Shape,
    jobs: Iterator[str],
    *,
    pause: float,
    block: int,
    step: Any,
) -> Samples:
    """Prepare and release, one after the other: `targets` says how often for whom.

    Cold (`pause` in seconds before each operation) the sides take turns operation by operation.
    Hot they take turns in blocks of some jobs: what a side puts off until after its answer must
    fall into its own next operation, not into the other side's.
    """
    samples: Samples = {(name, op): [] for name in targets for op in ("prepare", "release")}
    clients = {name: Client(target.path) for name, (target, _) in targets.items()}
    rounds = max(count for _, count in targets.values())
    try:
        for start in range(0, rounds, block):
            sides = list(targets)
            for name in sides if (start // block) % 2 else reversed(sides):
                todo = _share(start, block, rounds, targets[name][1])
                wires = [(shape.prepare(job), shape.release(job)) for job in _some(jobs, todo)]
                for prepare, release in wires:
                    for op, wire in (("prepare", prepare), ("release", release)):
                        if pause:
                            time.sleep(pause)
                        samples[name, op].append(clients[name].call(wire)[0])
            step(block)
    finally:
        for client in clients.values():
            client.close()
    return samples


def many_clients(
    targets: Mapping[str, tuple[Target, int]],
    shapes: Sequence[Shape],
    jobs: Iterator[str],
    *,
    pause: float,
    block: int,
    step: Any,
) -> Samples:
    """Prepare as many jobs at once as there are shapes, then release them at once.

    Beside each latency, `longest` is the longest wait of a round, and `in_a_row` what the same
    jobs took one after the other on one connection in the next round.
    """
    kinds = ("prepare", "release", "longest", "in_a_row")
    samples: Samples = {(name, kind): [] for name in targets for kind in kinds}
    width = len(shapes)
    clients = {name: Client(target.path, width) for name, (target, _) in targets.items()}
    rounds = max(count for _, count in targets.values())
    try:
        for start in range(0, rounds, block):
            sides = list(targets)
            for name in sides if (start // block) % 2 else reversed(sides):
                client = clients[name]
                for _ in range(_share(start, block, rounds, targets[name][1])):
                    ids = _some(jobs, width)
                    pairs = list(zip(shapes, ids, strict=True))
                    time.sleep(pause)
                    waits = client.at_once([shape.prepare(job) for shape, job in pairs])
                    samples[name, "prepare"] += waits
                    samples[name, "longest"].append(max(waits))
                    time.sleep(pause)
                    samples[name, "release"] += client.at_once([Shape.release(j) for j in ids])
                ids = _some(jobs, width)
                wires = [shape.prepare(job) for shape, job in zip(shapes, ids, strict=True)]
                time.sleep(pause)
                samples[name, "in_a_row"].append(sum(client.call(wire)[0] for wire in wires))
                for job in ids:
                    client.call(Shape.release(job))
            step(block)
    finally:
        for client in clients.values():
            client.close()
    return samples


def _some(jobs: Iterator[str], count: int) -> list[str]:
    return [next(jobs) for _ in range(count)]


def _share(start: int, block: int, rounds: int, count: int) -> int:
    """Give a side's part of a block, so that `count` operations are spread over all `rounds`."""
    return (start + block) * count // rounds - start * count // rounds
