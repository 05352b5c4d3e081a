"""How long an agent takes from its start until it serves, with many live bindings and with none."""

from __future__ import annotations

import time
from pathlib import Path

from client import Target
from figures import Figure, p50
from started import Place, agent

SECONDS = 2.0
"""What is promised, from the start until it serves."""


def figures(place: Place, profile: str, live: int, times: int) -> list[Figure]:
    """Kill an agent and start it again: as it was, and with a ledger that cannot be opened."""
    bare: list[float] = []
    whole: list[float] = []
    damaged: list[float] = []
    state = place.folder / "agent-recovers" / "state"
    _start(place, "empty", profile)
    _start(place, "recovers", profile, live)
    for _ in range(times):
        bare.append(_start(place, "empty", profile))
        whole.append(_start(place, "recovers", profile))
        _damage(state / "ledger.db")
        damaged.append(_start(place, "recovers", profile))
        if not list(state.glob("ledger.db.damaged-*")):
            raise RuntimeError("the damaged ledger was opened")
    note = f"from the start of the process until it serves, {live} live; floor: none live"
    return [
        Figure(f"{name}_{live}_bindings", p50(found), "s", p50(bare), None, times, note)
        for name, found in (("recovery", whole), ("rebuild", damaged))
    ] + [
        Figure(
            f"recovery_{live}_bindings_longest",
            max(whole),
            "s",
            None,
            SECONDS,
            times,
            "as promised",
        )
    ]


def _start(place: Place, name: str, profile: str, jobs: int = 0) -> float:
    """Start an agent, wait until it serves, and kill it; give the seconds until it served."""
    ports = {"empty": (24000, 24999), "recovers": (25000, 25999)}[name]
    started = time.monotonic()
    with agent(place, name, profile=profile, ports=ports, again=True) as running:
        took = time.monotonic() - started
        if jobs:
            Target(name, str(running.socket), 0).fill(jobs)
        running.process.kill()
        running.process.wait()
    return took


def _damage(path: Path) -> None:
    """Flip the first byte, without which nobody takes the file for a database; forget its log."""
    Path(f"{path}-wal").unlink(missing_ok=True)
    with path.open("r+b") as file:
        file.write(b"?")
