"""How soon something that failed is tried again. Pure, but for the chance that is passed in.

Full jitter: a time between nothing and a limit that doubles with each failure. Ten thousand nodes
that lost one store at one moment come back evenly over the last limit, and not in waves.
"""

from __future__ import annotations

from random import Random

BASE_SECONDS = 0.5
CAP_SECONDS = 60.0
HOPELESS_SECONDS = 300.0
"""The limit where only somebody can help; that they did is seen within five minutes."""
WISH_SECONDS = 600.0
"""How long the other side may have itself left alone at most."""


class Backoff:
    """Counts failures in a row. `cap` is the limit that does not grow any more, in seconds."""

    def __init__(self, random: Random, cap: float = CAP_SECONDS) -> None:
        self.failures = 0
        self._random = random
        self._cap = cap

    def failed(self, *, hopeless: bool = False, after: float = 0.0) -> float:
        """Take in a failure; give the seconds until the next try.

        `hopeless`: only somebody can help, so at least a minute passes. `after` is what the other
        side asked for.
        """
        limit = min(self._cap, BASE_SECONDS * 2.0 ** min(self.failures, 30))
        self.failures += 1
        if hopeless:
            return self._random.uniform(CAP_SECONDS, HOPELESS_SECONDS)
        return min(max(after, 0.0), WISH_SECONDS) + self._random.uniform(0.0, limit)

    def succeeded(self) -> None:
        """Forget all failures."""
        self.failures = 0
