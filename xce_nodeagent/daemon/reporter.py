"""The reporter: has the node's newest state brought to every sink that is configured.

The event loop notes that something changed, and a moment later leaves the newest inventory and
bindings for the sinks' threads: all else (reports, files, the network) is theirs, so that nothing
on a job's path waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.daemon.agentid import agent_id
from xce_nodeagent.daemon.survey import Survey
from xce_nodeagent.upstream.delivery import Delivery, Status
from xce_nodeagent.upstream.newest import Newest
from xce_nodeagent.upstream.report import Series
from xce_nodeagent.upstream.sink import Sink

SETTLE_SECONDS = 0.03
"""How long changes are collected: a prepare is two, a driver that loads is many."""

CLOSE_SECONDS = 1.0
"""How long the end of the agent waits for sinks that take their time."""


class Reporter:
    """Reports to sinks. `state` is the folder that has the agent's id, `program` the version."""

    def __init__(self, sinks: Iterable[Sink], state: Path, program: str) -> None:
        sinks = tuple(sinks)
        agent = agent_id(state) if sinks else ""
        self._newest = Newest(Series(agent=agent, program=program, started=time.time()))
        self._deliveries = tuple(
            Delivery(
                sink,
                self._newest,
                Random(),  # noqa: S311  # for jitter
                cap=sink.patience,
            )
            for sink in sinks
        )
        self._survey: Survey | None = None
        self._ledger: Ledger | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, survey: Survey, ledger: Ledger) -> None:
        """Report what these have, now and whenever it changes. It does nothing without a sink."""
        if not self._deliveries:
            return
        self._survey, self._ledger = survey, ledger
        self._loop = asyncio.get_running_loop()
        survey.subscribe(self._changed)
        ledger.book.on_change = self._changed
        self._tell()
        for delivery in self._deliveries:
            delivery.start()

    def statuses(self) -> Sequence[Status]:
        """Say how it stands with each sink."""
        return [delivery.status for delivery in self._deliveries]

    async def close(self) -> None:
        """Have the newest delivered where all is well, and end; who hangs is left behind."""
        if self._ledger is None:
            return
        self._ledger.book.on_change = lambda: None
        self._tell()
        for delivery in self._deliveries:
            delivery.stop()
        until = time.monotonic() + CLOSE_SECONDS
        for delivery in self._deliveries:
            await asyncio.to_thread(delivery.join, max(0.0, until - time.monotonic()))

    def _changed(self, _: object = None) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(SETTLE_SECONDS, self._tell)

    def _tell(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._survey is not None and self._ledger is not None and self._survey.current:
            self._newest.tell(self._survey.current, self._ledger.book.live.values())
