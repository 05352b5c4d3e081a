"""A histogram of seconds, as Prometheus has it: how many were at most so long, and their sum."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

BOUNDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""The upper bounds of the buckets, in seconds, inclusive; what is longer has no bound."""


class Histogram:
    """Counts by bucket, of which the last has no bound, and the sum of all that was added."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """Take a duration in. It is on the path of jobs: a search in a tuple and two sums."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        """How many were added."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Give how many were at most as long as each bound, and at the end how many there are."""
        return list(accumulate(self.counts))
