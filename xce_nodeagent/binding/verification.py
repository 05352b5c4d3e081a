"""Verification: what the ledger says is compared with what the kernel has, and put right.

Nothing is ever taken away to be put back: a program is swapped or added, grants are swapped whole,
and on cgroup v1 the same lines are written again. What cannot be put right is a fault of the
binding, which then is unhealthy, until a later look finds it whole.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, NamedTuple

from msgspec import Struct

from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.outcome import Outcomes
from xce_nodeagent.binding.turn import Turns
from xce_nodeagent.errors import AgentError, Enforcement
from xce_nodeagent.model.binding import Binding, Key, ReleaseIntended
from xce_nodeagent.model.plan import MakeCgroup
from xce_nodeagent.privileged.ops import Mask

log = logging.getLogger(__name__)

MASKED = "masked by "
"""How a fault begins that programs of others are."""

GONE = "its cgroup is gone"
"""How it is told that a cgroup was removed: the binding is closed when it is looked at next."""

Result = Literal[
    "whole", "repaired", "re-asserted", "masked", "cgroup-vanished", "released", "failed"
]


class Found(NamedTuple):
    """What became of one binding. `text`: what was wrong, or why it cannot be put right."""

    key: Key
    result: Result
    text: str = ""
    error: AgentError | None = None


class Count(Struct):
    """What was done since the start.

    `last` is the end of the last round, in seconds since the epoch, and 0 before it; `cpu` is what
    that round took, in seconds of CPU.
    """

    verified: int = 0
    repaired: int = 0
    reasserted: int = 0
    masked: int = 0
    vanished: int = 0
    failed: int = 0
    rounds: int = 0
    last: float = 0.0
    cpu: float = 0.0


class Verification:
    """Looks at bindings that were answered, and keeps what was answered true.

    `home_fault` is what is wrong with what all bindings share, and cannot be put right.
    """

    def __init__(
        self,
        ledger: Ledger,
        executor: Executor,
        turns: Turns,
        outcomes: Outcomes,
        *,
        clock: Callable[[], float],
        finish: Callable[[], None],
        lost: Callable[[Binding], Awaitable[None]],
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        """Put it together.

        `finish` sees to it that what is being released is finished; `lost` closes a binding whose
        cgroup is gone.
        """
        self._ledger = ledger
        self._executor = executor
        self._turns = turns
        self._outcomes = outcomes
        self._finish = finish
        self._lost = lost
        self._clock = clock
        self._cpu = cpu
        self._one_round = asyncio.Lock()
        self.count = Count()
        self.home_fault = ""
        # By key, with the `since` of the very binding: another may have the key later.
        self._faults: dict[Key, tuple[float, str]] = {}
        self._notes: dict[Key, tuple[float, str]] = {}
        self._told: dict[Key, str] = {}

    def fault(self, binding: Binding) -> str:
        """Give what is wrong with a binding as far as is known; "" when it is healthy."""
        return _of(self._faults, binding)

    def note(self, binding: Binding) -> str:
        """Give what is to be known of a binding that is healthy; "" for nothing."""
        return _of(self._notes, binding)

    # ---- one binding ------------------------------------------------------------------------

    async def still_whole(self, found: Binding) -> bool:
        """See that a binding is in the kernel, and make it so; False if it is lost.

        The owner of a cgroup may have removed it, and made one of the same name: without a fence.
        For whoever has the binding's turn. Raises what the binder says.
        """
        self._outcomes.settle()
        if self._ledger.book.live[found.key].state == "bound":
            seen = await self.restore(found)
            if seen.error is not None and found.enforcement != "best-effort":
                raise seen.error
            return seen.result not in ("cgroup-vanished", "released")
        await self._executor.carry_out(found, again=True)
        self._outcomes.carried_out(found)
        return True

    async def restore(self, binding: Binding, *, deep: bool = False) -> Found:
        """Compare a bound one with the kernel, and put right what differs. It raises nothing.

        `deep`: where a deny cannot be seen (cgroup v1), give the job's sub-cgroups again what is
        granted, also where a step took it from itself. For whoever has the binding's turn.
        """
        try:
            found = await self._restore(binding, deep=deep)
        except AgentError as error:
            found = Found(binding.key, "failed", error.message, error)
        self._keep(binding, found)
        return found

    async def _restore(self, binding: Binding, *, deep: bool) -> Found:
        key = binding.key
        seen = await self._executor.verify(binding)
        wrong, stray = seen.fault, ""
        if seen.state == "stray":
            if self._ledger.book.has_mark(wrong):
                # Removed and made again since, and bound to that one.
                return await self._vanished(binding, "its cgroup is another binding's now")
            wrong, stray = "its mark was changed", wrong
        if seen.state == "gone" and not _maybe_never_made(binding):
            return await self._vanished(binding, wrong)
        if seen.state == "released":
            # The ledger has lost the release, or could not be written then. It stands.
            self._outcomes.note(ReleaseIntended(job=key[0], attempt=key[1]))
            self._finish()
            return Found(key, "released", wrong)
        if seen.state == "ok":
            return self._masked(binding, seen.masks) or Found(key, "whole")
        known = seen.state != "unverifiable"
        await self._executor.repair(binding, deep=deep or known, stray=stray)
        if not known:
            return Found(key, "re-asserted")
        seen = await self._executor.verify(binding)
        if seen.state not in ("ok", "unverifiable"):
            raise Enforcement(f"it was put back, and is not as it should be: {seen.fault}")
        return self._masked(binding, seen.masks) or Found(key, "repaired", wrong)

    async def _vanished(self, binding: Binding, why: str) -> Found:
        await self._lost(binding)
        return Found(binding.key, "cgroup-vanished", why)

    def _masked(self, binding: Binding, masks: Iterable[Mask]) -> Found | None:
        """Judge programs of others. One that a job without devices has takes nothing from it."""
        self._notes.pop(binding.key, None)
        if not binding.plan.grants:
            return None
        if old := [mask for mask in masks if not mask.new]:
            text = f"{MASKED}{_listed(old)}, since before it was bound"
            self._notes[binding.key] = (binding.since, text)
        if new := [mask for mask in masks if mask.new]:
            return Found(
                binding.key,
                "masked",
                f"{MASKED}{_listed(new)}, which came after the job was bound, and may refuse"
                " what the job was given",
            )
        return None

    def _keep(self, binding: Binding, found: Found) -> None:
        """Count, remember the fault, and tell it once."""
        job, key = binding.job, found.key
        count = self.count
        count.verified += 1
        was = self._faults.pop(key, None)
        telling = f"{found.result}: {found.text}"
        news = self._told.get(key) != telling
        self._told[key] = telling
        match found.result:
            case "whole" | "re-asserted":
                count.reasserted += found.result == "re-asserted"
                del self._told[key]
                if was is not None:
                    log.info("job %s: the fence is whole again", job)
            case "repaired":
                count.repaired += 1
                if news:
                    log.warning("job %s: the fence is put back: %s", job, found.text)
            case "cgroup-vanished":
                count.vanished += 1
                del self._told[key]
                log.warning("job %s has lost its cgroup: its binding is closed", job)
            case "released":
                del self._told[key]
                log.warning("job %s was released, and the ledger did not know", job)
            case "masked" | "failed":
                count.masked += found.result == "masked"
                count.failed += found.result == "failed"
                self._faults[key] = (binding.since, found.text)
                if news and found.result == "masked":
                    log.warning("job %s: %s", job, found.text)
                elif news:
                    log.error("job %s: the fence cannot be put back: %s", job, found.text)

    # ---- all of them ------------------------------------------------------------------------

    async def run(self, *, deep: bool = False) -> list[Found]:
        """Look at every binding: put a fence back, close what has lost its cgroup.

        Gives what was found, the whole ones included. One round after the other; each binding
        is a turn of the event loop, so that a prepare waits for one binding and no more.
        """
        async with self._one_round:
            before = await self._home()
            used = 0.0
            round_: list[Found] = []
            for key in [binding.key for binding in self._ledger.book]:
                async with self._turns.of(key):
                    started = self._cpu()
                    found = await self._one(key, deep=deep)
                    used += self._cpu() - started
                if found is not None:
                    round_.append(found)
                # The binder is waited for in place, so the loop gets its turn in between.
                await asyncio.sleep(0)
            after = await self._binder_cpu()
            if before is not None and after is not None and after > before:
                used += after - before
            self.count.rounds += 1
            self.count.last = self._clock()
            self.count.cpu = used
            self._forget()
            return round_

    async def _one(self, key: Key, *, deep: bool) -> Found | None:
        self._outcomes.settle()
        binding = self._ledger.book.live.get(key)
        if binding is None or binding.state not in ("committed", "bound"):
            return None
        if binding.state == "bound":
            return await self.restore(binding, deep=deep)
        try:
            await self.still_whole(binding)
        except AgentError as error:
            log.error("job %s cannot be carried out: %s", key[0], error.message)
            return Found(key, "failed", error.message, error)
        return Found(key, "whole")

    async def _home(self) -> float | None:
        """Put right what all bindings share; give the CPU that the binder had used before."""
        try:
            seen = await self._executor.verify_home()
            if seen is None:
                return None
            before, wrong = seen.cpu, seen.fault
            if wrong:
                await self._executor.repair_home()
                seen = await self._executor.verify_home()
            fault = seen.fault if seen else ""
        except AgentError as error:
            before, wrong, fault = None, error.message, error.message
        if wrong and not fault:
            self.count.repaired += 1
            log.warning("what all fences share is put back: %s", wrong)
        elif fault and fault != self.home_fault:
            log.error("what all fences share cannot be put back: %s", fault)
        self.home_fault = fault
        return before

    async def _binder_cpu(self) -> float | None:
        try:
            seen = await self._executor.verify_home()
        except AgentError:
            return None
        return None if seen is None else seen.cpu

    def _forget(self) -> None:
        live = self._ledger.book.live
        for kept in (self._faults, self._notes, self._told):
            for key in [key for key in kept if key not in live]:
                del kept[key]

    async def compare(self) -> dict[Key, str]:
        """Look at every binding and change nothing; give what is wrong with each that differs."""
        wrong: dict[Key, str] = {}
        for key in [binding.key for binding in self._ledger.book]:
            async with self._turns.of(key):
                binding = self._ledger.book.live.get(key)
                if binding is not None and binding.state == "bound":
                    try:
                        seen = await self._executor.verify(binding)
                    except AgentError as error:
                        wrong[key] = error.message
                    else:
                        if seen.state == "gone":
                            wrong[key] = f"{GONE}: {seen.fault}"
                        elif seen.state == "differs":
                            wrong[key] = seen.fault
                        elif seen.state == "stray":
                            wrong[key] = "its mark was changed"
            await asyncio.sleep(0)
        return wrong


def _maybe_never_made(binding: Binding) -> bool:
    """Say whether a cgroup that is not there is no sign that the job has ended.

    Where no fence is required, a job goes on when the binder could not make one.
    """
    return binding.enforcement == "best-effort" and isinstance(binding.plan.cgroup, MakeCgroup)


def _of(kept: dict[Key, tuple[float, str]], binding: Binding) -> str:
    since, text = kept.get(binding.key, (0.0, ""))
    return text if since == binding.since else ""


def _listed(masks: Iterable[Mask]) -> str:
    return ", ".join(
        f"program {mask.name or 'without a name'} (id {mask.id}) on"
        f" {mask.cgroup or 'a cgroup above'}"
        for mask in masks
    )
