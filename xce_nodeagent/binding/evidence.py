"""Evidence: whether who has a device open has it from a job, or had it anyway. Pure.

A vendor's daemon has devices open whoever holds them, and must not keep a card from being free.
So it is remembered who had a device open while no job held it, or, outside of the job, from the
start of a binding on: such a *resident* is nobody's left-over. Who is younger than the binding, or
was seen without the device before, got it through the job, or while it ran. Of who is older, and
was never looked at, nothing is known: it passes for a resident, and `doctor` shows it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from xce_nodeagent.model.binding import Key
from xce_nodeagent.privileged.ops import Seen

TICK = 0.01
"""Seconds: what the kernel tells of a process's start is rounded down to it (USER_HZ)."""

LOOKS_LIMIT = 4096


class Holding(NamedTuple):
    """A process, by its pid and its start, and a device that it has."""

    pid: int
    started: float
    device: str


class Tenure(NamedTuple):
    """A binding, and when it was made, in seconds since the boot."""

    key: Key
    since: float


class Evidence:
    """What was seen in all looks so far. `named` are programs that are residents by their name."""

    def __init__(self, named: Collection[str] = ()) -> None:
        self._named = frozenset(named)
        self._residents: set[Holding] = set()
        self._suspects: set[Holding] = set()
        self._looks: list[float] = []
        self._early: frozenset[Key] = frozenset()

    def resident(self, seen: Seen) -> bool:
        """Say whether somebody is known to have a device whoever holds it."""
        return seen.comm in self._named or _holding(seen) in self._residents

    def left(self, seen: Seen, by: Tenure, pids: Collection[int] = ()) -> bool:
        """Judge whether somebody has a device from a binding that was released.

        `pids` are those of whom that is known.
        """
        holding = _holding(seen)
        if seen.comm in self._named or holding in self._residents:
            return False
        proven = (
            holding in self._suspects
            or seen.pid in pids
            or seen.started >= by.since - TICK
            or by.key in self._early
            or self._looked_between(seen.started, by.since)
        )
        (self._suspects if proven else self._residents).add(holding)
        return proven

    def _looked_between(self, start: float, end: float) -> bool:
        place = bisect_left(self._looks, start)
        return place < len(self._looks) and self._looks[place] < end

    def take(
        self,
        at: float,
        everybody: Iterable[Seen],
        owners: Mapping[str, Collection[Tenure]],
        watched: Collection[str],
    ) -> None:
        """Learn from a look that began at a moment, after what was judged by it.

        `owners` are those of each device that is held; in their cgroups nobody is seen. `watched`
        devices were released, and who has them is judged.
        """
        everybody = [seen for seen in everybody if seen.how != "path"]
        present = {_holding(seen) for seen in everybody}
        self._residents &= present
        self._suspects &= present
        for seen in everybody:
            holding = _holding(seen)
            if holding in self._suspects or seen.what in watched:
                continue
            held_by = owners.get(seen.what, ())
            if all(
                seen.started < owner.since - TICK and owner.key not in self._early
                for owner in held_by
            ):
                self._residents.add(holding)
        self._early = frozenset(owner.key for held_by in owners.values() for owner in held_by)
        self._looks.append(at)
        del self._looks[:-LOOKS_LIMIT]


def _holding(seen: Seen) -> Holding:
    return Holding(seen.pid, seen.started, seen.what)
