"""Outcomes: what was done, noted when there is time, so that no caller waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.errors import Enforcement
from xce_nodeagent.model.binding import Binding, Bound, Event

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
"""How long an outcome may wait for a commit that takes it along, before it is written alone."""

RETRY_SECONDS = 2.0
"""How soon it is tried again where the ledger cannot be written."""


class Outcomes:
    """Notes outcomes in the ledger, and sees to it that they get onto the disk."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._carried_out: list[Binding] = []
        self._flush: asyncio.TimerHandle | None = None

    def carried_out(self, binding: Binding) -> None:
        """Note that the plan is carried out: when there is time, or when somebody looks."""
        self._carried_out.append(binding)
        self.flush_later()

    def note(self, event: Event) -> None:
        """Note an event now; it is written with the next commit, or soon."""
        self._ledger.note(event)
        self.flush_later()

    def settle(self) -> None:
        """Note every plan that is carried out, so that the book says so."""
        done, self._carried_out = self._carried_out, []
        for binding in done:
            # The very one: another with an equal plan may not be carried out yet.
            live = self._ledger.book.live.get(binding.key)
            if live is binding and binding.state == "committed":
                self._ledger.note(Bound(job=binding.job, attempt=binding.attempt))

    def flush_later(self) -> None:
        """See to it that what waits is written."""
        if self._flush is None:
            loop = asyncio.get_running_loop()
            seconds = RETRY_SECONDS if self._ledger.fault else FLUSH_SECONDS
            self._flush = loop.call_later(seconds, self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        self.settle()
        try:
            self._ledger.flush()
        except Enforcement as error:
            # They stay in memory and go with the next commit; a restart repeats the steps.
            log.debug("outcomes are not recorded yet: %s", error.message)
            self.flush_later()

    def close(self) -> None:
        """Stop the timer and write what waits."""
        if self._flush is not None:
            self._flush.cancel()
        self.settle()
        with contextlib.suppress(Enforcement):
            self._ledger.flush()
