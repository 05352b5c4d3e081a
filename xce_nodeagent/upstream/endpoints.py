"""Which of a store's members is asked next. Pure, but for the chance that is passed in.

The one that answered last is asked again; one that failed comes last until it has had its time,
and each is tried once in a round. Who begins is by chance, so that many nodes spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

BLAMED_SECONDS = 30.0
"""For so long one that failed is asked only when no other is left."""


class Endpoints:
    """The members, by their URLs, and which of them failed when."""

    def __init__(self, urls: Sequence[str], random: Random) -> None:
        self._random = random
        self._failed: dict[str, float] = {}
        self.move(urls)

    @property
    def urls(self) -> tuple[str, ...]:
        """All of them, as they were given."""
        return self._urls

    def move(self, urls: Sequence[str]) -> None:
        """Take others; what is known of those that stay is kept."""
        if not urls:
            raise ValueError("a store has at least one endpoint")
        self._urls = tuple(dict.fromkeys(urls))
        # A list of its own: `urls` tells people what the configuration says.
        self._order = list(self._urls)
        self._random.shuffle(self._order)

    def round(self, now: float) -> tuple[str, ...]:
        """Give all, in the order in which they are to be tried, each once."""
        return tuple(sorted(self._order, key=lambda url: self._blame(url, now)))

    def worked(self, url: str) -> None:
        """This one answered: it is the first from now on."""
        self._failed.pop(url, None)
        if url in self._order:
            self._order.remove(url)
            self._order.insert(0, url)

    def failed(self, url: str, now: float) -> None:
        """This one did not."""
        self._failed[url] = now

    def _blame(self, url: str, now: float) -> float:
        """Give 0 for one that may be asked; else the later it failed, the more."""
        at = self._failed.get(url)
        if at is None or now - at >= BLAMED_SECONDS:
            return 0.0
        return 1.0 + BLAMED_SECONDS - (now - at)
