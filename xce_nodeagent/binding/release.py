"""Release: undo bindings, whole or in part, and see to it that what is left over goes, too.

What could not be carried out is taken back here as well: it is a release that nobody asked for.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from time import perf_counter

from msgspec import structs

from xce_nodeagent.binding import leftover, planner
from xce_nodeagent.binding.cleaning import Cleaning
from xce_nodeagent.binding.composer import Composer
from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.binding.intent import Intent
from xce_nodeagent.binding.killing import NOT_KILLED, Killing
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.loss import Losses
from xce_nodeagent.binding.outcome import Outcomes
from xce_nodeagent.binding.parts import Parts
from xce_nodeagent.binding.turn import Turns
from xce_nodeagent.binding.vigil import Vigil
from xce_nodeagent.errors import AgentError, BadRequest
from xce_nodeagent.model import name, wire
from xce_nodeagent.model.binding import (
    Binding,
    Bound,
    Changed,
    Cleaned,
    Failed,
    Key,
    Kill,
    Lost,
    Released,
    ReleaseIntended,
)
from xce_nodeagent.model.config import ReleaseConfig
from xce_nodeagent.model.histogram import Histogram
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.privileged.ops import Unbound

log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that whoever releases again what is quarantined waits for a look. No first release
does."""


class Releases:
    """Takes back what was given. `last_seen` loses whom it takes everything from."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        executor: Executor,
        turns: Turns,
        outcomes: Outcomes,
        pace: dict[str, Histogram],
        composer: Composer,
        parts: Parts,
        inventory: Callable[[], Inventory],
        last_seen: dict[Key, float],
        clock: Callable[[], float],
        uptime: Callable[[], float],
        policy: ReleaseConfig,
    ) -> None:
        self._ledger = ledger
        self._book = ledger.book
        self._executor = executor
        self._turns = turns
        self._outcomes = outcomes
        self._pace = pace
        self._composer = composer
        self._parts = parts
        self._inventory = inventory
        self._last_seen = last_seen
        self._owed: set[Key] = set()
        self._policy = policy
        self._cleaning = Cleaning(self._unclean, self._clean)
        self._killing = Killing(
            executor,
            policy.kill_grace_seconds,
            self._waits,
            self._cleaning.soon,
        )
        self.vigil = Vigil(
            ledger=ledger,
            parts=parts,
            inventory=inventory,
            freed=self._freed,
            withheld=self._cleaning.later,
            clock=clock,
            uptime=uptime,
            residents=policy.residents,
        )

        self.losses = Losses(
            outcomes=outcomes,
            parts=parts,
            vigil=self.vigil,
            listening=self._listening,
            withheld=self._cleaning.later,
        )

    # ---- what a caller asks for -------------------------------------------------------------

    async def release(self, ask: wire.Release) -> wire.Released:
        """Undo a job's bindings, or take some instances out; say what is left over.

        Releasing what is unknown, or was released, is an answer and no error.
        """
        job = name.job_id(ask.job)
        attempt = name.attempt(ask.attempt) if ask.attempt is not None else None
        bindings = self._book.of_job(job, attempt)
        if ask.instances is not None:
            if ask.kill == "term-then-kill":
                raise BadRequest("kill goes with the release of a whole binding, not of instances")
            return await self._shrink(bindings, ask.instances)
        # A kill that may not be must not keep the job bound: the release goes on, and says so.
        forbidden = ask.kill == "term-then-kill" and self._policy.kill == "none"
        kill = "none" if forbidden else ask.kill or self.kill_by_itself
        released = await self._all(job, attempt, bindings, kill)
        return structs.replace(released, not_killed=NOT_KILLED) if forbidden else released

    async def _all(
        self, job: str, attempt: str | None, bindings: list[Binding], kill: Kill
    ) -> wire.Released:
        if len(bindings) == 1:
            return await self.undo(bindings[0].key, kill, PATIENCE)
        tried = [self.undo(binding.key, kill, PATIENCE) for binding in bindings]
        results = await asyncio.gather(*tried, return_exceptions=True)
        for result in results:  # what cannot be released now keeps none of the others
            if isinstance(result, BaseException):
                raise result
        outcomes = [result for result in results if isinstance(result, wire.Released)]
        return wire.Released(
            released=True,
            clean=all(outcome.clean for outcome in outcomes),
            known=bool(outcomes),
            recorded=all(o.recorded for o in outcomes) and self._ledger.recorded(job, attempt),
            holders=tuple(left for outcome in outcomes for left in outcome.holders),
            quarantined=tuple(i for outcome in outcomes for i in outcome.quarantined),
            ports=tuple(port for outcome in outcomes for port in outcome.ports),
            killing=any(outcome.killing for outcome in outcomes),
        )

    @property
    def kill_by_itself(self) -> Kill:
        """What becomes of processes that are left when nobody says anything about them."""
        return "term-then-kill" if self._policy.kill == "term-then-kill" else "none"

    async def undo(
        self,
        key: Key,
        kill: Kill = "none",
        patience: float = 0.0,
        *,
        only: Binding | None = None,
    ) -> wire.Released:
        """Release one binding, whole. A second release waits for the first and finds it done.

        What was once asked to be killed stays so. `patience`: for so many seconds it is waited
        for a look who has the devices of one that is quarantined. With `only`, that very binding:
        one of the same name that was made before our turn came is younger, and is let be.
        """
        async with self._turns.of(key):
            binding = self._book.live.get(key)
            if binding is None or (only is not None and not binding.is_same(only)):
                recorded = self._ledger.recorded(*key)
                return wire.Released(released=True, clean=True, known=False, recorded=recorded)
            intent = Intent(
                functools.partial(self._intend, binding, kill),
                functools.partial(self._listening, binding),
            )
            intent.record()  # before anything is undone: a crash must not forget what was asked
            started = perf_counter()
            try:
                unbound = await self._executor.take_back(binding, intent)
                recorded, seen = intent.told()
            except AgentError:
                self.clean_later()
                raise
            self._pace["unbind"].add(perf_counter() - started)
            self._pace["commit"].add(intent.seconds)
            left = leftover.in_cgroup(unbound)
            ports = self._listening(binding) if seen else []
            if ports:
                left += await self._parts.who(tuple(ports))
            # The vigil may have freed what was quarantined meanwhile.
            binding = self._book.live.get(key)
            if binding is None:
                return wire.Released(released=True, clean=True)
            quarantined = leftover.quarantined(binding, unbound, ports)
            waits = not left and binding.state == "quarantined"
            if waits and self.vigil.doubt(binding, insists=bool(patience)):
                # Nobody is in the cgroup any more; who has the devices is for the witness to say.
                if patience:
                    await self.vigil.look(patience)
                binding = self._book.live.get(key)
                if binding is None:
                    return wire.Released(released=True, clean=True)
                left, quarantined, clean = binding.left, binding.instances, False
                self.clean_later()
            else:
                clean = not left
                self._outcome(binding, left, quarantined)
            killing = self._to_be_killed(binding, kill, unbound)
            if killing:
                self._killing.begin(binding)
            return wire.Released(
                released=True,
                clean=clean,
                recorded=recorded,
                holders=left,
                quarantined=quarantined,
                ports=tuple(h.port for h in binding.plan.ports if h.instance in quarantined),
                killing=killing,
            )

    def _to_be_killed(self, binding: Binding, kill: Kill, unbound: Unbound) -> bool:
        asked = "term-then-kill" in (binding.kill, kill) and self._policy.kill != "none"
        return asked and (unbound.populated or bool(unbound.pids))

    def _waits(self, binding: Binding) -> bool:
        """Say whether a binding is still to be clean: the very one, not a later run of the job."""
        live = self._book.live.get(binding.key)
        if live is None or not live.is_same(binding):
            return False
        return live.state in ("releasing", "quarantined")

    def _intend(self, binding: Binding, kill: Kill) -> bool:
        more = kill != "none" and binding.kill == "none"
        if binding.state in ("releasing", "quarantined") and not more:
            return self._ledger.recorded(*binding.key)
        # The fence is closed all the same: a disk that is full must not keep devices open. What is
        # not on the disk yet is tried again by itself, and nobody gets the instances before.
        job, attempt = binding.key
        if self._ledger.record(ReleaseIntended(job=job, attempt=attempt, kill=kill)):
            return True
        log.error("release of job %s is not recorded yet", binding.job)
        self._outcomes.flush_later()
        return False

    def _outcome(
        self, binding: Binding, left: tuple[wire.LeftOver, ...], quarantined: tuple[str, ...]
    ) -> None:
        job, attempt = binding.job, binding.attempt
        if binding.state == "quarantined":
            if not left:
                self._freed(binding.key)
        else:
            self._outcomes.note(
                Released(job=job, attempt=attempt, left=left, quarantined=quarantined)
            )
            self.vigil.left(binding, tuple(i for i in binding.instances if i not in quarantined))
            if not left:
                self._last_seen.pop(binding.key, None)
        if left:
            self.clean_later()

    def _freed(self, key: Key) -> None:
        """Note that a quarantined binding is clean."""
        self._outcomes.note(Cleaned(job=key[0], attempt=key[1]))
        self._last_seen.pop(key, None)
        log.info("job %s is clean now: its instances are free", key[0])

    def _listening(self, binding: Binding) -> list[int]:
        ports = leftover.listening(binding, self._inventory(), self._parts)
        if not ports:
            return ports
        theirs = {
            hold.port for other in leftover.after(binding, self._book) for hold in other.plan.ports
        }
        return [port for port in ports if port not in theirs]

    async def _shrink(self, bindings: list[Binding], instances: tuple[str, ...]) -> wire.Released:
        withheld: list[str] = []
        for binding in bindings:
            async with self._turns.of(binding.key):
                now = self._book.live.get(binding.key)
                if now is None or now.state not in ("committed", "bound"):
                    continue
                event = planner.shrink(
                    now,
                    instances,
                    inventory=self._inventory(),
                    composer=self._composer,
                )
                if event is not None:
                    away = tuple(i for i in now.instances if i not in event.instances)
                    await self._finish_or_owe(self._changed(event), now, away)
                elif binding.key in self._owed:
                    await self._finish_or_owe(now)
                if binding.key in self._owed:
                    leaving = self._book.live[binding.key].leaving
                    withheld += [i for i in instances if i in leaving and i not in withheld]
        recorded = all(self._ledger.recorded(*binding.key) for binding in bindings)
        return wire.Released(
            released=True,
            clean=not withheld,
            known=bool(bindings),
            recorded=recorded,
            quarantined=tuple(withheld),
        )

    # ---- what could not be carried out ------------------------------------------------------

    async def fail(self, binding: Binding, before: Binding | None, error: AgentError) -> None:
        """Take back what could not be carried out whole, and record that, durably.

        A growth that failed leaves the binding as it was `before`. What cannot be taken back
        either (the binder is away) is left as a release that is still to be done.
        """
        if before is not None:
            instances = self._inventory().by_id()
            restored = self._changed(planner.restoring(binding, before, instances))
            # The job runs: it may have opened what it had for a moment.
            added = tuple(one for one in binding.instances if one not in before.instances)
            await self._finish_or_owe(restored, binding, added)
            return
        job, attempt = binding.key
        try:
            unbound = await self._executor.take_back(binding)
        except AgentError as second:
            log.error("job %s cannot be taken back yet: %s", job, second.message)
            self._ledger.record(ReleaseIntended(job=job, attempt=attempt))
            self.clean_later()
            return
        failed = Failed(job=job, attempt=attempt, code=error.code, message=error.message)
        bound = self._book.live[binding.key].state == "bound"  # after a crash
        lost = Lost(job=job, attempt=attempt, reason=error.code)
        self._ledger.record(lost if bound else failed)
        self._last_seen.pop(binding.key, None)
        if not unbound.gone:  # a cgroup of the caller's, in which somebody may be
            self.vigil.left(binding, binding.instances)

    def owe(self, binding: Binding) -> None:
        """Have a binding carried out as soon as that can be."""
        self._owed.add(binding.key)
        self.clean_later()

    def _changed(self, event: Changed) -> Binding:
        if not self._ledger.record(event):
            self._outcomes.flush_later()
        return self._book.live[event.job, event.attempt]

    async def _finish_or_owe(
        self, binding: Binding, before: Binding | None = None, away: tuple[str, ...] = ()
    ) -> None:
        """Carry out what takes something away; what cannot be now is tried again until it is.

        Until then nobody else gets what is leaving: the kernel may still let this job have it.
        """
        try:
            await self._executor.carry_out(binding)
        except AgentError as error:
            log.error("job %s is not as it should be, for now: %s", binding.job, error.message)
            self.owe(binding)
        else:
            self._owed.discard(binding.key)
            self._outcomes.note(Bound(job=binding.job, attempt=binding.attempt))
            if before is not None:
                self.vigil.left(before, away)

    # ---- what is left over ------------------------------------------------------------------

    def clean_later(self) -> None:
        """See to it that what is left over is looked at until it is gone."""
        self._cleaning.later()

    def _unclean(self) -> list[Key]:
        waiting = [b.key for b in self._book if b.state in ("quarantined", "releasing")]
        return [*waiting, *self._owed]

    async def _clean(self, key: Key) -> bool:
        if key not in self._owed:
            binding = self._book.live.get(key)
            if binding is not None and binding.state in ("quarantined", "releasing"):
                await self.undo(key, only=binding)
            return False  # whoever finds it clean says so
        async with self._turns.of(key):
            self._owed.discard(key)
            binding = self._book.live.get(key)
            if binding is not None and binding.state == "committed":
                await self._finish_or_owe(binding)
        return key not in self._owed

    async def close(self) -> None:
        """Stop looking."""
        await self._killing.close()
        await self.vigil.close()
        await self._cleaning.close()
