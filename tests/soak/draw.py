"""What is asked for: jobs, instances, ports and cgroups, drawn at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from soak.aim import Dice
from soak.node import PORTS, Node
from soak.promises import Key

JOBS = 12
"""Names of jobs, used again and again: by new attempts, in cgroups of the same name."""


class Draw:
    """Draws for a node."""

    def __init__(self, dice: Dice, node: Node) -> None:
        self._dice = dice
        self._node = node
        self._model = node.model
        self._number = 0

    def key(self) -> Key:
        """Give a job that holds nothing, with an attempt of its own."""
        self._number += 1
        busy = {job for job, _ in self._model.facts}
        jobs = [str(job) for job in range(JOBS + len(busy)) if str(job) not in busy]
        return self._dice.chance.choice(jobs), f"a{self._number}"

    def some(self, most: int) -> list[str]:
        """Choose instances, none overlapping another; they may be held."""
        every = sorted(self._node.hardware.types)
        chosen: list[str] = []
        for one in self._dice.chance.sample(every, most):
            if not any(self._node.hardware.overlaps[one] & {other} for other in chosen):
                chosen.append(one)
        return chosen

    def choose(self) -> frozenset[str]:
        """Choose what to ask for; mostly it is free."""
        chosen = self.some(self._dice.chance.choice((0, 1, 1, 2, 2, 3)))
        if self._dice.chance.random() < 0.2:
            return frozenset(chosen)  # of which somebody may hold some
        taken = frozenset().union(*(self._model.may(key) for key in self._model.facts))
        return frozenset(one for one in chosen if not self._node.hardware.clash([one], taken))

    def port_asks(self) -> tuple[dict[str, Any], ...]:
        """Ask for ports: none, some, or a certain one."""
        kind = self._dice.chance.random()
        if kind < 0.6:
            return ()
        if kind < 0.85:
            return ({"count": self._dice.chance.randint(1, 2)},)
        return ({"port": self._dice.chance.randint(*PORTS)},)

    def named(self) -> str:
        """Make a cgroup as a caller does that names its own; nothing, mostly."""
        if self._dice.chance.random() > 0.15:
            return ""
        path = self._node.other / f"own-{self._number}"
        path.mkdir()
        return str(path)

    def held(self, fits: Callable[[Key], bool] = lambda _: True) -> Key | None:
        """Choose a job that holds something for certain."""
        keys = [key for key in self._model.certain() if fits(key)]
        return self._dice.chance.choice(keys) if keys else None
