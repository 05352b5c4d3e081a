"""A run: one history after another, each on a node of its own, until enough is done."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from soak import missed
from soak.blow import Tally
from soak.crew import Crew
from soak.node import Node
from soak.services import Kind
from soak.story import BrokenPromise
from soak.walk import Walk

OFTEN = 0.45
"""The share of questions that come with a blow, where nothing else is asked for."""

MANY = 0.9
MORE = 30
"""The share of blows, and the most histories, that are for the points that a long run left out."""

STEPS = 150
"""Steps of a history. Then the node must be empty, and the next one begins."""


@dataclass(frozen=True)
class Limits:
    """When a run has done enough: as soon as all that is named is reached; 0 names nothing."""

    crashes: int = 0
    steps: int = 0
    seconds: float = 0.0

    @property
    def blows(self) -> float:
        """Give the share of questions that come with a blow, so that both are reached together.

        Of those that are meant to fall about half do; and some steps are blows by themselves.
        """
        if not (self.crashes and self.steps):
            return OFTEN
        return min(0.9, max(0.05, 1.6 * self.crashes / self.steps))

    def reached(self, tally: Tally, seconds: float) -> bool:
        if self.seconds and seconds >= self.seconds:
            return True
        enough = (self.crashes and tally.crashed >= self.crashes) or not self.crashes
        return bool(enough and tally.steps >= self.steps and (self.crashes or self.steps))

    def share(self, tally: Tally, seconds: float) -> float:
        """Give how much of it is done, from 0 to 1."""
        parts = [tally.crashed / self.crashes] if self.crashes else []
        parts += [tally.steps / self.steps] if self.steps else []
        share = min(parts) if parts else 0.0
        return min(1.0, max(share, seconds / self.seconds if self.seconds else 0.0))


def mounts() -> dict[str, Path]:
    """Give where the hierarchies are mounted."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text("utf-8").splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found.setdefault("cgroup2", Path(where))
        elif kind == "cgroup" and "devices" in options.split(","):
            found.setdefault("cgroup1", Path(where))
    return found


def crew(*, plant: str = "") -> Crew:
    """Make the processes of a run; use it in a `with`. `plant` is a fault of `planted.py`."""
    where = mounts()
    return Crew(where["cgroup2"], where.get("cgroup1"), plant=plant)


def kind(made: Crew, chance: random.Random) -> Kind:
    """Draw a kind of node: mostly v2 with the shared program, and a share of all the others."""
    backends = ["cgroup2"] * 7 + ["cgroup1"] * 3 * ("cgroup1" in made.cgroups)
    backend = chance.choice(backends)
    return Kind(
        backend, chance.choice(("systemd", "systemd", "hand")),
        chance.choice(("dgx-a100-mig", "dgx-h100")),
        backend == "cgroup2" and chance.random() < 0.2, chance.choice((0, 0, 1)),
        chance.random() < 0.3,
    )  # fmt: skip


def histories(
    seed: int,
    limits: Limits,
    *,
    first: int = 0,
    told: Callable[[Tally, int], None] = lambda *_: None,
    found: Callable[[int, BrokenPromise], bool] = lambda *_: False,
) -> Tally:
    """Live through histories; `found` gets each broken promise, and says whether to go on.

    History number N of a seed is the same in every run but for the moments of blows from outside,
    and but for the last of a long run, which aim at what was not hit before them.
    """
    tally = Tally()
    begun = time.monotonic()
    number = first

    def report() -> None:
        told(tally, number)
        if limits.seconds and time.monotonic() - begun > limits.seconds:
            raise _Enough

    more = 0
    with crew() as made:
        while True:
            wanted: frozenset[int] = frozenset()
            if limits.reached(tally, time.monotonic() - begun):
                wanted = missed.points(tally)
                more += 1
                if not wanted or more > MORE:
                    break
            chance = random.Random(f"{seed}/{number}")  # noqa: S311  # to be told again
            one = Node(made, tally, kind(made, chance))
            try:
                one.open()
                blows = MANY if wanted else limits.blows
                walk = Walk(one, chance, blows=blows, turn=number, wanted=wanted)
                walk.run(STEPS, report)
            except _Enough:
                break
            except BrokenPromise as broken:
                if not found(number, broken):
                    raise
            finally:
                one.close()
            number += 1
    return tally


class _Enough(Exception):
    """The time is over, in the middle of a history."""
