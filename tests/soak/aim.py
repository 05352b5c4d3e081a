"""Where a blow is aimed: at random, over all processes, points and kinds."""

from __future__ import annotations

import random
import signal
from collections import Counter
from dataclasses import dataclass

from soak import page, points
from soak.blow import Blow


@dataclass
class Dice:
    """Where everything random comes from; hypothesis puts another in its place for each step."""

    chance: random.Random


class Aim:
    """Draws blows; `share` is the share of questions that come with one.

    Half of those at a point go round: each point in its turn, from number `turn` on, so that after
    many histories with turns of their own few are left out. Those that are `wanted` come first.
    """

    def __init__(
        self, dice: Dice, share: float, turn: int = 0, wanted: frozenset[int] = frozenset()
    ) -> None:
        self._dice = dice
        self._share = share
        self._turn = turn
        self._wanted = wanted
        self._gone: Counter[str] = Counter()

    def maybe(self, of: str) -> Blow | None:
        """Give a blow that may fall in this work (`points.py` has them), or none."""
        return self.at(of) if self._dice.chance.random() < self._share else None

    def at(self, of: str) -> Blow:
        """Give a blow that may fall in this work; `start` is that of the agent."""
        chance = self._dice.chance
        if chance.random() < 0.2:
            return self.outside()
        some = [point for point in points.POINTS if of in point.of]
        wanted = [point for point in some if point.number in self._wanted]
        if wanted or chance.random() < 0.5:
            theirs = wanted or some
            point = theirs[(self._turn + self._gone[of]) % len(theirs)]
            self._gone[of] += 1
            blow = Blow(point.role, point=point.number)
            self._maybe_stop(blow)
            return blow
        roles = sorted({point.role for point in some})
        point = chance.choice(points.at(chance.choice(roles), of))
        blow = Blow(point.role, point=point.number, hits=chance.choice((1, 1, 1, 2, 3)))
        kind = chance.random()
        if kind < 0.25:
            blow.then, blow.number = page.CALLS, int(2 ** (chance.random() * 8))
        elif kind < 0.4:
            blow.then, blow.number = page.LINES, int(2 ** (chance.random() * 8))
        self._maybe_stop(blow)
        return blow

    def outside(self) -> Blow:
        """Give a blow that falls on anybody, within some milliseconds."""
        chance = self._dice.chance
        role = chance.choice((*page.ROLES, "binder"))
        blow = Blow(role, after=chance.random() * 0.004, number=chance.randrange(4))
        self._maybe_stop(blow)
        return blow

    def stale(self) -> Blow:
        """Give one that stops a binder with a grant in hand, until it is continued."""
        chance = self._dice.chance
        some = [point for point in points.at("binder", "prepare") if "send" not in point.name]
        return Blow(
            "binder", signal.SIGSTOP, chance.choice(some).number, hits=chance.choice((1, 1, 2)),
            pause=60.0,
        )  # fmt: skip

    def _maybe_stop(self, blow: Blow) -> None:
        chance = self._dice.chance
        if chance.random() < 0.12:
            blow.signal = signal.SIGSTOP
            # Half of them beyond the time that a binder has: it wakes up with an old grant in hand.
            long = blow.role == "binder" and chance.random() < 0.5
            blow.pause = 0.5 + chance.random() if long else chance.random() * 0.05
