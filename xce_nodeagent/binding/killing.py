"""Killing: ends what is left in a job's own cgroup, where that was asked for: SIGTERM, SIGKILL.

It is off every job's path. That it is to be done is in the ledger, so it goes on after a restart;
then the grace begins anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.errors import AgentError
from xce_nodeagent.model.binding import Binding, Key

log = logging.getLogger(__name__)

PAUSE = 0.05
"""Seconds between two rounds of SIGKILL, at first; then longer and longer."""

LONGEST_PAUSE = 2.0

ROUNDS = 40
"""Of SIGKILL. What is there after them hangs in the kernel; it stays quarantined, is told of, and
gets it all again when the cleaning next looks."""

NOT_KILLED = (
    "this node ends no processes: set [release] kill = 'on-request' in its configuration, then"
    " restart the agent and its helpers"
)
"""Why nobody is ended though a release asks for it."""


class Killing:
    """Ends processes of bindings that wait to be clean, which `waits` says of one.

    `again` is called when it may be worth to look again.
    """

    def __init__(
        self, executor: Executor, grace: float, waits: Callable[[Binding], bool],
        again: Callable[[], None],
    ) -> None:  # fmt: skip
        self._executor = executor
        self._grace = grace
        self._waits = waits
        self._again = again
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def begin(self, binding: Binding) -> None:
        """Begin with a binding, if that is not done already."""
        key = binding.key
        if key not in self._tasks:
            task = self._tasks[key] = asyncio.ensure_future(self._run(binding))
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _run(self, binding: Binding) -> None:
        try:
            log.info("job %s: SIGTERM to what is left in its cgroup", binding.job)
            if (await self._executor.kill(binding, "term")).left:
                await asyncio.sleep(self._grace)
                await self._kill(binding)
        except AgentError as error:
            log.error("what job %s left cannot be ended: %s", binding.job, error.message)
        finally:
            self._again()

    async def _kill(self, binding: Binding) -> None:
        pause = PAUSE
        for number in range(ROUNDS):
            if not self._waits(binding):
                return
            killed = await self._executor.kill(binding, "kill")
            if number == 0:
                log.warning("job %s: SIGKILL to what is left in its cgroup", binding.job)
                if killed.spared:
                    log.error("job %s: never ended: pids %s", binding.job, killed.spared)
            if not killed.left:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        log.error("job %s: its processes stay after SIGKILL: they hang in the kernel", binding.job)

    async def close(self) -> None:
        """Stop."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
