"""Verification: what the ledger says is compared with what the kernel has, and put right."""

from __future__ import annotations

import asyncio
import logging

from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.outcome import Outcomes
from xce_nodeagent.binding.turn import Turns
from xce_nodeagent.errors import AgentError
from xce_nodeagent.model.binding import Binding, Lost

log = logging.getLogger(__name__)


class Verification:
    """Looks at bindings that were answered, and keeps what was answered true."""

    def __init__(
        self, ledger: Ledger, executor: Executor, turns: Turns, outcomes: Outcomes
    ) -> None:
        self._ledger = ledger
        self._executor = executor
        self._turns = turns
        self._outcomes = outcomes

    async def still_whole(self, found: Binding) -> bool:
        """See that a binding is in the kernel, and make it so; False if it is lost.

        The owner of a cgroup may have removed it, and made one of the same name: without a fence.
        For whoever has the binding's turn. Raises what the binder says.
        """
        self._outcomes.settle()
        if self._ledger.book.live[found.key].state == "bound":
            verified = await self._executor.verify(found)
            if verified.state == "gone":
                job, attempt = found.key
                log.warning("job %s has lost its cgroup: its binding is closed", job)
                self._ledger.note(Lost(job=job, attempt=attempt, reason="cgroup-vanished"))
                return False
            if verified.state == "ok":
                return True
            if verified.state == "differs":
                log.warning("job %s: the fence is put back: %s", found.job, verified.fault)
        await self._executor.carry_out(found, again=True)
        self._outcomes.carried_out(found)
        return True

    async def run(self) -> None:
        """Look at every binding: put a fence back, close what has lost its cgroup."""
        for key in [binding.key for binding in self._ledger.book]:
            async with self._turns.of(key):
                binding = self._ledger.book.live.get(key)
                if binding is None or binding.state not in ("committed", "bound"):
                    continue
                try:
                    await self.still_whole(binding)
                except AgentError as error:
                    log.error("job %s cannot be verified: %s", key[0], error.message)
            # The binder is waited for in place, so the loop gets its turn in between.
            await asyncio.sleep(0)
