"""What a long run has left out: a process that was never hit, a step at which nothing was."""

from __future__ import annotations

from soak.blow import Tally
from soak.page import ROLES
from soak.points import POINTS, Point

ENOUGH = 10_000
"""Crashes after which every role and every point must have had its share."""

NEVER = {
    ("before", "Listener.handle"): "no vendor's library is here that has a card to be heard",
    ("after", "Listener.handle"): "as before it",
    ("after", "role:serve"): "helpers end with an agent before the blow at its next start is ready",
}
"""Points that no run comes to but by chance, by their side and the end of their name; and why."""


def is_come_to(point: Point) -> bool:
    """Say whether a long run must have hit something there."""
    return not any(point.side == side and point.name.endswith(name) for side, name in NEVER)


def points(tally: Tally) -> frozenset[int]:
    """Give the points at which nothing was hit; none of a run that was too short to tell."""
    if tally.crashed < ENOUGH:
        return frozenset()
    return frozenset(p.number for p in POINTS if is_come_to(p) and not tally.points.get(p.number))


def missed(tally: Tally) -> list[str]:
    """Say what nothing has hit; nothing of a run that was too short to tell."""
    if tally.crashed < ENOUGH:
        return []
    hit = {role for (role, _), count in tally.crashes.items() if count}
    return [f"the {role} was never hit" for role in ROLES if role not in hit] + [
        f"the {POINTS[number - 1].role} was never hit {POINTS[number - 1]}"
        for number in sorted(points(tally))
    ]
