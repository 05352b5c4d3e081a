"""Upkeep: what is done by the clock, off every job's path."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from xce_nodeagent.binding.ledger import CHECKPOINT_AFTER, Ledger
from xce_nodeagent.binding.outcome import Outcomes
from xce_nodeagent.binding.verification import Found, Verification
from xce_nodeagent.daemon.reloads import Reloads
from xce_nodeagent.errors import AgentError, Enforcement
from xce_nodeagent.host.reload import ReloadWatch
from xce_nodeagent.privileged.notify import Notify

log = logging.getLogger(__name__)

VERIFY_SECONDS = 300.0
"""How often what the kernel has is compared with the ledger: there is no event for it."""

MAINTAIN_SECONDS = 10.0
"""How long after a commit the log is folded in, if enough came together."""


class Upkeep:
    """Folds the ledger's log in after many writes, and verifies every binding now and then.

    `commits` counts transactions of the ledger since then.
    """

    def __init__(
        self,
        ledger: Ledger,
        outcomes: Outcomes,
        verification: Verification,
        *,
        memory_seconds: float,
        sweep: Callable[[], Coroutine[Any, Any, None]],
        watch: ReloadWatch | None = None,
    ) -> None:
        """Start. `memory_seconds`: how long released attempts are remembered.

        `sweep` looks for what the ledger does not know. `watch` tells when systemd may have touched
        cgroups; it is closed at the end.
        """
        self.commits = 0
        self._ledger = ledger
        self._outcomes = outcomes
        self._verification = verification
        self._memory = memory_seconds
        self._sweep = sweep
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._waiting = False
        self._maintaining: asyncio.TimerHandle | None = None
        ledger.on_write = self._written
        self._verify_later()
        self.write_later()
        self.reloads = (
            Reloads(watch, self._verify_all, lambda: verification.count.cpu) if watch else None
        )

    def _written(self) -> None:
        self.commits += 1
        if self._maintaining is None and self._ledger.written >= CHECKPOINT_AFTER:
            loop = asyncio.get_running_loop()
            self._maintaining = loop.call_later(MAINTAIN_SECONDS, self._maintain_now)

    def _maintain_now(self) -> None:
        self._maintaining = None
        self._spawn(self._maintain())

    async def _maintain(self) -> None:
        try:
            self._ledger.prune(self._ledger.elapsed() - self._memory)
            await asyncio.to_thread(self._ledger.checkpoint)
        except Enforcement as error:
            log.error("%s", error.message)

    def write_later(self, _: object = None) -> None:
        """See to it that what could not be written when it was told is, though nobody asks.

        Only then there is a timer: an idle agent sleeps.
        """
        if self._ledger.waits:
            self._outcomes.flush_later()

    def _verify_later(self) -> None:
        later = asyncio.get_running_loop().call_later
        self._verifying = later(VERIFY_SECONDS, self._verify_now)

    def _verify_now(self) -> None:
        self._verify_all()
        self._verify_later()

    def _verify_all(self) -> None:
        if not self._waiting:  # one that waits for its turn sees all that was until now
            self._waiting = True
            self._spawn(self._verify())

    async def _verify(self) -> None:
        async with self._turn:
            self._waiting = False
            await asyncio.to_thread(self._ledger.look)
            if why := self._ledger.check():  # it is written anew here, if it was not whole
                log.debug("%s", why)
            await self._round(deep=False)

    async def repair(self) -> list[Found]:
        """Do at once, and more thoroughly, what is done by the clock; give what was found."""
        async with self._turn:
            return await self._round(deep=True)

    async def _round(self, *, deep: bool) -> list[Found]:
        found = await self._verification.run(deep=deep)
        try:
            await self._sweep()
        except AgentError as error:
            log.error("the cgroups cannot be compared with the ledger: %s", error.message)
        self.write_later()
        return found

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop, in the middle of whatever it does."""
        self._ledger.on_write = lambda: None
        self._verifying.cancel()
        if self.reloads is not None:
            self.reloads.close()
        if self._maintaining is not None:
            self._maintaining.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def reload_watch() -> ReloadWatch | None:
    """Give what sees systemd reload; None where there is no systemd."""
    try:
        return ReloadWatch()
    except OSError as error:
        log.info("no systemd is watched for reloads: %s", error)
        return None


class Heart:
    """Tells systemd's watchdog that the event loop turns."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._timer: asyncio.TimerHandle | None = None
        self._beat()

    def _beat(self) -> None:
        if seconds := self._notify.watchdog:
            self._notify("WATCHDOG=1")
            self._timer = asyncio.get_running_loop().call_later(seconds / 2, self._beat)

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
