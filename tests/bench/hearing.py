"""A vendor's library beside jobs: one that hangs, and one that tells of errors all the time."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from client import Client, Shape, Target, message
from started import Agent, Place, agent, hanging_library, stub

CARDS = 8
APART = 0.02
"""Seconds between two events, of one card and the next."""

ERRORS = (13, 63)
"""An application's, which changes nothing; and one that is noted, counted, and kept in a file."""


def telling_library(place: Place) -> tuple[dict[str, str], Path]:
    """Make the library; give the variables by which it is found, and where it hears of events."""
    folder = place.folder / "heard"
    fifo = folder / "events"
    folder.mkdir()
    os.mkfifo(fifo)
    lines = ["driver 1", f"events {fifo}"]
    for number in range(1, CARDS + 1):
        node = folder / f"card{number}"
        node.touch()
        lines.append(
            f"gpu bus=00000000:{number:x}B:00.0 uuid=GPU-{number} name=x minor={number}"
            f" memory=1 cc=9.0 node={node} temperature=40 slowdown=90"
        )
    variables = stub(folder, "".join(f"{line}\n" for line in lines))
    for path in (fifo, *folder.glob("card*")):
        path.chmod(0o666)
    return variables, fifo


@contextlib.contextmanager
def storm(fifo: Path) -> Iterator[None]:
    """Have cards tell of errors until the block ends."""
    over = threading.Event()
    descriptor = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)

    def tell() -> None:
        for told in itertools.count():
            if over.wait(APART):
                return
            with contextlib.suppress(BlockingIOError):  # nobody reads as fast
                xid = ERRORS[told // CARDS % len(ERRORS)]
                os.write(descriptor, f"GPU-{told % CARDS + 1} {xid} -1 -1\n".encode())

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.close(descriptor)


def check(heard: Agent) -> None:
    """See that it was heard at all; raise RuntimeError where it was not."""
    with Client(str(heard.socket)) as client:
        checks = client.call(message("Doctor"))[1]["checks"]
    if not any(one["name"] == "health.GPU-1" for one in checks):
        raise RuntimeError("no XID was heard: the figure means nothing")


def measure(bench: Any, place: Place, product: Target, whole: Shape, profile: str) -> None:
    """Measure what the vendor's library must not delay: when it hangs, and when it tells much."""
    if bench.wanted("prepare_prober_hangs", "release_prober_hangs"):
        with bench.stage("a library that hangs"):
            library = hanging_library(place)
            with agent(
                place, "sick", profile=profile, ports=(23000, 23999), library=library
            ) as sick:
                target, note = Target("sick", str(sick.socket), 0), "a prober hangs in NVML"
                bench.beside("prober_hangs", product, target, whole, note)
    if bench.wanted("prepare_cards_tell", "release_cards_tell"):
        with bench.stage("a library that tells of errors"):
            told, fifo = telling_library(place)
            with agent(
                place, "hears", profile=profile, ports=(27000, 27999), library=told
            ) as hears:
                target = Target("hears", str(hears.socket), 0)
                with storm(fifo):
                    note = f"{CARDS} cards tell {1 / APART:.0f} XIDs a second"
                    bench.beside("cards_tell", product, target, whole, note)
                check(hears)
