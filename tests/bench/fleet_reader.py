"""A reader of a fleet in a process of its own, and the same keys read by hand, as the floor.

Run as `fleet_reader.py product|floor URL PREFIX NODES CHANGES`. It says in JSON what the start
cost, a line, and, after so many changes were seen, what each cost.
"""

from __future__ import annotations

import base64
import gc
import http.client
import json
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit


def resident() -> int:
    """Give the bytes of memory that this process has now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * 4096


def product(url: str, prefix: str, nodes: int, changes: int) -> None:
    """Read by the product."""
    from xce_nodeagent.upstream.etcd import Client  # noqa: PLC0415  # the floor is without it
    from xce_nodeagent.upstream.keys import Keys  # noqa: PLC0415  # after the memory before it was measured
    from xce_nodeagent.upstream.watcher import Watcher  # noqa: PLC0415  # after the memory before it was measured

    before = resident()
    began, cpu = time.monotonic(), time.process_time()
    with Watcher(Client([url], Random(1)), Keys(prefix)) as reader:  # noqa: S311  # an order
        fleet = reader.wait_for(lambda one: len(one.nodes) == nodes, seconds=120)
        if any(node.faults for node in fleet.nodes.values()):
            raise SystemExit("there is a fault in the fleet")
        del fleet
        tell_start(began, cpu, before)
        done = threading.Event()

        def seen(_: Any) -> None:
            if reader.state.changes >= changes:
                done.set()

        reader.subscribe(seen)
        cpu, count = time.process_time(), reader.state.changes
        done.wait(120)
        tell_end(cpu, reader.state.changes - count)


def by_hand(url: str, prefix: str, nodes: int, changes: int) -> None:
    """Read by nothing but the standard library: keys and values, and no more is made of them."""
    before = resident()
    began, cpu = time.monotonic(), time.process_time()
    kept, revision = listed(url, prefix)
    if len({key.split(b"/")[4] for key in kept if b"/node/" in key}) != nodes:
        raise SystemExit("not all nodes are there")
    tell_start(began, cpu, before)
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    asked = {
        "key": b64(prefix),
        "range_end": b64(prefix[:-1] + "0"),
        "start_revision": revision + 1,
    }
    connection.request("POST", "/v3/watch", json.dumps({"create_request": asked}))
    answer = connection.getresponse()
    cpu, count = time.process_time(), 0
    while count < changes:
        for event in json.loads(answer.readline())["result"].get("events", ()):
            kv = event["kv"]
            kept[base64.b64decode(kv["key"])] = base64.b64decode(kv.get("value", ""))
            count += 1
    tell_end(cpu, count)
    connection.close()


def listed(url: str, prefix: str) -> tuple[dict[bytes, bytes], int]:
    """Read all keys by pages."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    start, revision, kept = prefix.encode(), "0", dict[bytes, bytes]()
    while True:
        asked = {
            "key": base64.b64encode(start).decode(),
            "range_end": b64(prefix[:-1] + "0"),
            "limit": 4000,
            "revision": revision,
        }
        connection.request("POST", "/v3/kv/range", json.dumps(asked))
        told = json.loads(connection.getresponse().read())
        revision = revision if revision != "0" else told["header"]["revision"]
        for kv in told.get("kvs", ()):
            start = base64.b64decode(kv["key"])
            kept[start] = base64.b64decode(kv.get("value", ""))
        start += b"\0"
        if not told.get("more"):
            connection.close()
            return kept, int(revision)


def b64(text: str) -> str:
    """Give text as etcd's JSON has keys."""
    return base64.b64encode(text.encode()).decode()


def tell_start(began: float, cpu: float, before: int) -> None:
    """Say what it cost to read all."""
    told = {"seconds": time.monotonic() - began, "cpu": time.process_time() - cpu}
    print(json.dumps({**told, "bytes": resident() - before}), flush=True)


def tell_end(cpu: float, changes: int) -> None:
    """Say what a change cost, in CPU seconds."""
    told = (time.process_time() - cpu) / max(1, changes)
    print(json.dumps({"cpu": told, "changes": changes}), flush=True)


if __name__ == "__main__":
    side, where, below, count, wanted = sys.argv[1:]
    {"product": product, "floor": by_hand}[side](where, below, int(count), int(wanted))
