"""The newest state of the node, and the report of it, made once for all sinks.

Whoever changes the state leaves it here and goes on; a report is made in the thread of the sink
that asks first. There is no queue: what nobody took before the next came is nowhere any more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from xce_nodeagent.model.binding import Binding
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.upstream.report import Report, Series, numbered


class Newest:
    """One inventory with its bindings. `told` counts how often there was a newer one; 0: none yet.

    `clock` is the time of day, for the reports' heads.
    """

    def __init__(self, series: Series, *, clock: Callable[[], float] = time.time) -> None:
        self._series = series
        self._clock = clock
        self._state: tuple[int, Inventory, tuple[Binding, ...]] | None = None
        self._made: tuple[int, Report] | None = None
        self._making = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    @property
    def told(self) -> int:
        """The count of the newest state."""
        state = self._state
        return state[0] if state else 0

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call back when there is a newer one; whoever is called must not wait for anything."""
        self._listeners.append(listener)

    def tell(self, inventory: Inventory, bindings: Iterable[Binding]) -> None:
        """Put a newer state in the place of the last. For one thread; it waits for nobody."""
        self._state = (self.told + 1, inventory, tuple(bindings))
        for listener in self._listeners:
            listener()

    def report(self) -> tuple[int, Report] | None:
        """Give the newest report, and of which count it is; None before there is any. For threads.

        It is the same object as before where nothing that is told has changed.
        """
        with self._making:
            state, made = self._state, self._made
            if state is None or (made is not None and made[0] == state[0]):
                return made
            count, inventory, bindings = state
            found = self._series.next(inventory, bindings)
            last = made[1] if made else None
            if last is None or not _alike(last, found):
                number = last.head.number + 1 if last else 1
                found = numbered(found, number, self._clock())
            elif last is not None:
                found = last
            self._made = (count, found)
            return self._made


def _alike(one: Report, other: Report) -> bool:
    """Say whether they differ in nothing but number and time."""
    first, second = one.head, other.head
    return (first.report, first.generation, first.digest, first.counters) == (
        second.report,
        second.generation,
        second.digest,
        second.counters,
    )
