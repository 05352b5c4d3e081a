"""The site's program of `[reporter]`: what it says, asked of the runner, off every job's path.

What it said the last time that all was well stays while it fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from xce_nodeagent.binding.helper import Helper
from xce_nodeagent.binding.supply import Supply
from xce_nodeagent.errors import AgentError
from xce_nodeagent.model.config import ReporterConfig
from xce_nodeagent.model.declared import read_report
from xce_nodeagent.model.site import Reported
from xce_nodeagent.privileged.ops import Report, RunnerAnswer

log = logging.getLogger(__name__)

GRACE = 5.0
"""Seconds that the runner has beyond those of its program, to end it and to say so."""

PATIENCE = 3.0
"""Seconds that the agent's start waits for the first answer."""

FAULTS_SHOWN = 8


class Runner(Protocol):
    """The agent's end of the runner; `binding/helper.py` is one."""

    async def call(self, request: Any) -> Any:
        """Ask, and give the answer; raise the pinned error of a failure."""
        ...


class SiteProgram:
    """Asks each `interval` seconds; calls `changed` when something else is known than before.

    Without a runner there is no reporter, and it does nothing.
    """

    def __init__(
        self,
        runner: Runner | None,
        changed: Callable[[], None],
        *,
        interval: float,
        patience: float = PATIENCE,
    ) -> None:
        self.last = Reported("not_yet", "the reporter has not answered yet")
        self._runner = runner
        self._changed = changed
        self._interval = interval
        self._patience = patience
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Ask now, and then again and again; return with the first answer, or without it.

        What came meanwhile is in the agent's first look, and is no change: else each start of the
        agent would tell that all that is reported went, and came again.
        """
        if self._runner is None:
            return
        first = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._ask_again(self._runner, first))
        await asyncio.wait({first}, timeout=self._patience)
        first.cancel()

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _ask_again(self, runner: Runner, first: asyncio.Future[None]) -> None:
        while True:
            changed = await self._renewed(runner)
            if not first.done():
                first.set_result(None)
            elif changed:
                self._changed()
            await asyncio.sleep(self._interval)

    async def _renewed(self, runner: Runner) -> bool:
        """Ask once; say whether something else is known than before."""
        answer = await self._answer(runner)
        if answer == self.last:
            return False
        if answer.state == "error":
            log.warning("the reporter: %s", answer.reason)
        self.last = answer
        return True

    async def _answer(self, runner: Runner) -> Reported:
        known = self.last.declared
        try:
            answer = await runner.call(Report())
        except AgentError as error:
            return Reported("error", f"the runner does not answer: {error.message}", known)
        if answer.state != "found":
            return Reported("error", answer.reason, known)
        found = read_report(answer.output)
        if found.faults:
            told = found.faults[:FAULTS_SHOWN]
            more = len(found.faults) - len(told)
            why = "; ".join((*told, f"and {more} more") if more else told)
            return Reported("error", f"what it printed is wrong: {why}", known)
        return Reported("found", "", found)


def runner(config: ReporterConfig, supply: Supply) -> tuple[Helper | None, int]:
    """Give the agent's end of the runner, None where no program is named; and the interval."""
    helper = None
    if config.program:
        deadline = config.timeout_seconds + GRACE
        helper = Helper("runner", supply, RunnerAnswer, deadline=deadline, generations=1)
    return helper, config.interval_seconds
