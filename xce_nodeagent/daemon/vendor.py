"""What vendors' libraries say of their cards, asked of the prober: never waited for for long.

NVML takes seconds on a host without the persistence daemon, and may hang for ever. So a scan waits
a little, goes on with what was said last, and is repeated when the answer comes. A device that
hung a prober is not asked again until something changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from xce_nodeagent.binding.helper import Helper
from xce_nodeagent.errors import AgentError
from xce_nodeagent.privileged.ops import Probe

log = logging.getLogger(__name__)

Answer = tuple[str, str, dict[str, Any]]

PROBER_SECONDS = 65.0
"""Longer than a prober gives its library (privileged/prober.py), so that it can say which hung."""

PATIENCE = 3.0
"""Seconds that a scan waits for the library."""


class Vendor:
    """One vendor's library. `answered` is called when an answer comes after the patience."""

    def __init__(self, prober: Helper, answered: Callable[[], None]) -> None:
        self.last: Answer = ("not_yet", "the library has not answered yet", {})
        self._prober = prober
        self._answered = answered
        self._hung: set[str] = set()
        self._asking: asyncio.Task[None] | None = None
        self._late = False

    async def ask(self) -> Answer:
        """Ask anew, unless an earlier question is still open; give what is known by then."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
        done, _ = await asyncio.wait({self._asking}, timeout=PATIENCE)
        if not done:
            self._late = True
        return self.last

    def changed(self) -> None:
        """Something changed on the host: what hung may answer now."""
        self._hung.clear()

    def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        try:
            self.last = await self._answer()
        finally:
            self._asking = None
        if self._late:
            self._late = False
            self._answered()

    async def _answer(self) -> Answer:
        while True:
            try:
                answer = await self._prober.call(Probe("nvidia", tuple(sorted(self._hung))))
            except AgentError as error:
                return "error", f"the prober does not answer: {error.message}", {}
            hung = answer.facts.get("hung", "")
            if not hung or hung in self._hung:
                return answer.state, answer.reason, answer.facts
            log.warning("%s hung a prober: it is left alone until something changes", hung)
            self._hung.add(hung)
