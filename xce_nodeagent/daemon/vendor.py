"""What vendors' libraries say of their cards, asked of the prober: never waited for for long.

NVML takes seconds on a host without the persistence daemon, and may hang for ever. So only the
first look waits for it, a little; each later one goes on with what was said last, and there is
another one when the answer comes. A device, or a
call, that hung a prober is not asked again until something changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from xce_nodeagent.errors import AgentError
from xce_nodeagent.host import fact
from xce_nodeagent.host.event import AGAIN, ALL, Event
from xce_nodeagent.privileged.ops import Probe

log = logging.getLogger(__name__)

Answer = tuple[str, str, dict[str, Any]]

LIBRARY_GRACE = 5.0
"""Seconds that a prober has beyond those of its library, so that it can say which call hung."""

HUNG_LIMIT = 32
"""Devices that are left alone. More than a host has, and the prober only says so."""

PATIENCE = 3.0
"""Seconds that a scan waits for the library."""

RETRY, RETRY_MOST = 10.0, 600.0
"""Seconds until it is asked again when there was no prober, or it was lost; twice as long each
time, up to the second."""

SUBSYSTEMS = frozenset({"", "pci", "drm", "nvidia", "accel", "kfd"})
"""Where a change can be one of a card; "" is one that was missed. Links of the network come and go
with each container, and are no reason to ask what hangs again."""

_ASKED = SUBSYSTEMS | {"module", "cpu", "node"}
"""After these it is asked: its driver may have come, and CPUs near to a card. No card that hung
answers because of that."""


class Prober(Protocol):
    """The agent's end of the prober; `binding/helper.py` is one."""

    async def call(self, request: Any) -> Any:
        """Ask, and give the answer; raise the pinned error of a failure."""
        ...


class Vendor:
    """One vendor's library. `answered` is called when a scan is due because of what it said.

    `only` gives the cards that may be opened; None is all of them.
    """

    def __init__(
        self,
        prober: Prober,
        answered: Callable[[], None],
        *,
        only: Callable[[], tuple[str, ...] | None] = lambda: None,
        patience: float = PATIENCE,
        retry: float = RETRY,
    ) -> None:
        self.last: Answer = ("not_yet", "the library has not answered yet", {})
        self._prober = prober
        self._answered = answered
        self._only = only
        self._patience = patience
        self._retry = self._pause = retry
        self._hung: set[str] = set()
        self._asking: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None
        self._late = False  # somebody went on without the answer
        self._fresh = False  # the answer that nobody waited for has not been used yet
        self._outdated = False  # something changed since the question

    async def ask(self) -> Answer:
        """Ask anew, unless an earlier question is still open; give what is known by then.

        An answer that came too late for the one who asked is given once without a new question:
        else a slow library would be asked for ever, each time because it had answered.
        """
        if self._fresh:
            self._fresh = False
            return self.last
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
        done, _ = await asyncio.wait({self._asking}, timeout=self._patience)
        if not done:
            self._late = True
        return self.last

    def concerned(self, events: Collection[Event]) -> bool:
        """Say whether the library is to be asked after these events."""
        if AGAIN in events and self.last[0] == "not_yet":
            return True
        return ALL in events or any(event.subsystem in _ASKED for event in events)

    def tell(self, events: Iterable[Event]) -> None:
        """Take in what changed on the host."""
        if any(event.subsystem in SUBSYSTEMS for event in events):
            self.changed()

    def changed(self) -> None:
        """Something changed on the host: what hung may answer now."""
        self._hung.clear()
        self._fresh = False
        self._pause = self._retry
        self._outdated = self._asking is not None

    @property
    def hung(self) -> frozenset[str]:
        """What is left alone."""
        return frozenset(self._hung)

    def blame(self, what: str) -> None:
        """Leave alone what hung a helper."""
        if what not in self._hung and len(self._hung) < HUNG_LIMIT:
            log.warning("%s hung a prober: it is left alone until something changes", what)
            self._hung.add(what)

    async def idle(self, seconds: float = PATIENCE) -> bool:
        """Wait until no question is open; say whether that is so."""
        if self._asking is None:
            return True
        done, _ = await asyncio.wait({self._asking}, timeout=seconds)
        return bool(done)

    def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
        if self._again is not None:
            self._again.cancel()

    async def _ask(self) -> None:
        try:
            self.last = await self._answer()
        finally:
            self._asking = None
        late, self._late = self._late, False
        if self._outdated:
            self._outdated = False
            self._hung.clear()
            self._answered()
        elif late:
            self._fresh = True
            self._answered()

    async def _answer(self) -> Answer:
        while True:
            asked = Probe("nvidia", tuple(sorted(self._hung)), self._only())
            try:
                answer = await self._prober.call(asked)
            except AgentError as error:
                self._ask_later()
                return "error", f"the prober does not answer: {error.message}", {}
            self._pause = self._retry
            if fact.pending(answer.facts):
                self._ask_later()
            hung = answer.facts.get("hung", "")
            known = hung in asked.skip if isinstance(hung, str) else True
            if not hung or known or len(self._hung) >= HUNG_LIMIT:
                return answer.state, answer.reason, answer.facts
            self.blame(hung)

    def _ask_later(self) -> None:
        """No event tells when there is a prober again, or when a fabric has come up."""
        if self._again is not None:
            self._again.cancel()
        self._again = asyncio.get_running_loop().call_later(self._pause, self._answered)
        self._pause = min(2 * self._pause, RETRY_MOST)
