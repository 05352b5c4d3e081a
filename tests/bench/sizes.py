"""How often each thing is done: in a usual run, and in one that shows that all works."""

from __future__ import annotations

from dataclasses import dataclass

import swarming


@dataclass(frozen=True)
class Sizes:
    """How often each thing is done. A p99 is given only where there are a thousand samples."""

    cold_one: tuple[int, int]  # operations with one live binding, and with a thousand
    cold_rounds: int
    hot_one: tuple[int, int]
    hot_rounds: int
    growth: int
    processes: int
    varlink: int
    idle_seconds: float
    verifications: int
    crowd: int  # processes that the witness looks through
    fleet: tuple[int, int, int]  # nodes, reports that are followed, and that are timed
    swarm: swarming.Size


FLEET = (10_000, 3000, 1000)
USUAL = Sizes(
    (1000, 1000), 125, (1000, 1000), 125, 400, 40, 1000, 30, 20, 1000, FLEET, swarming.USUAL
)
QUICK = Sizes((6, 3), 1, (300, 40), 3, 40, 2, 100, 1, 2, 100, (100, 40, 20), swarming.QUICK)
