"""Overlaps of instances as counters that each of them takes from, as Kubernetes wants it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from xce_nodeagent.model.instance import Instance


class Counter(Struct, frozen=True):
    """So many units of which each instance takes some; who cannot get his own cannot be had."""

    of: str
    units: int
    takes: Mapping[str, int]


def counters(instances: Iterable[Instance]) -> tuple[tuple[Counter, ...], ...]:
    """Give counters that keep apart what overlaps, and nothing else, in groups.

    Instances of different groups share nothing. A counter is about one instance and others that
    overlap it and not each other: there are as many units as others, each takes one, and the
    instance takes all. So it excludes each of them, and they do not exclude one another. Where
    others overlap each other too, more counters follow until each pair is in one.
    """
    every = {one.id: one for one in instances}
    near = {
        one.id: {other for other in one.overlaps if other in every and other != one.id}
        for one in every.values()
    }
    for one, others in near.items():
        for other in others:
            near[other].add(one)  # overlaps are symmetric; who says so need not be both
    return tuple(tuple(_stars({one: set(near[one]) for one in group})) for group in _groups(near))


def _groups(near: Mapping[str, set[str]]) -> Iterable[list[str]]:
    """Give the sets of instances that are joined by overlaps, however far; no single ones."""
    seen: set[str] = set()
    for first in near:
        if first in seen or not near[first]:
            continue
        group, todo = [], [first]
        seen.add(first)
        while todo:
            one = todo.pop()
            group.append(one)
            todo += sorted(near[one] - seen)
            seen |= near[one]
        yield sorted(group)


def _stars(near: Mapping[str, set[str]]) -> Iterable[Counter]:
    """Take pairs out, many at once, until none is left. `near` is used up."""
    overlaps = {one: frozenset(others) for one, others in near.items()}
    while any(near.values()):
        middle = max(sorted(near), key=lambda one: len(near[one]))
        apart: list[str] = []
        for other in sorted(near[middle]):
            if not overlaps[other].intersection(apart):
                apart.append(other)
        for other in apart:
            near[middle].discard(other)
            near[other].discard(middle)
        yield Counter(middle, len(apart), {middle: len(apart), **dict.fromkeys(apart, 1)})
