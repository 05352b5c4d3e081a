"""What the site's reporter says, asked of the runner again and again, off every job's path.

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

FAULTS_SHOWN = 8


class Runner(Protocol):
    """The agent's end of the runner; `binding/helper.py` is one."""

    async def call(self, request: Any) -> Any:
        """Ask, and give the answer; raise the pinned error of a failure."""
        ...


class Reporting:
    """Asks each `interval` seconds; calls `changed` when something else is known than before.

    Without a runner there is no reporter, and it does nothing.
    """

    def __init__(
        self, runner: Runner | None, changed: Callable[[], None], *, interval: float
    ) -> None:
        self.last = Reported("not_yet", "the reporter has not answered yet")
        self._runner = runner
        self._changed = changed
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ask now, and then again and again."""
        if self._runner is not None:
            self._task = asyncio.ensure_future(self._ask_again(self._runner))

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _ask_again(self, runner: Runner) -> None:
        while True:
            await self.ask(runner)
            await asyncio.sleep(self._interval)

    async def ask(self, runner: Runner) -> None:
        """Ask once."""
        answer = await self._answer(runner)
        if answer == self.last:
            return
        if answer.state == "error":
            log.warning("the reporter: %s", answer.reason)
        self.last = answer
        self._changed()

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
