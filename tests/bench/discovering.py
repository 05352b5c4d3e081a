"""What discovery costs on a machine with 8 GPUs, 10 NICs and 200 PCI functions, recorded.

The floor opens and reads, by hand and in one go, exactly what was opened and read.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from figures import Figure, p50
from started import HERE

from xce_nodeagent.daemon.changes import Changes
from xce_nodeagent.discovery import Discovery
from xce_nodeagent.host import Host
from xce_nodeagent.host.event import Event
from xce_nodeagent.host.tree import Tree
from xce_nodeagent.providers import all_providers

DGX = runpy.run_path(str(HERE.parent / "machines" / "dgx.py"))
COLD_MS, EVENT_MS = 50, 2
STORM = 10_000
LINK = Event("change", "net", "simib0")
CARD = Event("change", "pci", "0000:18:00.0")
CAME = Event("add", "pci", "0000:18:00.0")

Opened = list[tuple[str, int]]


def figures(times: int) -> list[Figure]:
    """Measure a look at everything, looks after one event, and a storm of events."""
    with tempfile.TemporaryDirectory(prefix="xce-bench-dgx-") as folder:
        root = Path(folder)
        DGX["write"](root)
        found = [*_look(root, times, "cold", COLD_MS, None)]
        found += _look(root, times, "event", EVENT_MS, LINK)
        found += _look(root, times, "event_pci", EVENT_MS, CARD)
        found += _look(root, times, "event_came", EVENT_MS, CAME)
        return [*found, asyncio.run(_storm(root))]


def _look(root: Path, times: int, name: str, most: float, event: Event | None) -> Iterator[Figure]:
    """Time looks after an event, or at everything (None), each beside its floor."""
    host, providers = Host(root), all_providers()
    steady = Discovery(host, providers)
    before = steady.look()

    def look() -> None:
        if event is None:
            Discovery(host, providers).look()
        else:
            steady.look(before, [event])

    opened = _opened(look)
    took, floor = [], []
    for _ in range(times):
        took.append(_timed(look))
        floor.append(_timed(lambda: _by_hand(root, opened)))
    what = (
        "a look at everything"
        if event is None
        else f"a look after an event of {event.subsystem}, {event.action}"
    )
    what += ", CPU time"
    note = f"{what}; the floor is the same {len(opened)} files and folders, read by hand"
    yield Figure(f"discovery_{name}_dgx_p50", p50(took), "ms", None, most, times, what)
    yield Figure(f"discovery_{name}_reading_p50", p50(took), "ms", p50(floor), None, times, note)


async def _storm(root: Path) -> Figure:
    """Tell of many events as fast as may be; count until the last one was looked at."""
    discovery = Discovery(Host(root), all_providers())
    before = discovery.look()
    everything = _timed(lambda: Discovery(Host(root), all_providers()).look())
    last, done = Event("change", "net", "simib7"), asyncio.Event()

    async def look(events: Iterable[Event]) -> None:
        await asyncio.to_thread(discovery.look, before, events)
        if told:
            done.set()

    told = False
    changes = Changes(look)
    began = time.process_time()
    for number in range(STORM):
        changes.tell([Event("change", "net", f"eth{number}")])
        if number % 100 == 0:
            await asyncio.sleep(0)
    changes.tell([last])
    told = True
    await done.wait()
    took = (time.process_time() - began) * 1e3
    await changes.close()
    note = f"CPU time of {STORM} events: {changes.looks} looks; the floor is one look at everything"
    return Figure(f"discovery_storm_{STORM}", took, "ms", everything, None, 1, note)


def _timed(work: Callable[[], Any]) -> float:
    """Give the CPU time: nothing here waits, and others work on this machine, too."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def _opened(look: Callable[[], None]) -> Opened:
    """Give what a look opens, in its order."""
    found: Opened = []
    real = Tree.open

    def noted(self: Tree, name: str, flags: int) -> int:
        found.append((name, flags))
        return real(self, name, flags)

    Tree.open = noted  # type: ignore[method-assign]  # counted, and put back
    try:
        look()
    finally:
        Tree.open = real  # type: ignore[method-assign]  # counted, and put back
    return found


def _by_hand(root: Path, opened: Opened) -> None:
    for name, flags in opened:
        try:
            fd = os.open(f"{root}{name}", flags | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if flags & os.O_PATH:
                os.readlink(f"/proc/self/fd/{fd}")
            elif flags & os.O_DIRECTORY:
                os.listdir(fd)
            else:
                while os.read(fd, 4096):
                    pass
        finally:
            os.close(fd)
