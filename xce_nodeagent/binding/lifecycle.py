"""The life of bindings: prepare, grow, shrink, release.

The order is always the same: decide (planner), record (ledger), act (executor), answer, and note
the outcome. One binding is worked on by one call at a time; different bindings do not wait for
each other, but for the ledger's commit, which is one `fdatasync`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from xce_nodeagent.binding import answer, leftover, place, planner
from xce_nodeagent.binding.book import Book
from xce_nodeagent.binding.cleaning import Cleaning
from xce_nodeagent.binding.composer import Composer, Site
from xce_nodeagent.binding.demand import Demand, demand
from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.parts import Parts
from xce_nodeagent.binding.turn import Turns
from xce_nodeagent.errors import AgentError, Enforcement
from xce_nodeagent.model import name, wire
from xce_nodeagent.model.binding import (
    Binding,
    Bound,
    Changed,
    Cleaned,
    Committed,
    Failed,
    Key,
    Lost,
    Released,
    ReleaseIntended,
)
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.provider import Provider

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
"""How long an outcome may wait for a commit that takes it along, before it is written alone."""


class Lifecycle:
    """All bindings of this host, from the first prepare to the last trace.

    `inventory` gives the current one; `mounted` is where the cgroup hierarchies are
    (host.cgroup.mounts).
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        executor: Executor,
        site: Site,
        providers: Mapping[str, Provider],
        selector: planner.Selector,
        inventory: Callable[[], Inventory],
        parts: Parts,
        mounted: dict[str, str],
        clock: Callable[[], float],
    ) -> None:
        self.ledger = ledger
        self.book: Book = ledger.book
        self.site = site
        self.last_seen: dict[Key, float] = {}
        self._executor = executor
        self._providers = providers
        self._composer = Composer(providers, site)
        self._selector = selector
        self._inventory = inventory
        self._parts = parts
        self._mounted = mounted
        self._clock = clock
        self._turns = Turns()
        self._carried_out: list[Binding] = []
        self._owed: set[Key] = set()
        self._flush: asyncio.TimerHandle | None = None
        self._cleaning = Cleaning(self._unclean, self._clean)

    # ---- prepare ----------------------------------------------------------------------------

    async def prepare(self, ask: wire.Prepare) -> wire.Prepared:
        """Bind what is asked for; the same ask again gets the same answer."""
        want = demand(ask)
        key = (want.job, want.attempt)
        async with self._turns.of(key):
            self.last_seen[key] = self._clock()
            held = self.book.live.get(key)
            if held is not None and ask.pid is not None:
                # The same ask again, though the process may have gone since.
                want = want.in_cgroup(held.asks[0].cgroup)
            found = self._existing(want)
            if found is not None:
                if await self._still_whole(found):
                    return answer.prepared(self.book.live[key])
                self._existing(want)
            cgroup = place.named(
                want, ask.pid, self.site, self._mounted, held=key in self.book.live
            )
            if cgroup is not None:
                want = want.in_cgroup(cgroup.path)
            inventory = self._inventory()
            divisible = planner.wants_ports(inventory, want)
            event = planner.plan(
                want,
                inventory=inventory,
                book=self.book,
                composer=self._composer,
                providers=self._providers,
                selector=self._selector,
                site=self.site,
                cgroup=cgroup,
                ports_in_use=self._parts.in_use(divisible) if divisible else frozenset(),
            )
            before = self.book.live.get(key)
            binding = self._committed(event)
            await self._carry_out(binding, before)
            return answer.prepared(binding)

    def _existing(self, want: Demand) -> Binding | None:
        memory = self.site.attempt_memory_seconds
        return planner.existing(self.book, want, self.ledger.elapsed() - memory)

    async def _still_whole(self, found: Binding) -> bool:
        """See that what was answered before is true still, and make it so; False if it is lost.

        The owner of a cgroup may have removed it, and made one of the same name: without a fence.
        """
        self.settle()
        if self.book.live[found.key].state == "bound":
            verified = await self._executor.verify(found)
            if verified.state == "gone":
                job, attempt = found.key
                log.warning("job %s has lost its cgroup: its binding is closed", job)
                self.ledger.note(Lost(job=job, attempt=attempt, reason="cgroup-vanished"))
                return False
            if verified.state == "ok":
                return True
            if verified.state == "differs":
                log.warning("job %s: the fence is put back: %s", found.job, verified.fault)
        await self._executor.carry_out(found, again=True)
        self._note_later(found)
        return True

    async def verify(self) -> None:
        """Look at every binding: put a fence back, close what has lost its cgroup."""
        for key in [binding.key for binding in self.book]:
            async with self._turns.of(key):
                binding = self.book.live.get(key)
                if binding is None or binding.state not in ("committed", "bound"):
                    continue
                try:
                    await self._still_whole(binding)
                except AgentError as error:
                    log.error("job %s cannot be verified: %s", key[0], error.message)
            # The binder is waited for in place, so the loop gets its turn in between.
            await asyncio.sleep(0)

    def _committed(self, event: Committed | Changed) -> Binding:
        binding = self.ledger.commit(event)
        assert binding is not None  # noqa: S101  # these two events always leave a binding
        return binding

    async def _carry_out(self, binding: Binding, before: Binding | None) -> None:
        try:
            await self._executor.carry_out(binding)
        except AgentError as error:
            await self.fail(binding, before, error)
            raise
        self._note_later(binding)

    async def fail(self, binding: Binding, before: Binding | None, error: AgentError) -> None:
        """Take back what could not be carried out whole, and record that, durably.

        A growth that failed leaves the binding as it was `before`. What cannot be taken back
        either (the binder is away) is left as a release that is still to be done.
        """
        if before is not None:
            instances = self._inventory().by_id()
            restored = self._committed(planner.restoring(binding, before, instances))
            await self._finish_or_owe(restored)
            return
        job, attempt = binding.key
        try:
            await self._executor.take_back(binding)
        except AgentError as second:
            log.error("job %s cannot be taken back yet: %s", job, second.message)
            self.ledger.commit(ReleaseIntended(job=job, attempt=attempt))
            self.clean_later()
            return
        self.ledger.commit(Failed(job=job, attempt=attempt, code=error.code, message=error.message))
        self.last_seen.pop(binding.key, None)

    async def _finish_or_owe(self, binding: Binding) -> None:
        """Carry out what takes something away; what cannot be now is tried again until it is.

        Until then nobody else gets what is leaving: the kernel may still let this job have it.
        """
        try:
            await self._executor.carry_out(binding)
        except AgentError as error:
            log.error("job %s keeps what it gave up, for now: %s", binding.job, error.message)
            self._owed.add(binding.key)
            self.clean_later()
        else:
            self.ledger.note(Bound(job=binding.job, attempt=binding.attempt))
            self._flush_later()

    def _note_later(self, binding: Binding) -> None:
        """Note that the plan is carried out: when there is time, or when somebody looks."""
        self._carried_out.append(binding)
        self._flush_later()

    def settle(self) -> None:
        """Note every plan that is carried out, so that the book says so."""
        done, self._carried_out = self._carried_out, []
        for binding in done:
            # The very one: another with an equal plan may not be carried out yet.
            if self.book.live.get(binding.key) is binding and binding.state == "committed":
                self.ledger.note(Bound(job=binding.job, attempt=binding.attempt))

    # ---- release ----------------------------------------------------------------------------

    async def release(self, ask: wire.Release) -> wire.Released:
        """Undo a job's bindings, or take some instances out; say what is left over.

        Releasing what is unknown, or was released, is an answer and no error.
        """
        job = name.job_id(ask.job)
        attempt = name.attempt(ask.attempt) if ask.attempt is not None else None
        bindings = self.book.of_job(job, attempt)
        if ask.instances is not None:
            return await self._shrink(bindings, ask.instances)
        if len(bindings) == 1:
            return await self.undo(bindings[0].key)
        tried = [self.undo(binding.key) for binding in bindings]
        results = await asyncio.gather(*tried, return_exceptions=True)
        for result in results:  # what cannot be released now keeps none of the others
            if isinstance(result, BaseException):
                raise result
        outcomes = [result for result in results if isinstance(result, wire.Released)]
        return wire.Released(
            released=True,
            clean=all(outcome.clean for outcome in outcomes),
            known=bool(outcomes),
            recorded=all(outcome.recorded for outcome in outcomes),
            holders=tuple(left for outcome in outcomes for left in outcome.holders),
            quarantined=tuple(i for outcome in outcomes for i in outcome.quarantined),
        )

    async def undo(self, key: Key) -> wire.Released:
        """Release one binding, whole. A second release waits for the first and finds it done."""
        async with self._turns.of(key):
            binding = self.book.live.get(key)
            if binding is None:
                return wire.Released(released=True, clean=True, known=False)
            recorded = True
            if binding.state != "quarantined":
                recorded = self._intend(binding)
            # Who listens is looked at while the binder works. Nobody did: then nobody can later,
            # for the job's processes are gone or told of. Somebody did: it may be gone by now.
            seen: list[int] = []
            try:
                unbound = await self._executor.take_back(
                    binding, lambda: seen.extend(self._listening(binding))
                )
            except AgentError:
                self.clean_later()
                raise
            left = leftover.in_cgroup(unbound)
            ports = self._listening(binding) if seen else []
            if ports:
                left += await self._parts.who(tuple(ports))
            quarantined = leftover.quarantined(binding, unbound, ports)
            if recorded:
                self._outcome(binding, left, quarantined)
            return wire.Released(
                released=True,
                clean=not left,
                recorded=recorded,
                holders=left,
                quarantined=quarantined,
            )

    def _intend(self, binding: Binding) -> bool:
        if binding.state == "releasing":
            return True
        try:
            self.ledger.commit(ReleaseIntended(job=binding.job, attempt=binding.attempt))
        except Enforcement as error:
            # The fence is closed all the same: a disk that is full must not keep devices open.
            # The binding stays in the book, so the caller's repeat can be recorded.
            log.error("release of job %s is not recorded: %s", binding.job, error.message)
            return False
        return True

    def _outcome(
        self, binding: Binding, left: tuple[wire.LeftOver, ...], quarantined: tuple[str, ...]
    ) -> None:
        job, attempt = binding.job, binding.attempt
        if binding.state == "quarantined":
            if left:
                self.clean_later()
            else:
                self.ledger.note(Cleaned(job=job, attempt=attempt))
                self.last_seen.pop(binding.key, None)
        else:
            self.ledger.note(Released(job=job, attempt=attempt, left=left, quarantined=quarantined))
            if left:
                self.clean_later()
            else:
                self.last_seen.pop(binding.key, None)
        self._flush_later()

    def _listening(self, binding: Binding) -> list[int]:
        return leftover.listening(binding, self._inventory(), self._parts)

    async def _shrink(self, bindings: list[Binding], instances: tuple[str, ...]) -> wire.Released:
        for binding in bindings:
            async with self._turns.of(binding.key):
                now = self.book.live.get(binding.key)
                if now is None or now.state not in ("committed", "bound"):
                    continue
                event = planner.shrink(
                    now,
                    instances,
                    inventory=self._inventory(),
                    composer=self._composer,
                )
                if event is not None:
                    await self._finish_or_owe(self._committed(event))
        return wire.Released(released=True, clean=True, known=bool(bindings))

    # ---- the other calls --------------------------------------------------------------------

    def one(self, job: str, attempt: str | None) -> Binding:
        """Give the live binding that is meant; raise BadRequest if there is none, or several."""
        found = self.book.of_job(name.job_id(job), attempt)
        if not found:
            raise answer.no_binding(job, attempt)
        if len(found) > 1:
            raise answer.several_bindings(job, [binding.attempt for binding in found])
        return found[0]

    # ---- turns and timers -------------------------------------------------------------------

    def _flush_later(self) -> None:
        if self._flush is None:
            loop = asyncio.get_running_loop()
            self._flush = loop.call_later(FLUSH_SECONDS, self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        self.settle()
        try:
            self.ledger.flush()
        except Enforcement as error:
            # They stay in memory and go with the next commit; a restart repeats the steps.
            log.error("outcomes are not recorded yet: %s", error.message)

    def clean_later(self) -> None:
        """See to it that what is left over is looked at until it is gone."""
        self._cleaning.later()

    def _unclean(self) -> list[Key]:
        waiting = [b.key for b in self.book if b.state in ("quarantined", "releasing")]
        return [*waiting, *self._owed]

    async def _clean(self, key: Key) -> bool:
        if key not in self._owed:
            return (await self.undo(key)).clean
        async with self._turns.of(key):
            self._owed.discard(key)
            binding = self.book.live.get(key)
            if binding is not None and binding.state == "committed":
                await self._finish_or_owe(binding)
        return key not in self._owed

    async def close(self) -> None:
        """Stop the timers and write what waits."""
        if self._flush is not None:
            self._flush.cancel()
        await self._cleaning.close()
        self.settle()
        with contextlib.suppress(Enforcement):
            self.ledger.flush()
