"""The life of bindings: prepare and grow here; release, verification and outcomes put together.

The order is always the same: decide (planner), record (ledger), act (executor), answer, and note
the outcome. One binding is worked on by one call at a time; different bindings do not wait for
each other, but for the ledger's commit, which is one `fdatasync`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter

from msgspec import structs

from xce_nodeagent.binding import answer, place, planner
from xce_nodeagent.binding.book import Book
from xce_nodeagent.binding.composer import Composer, Site
from xce_nodeagent.binding.demand import Demand, demand
from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.outcome import Outcomes
from xce_nodeagent.binding.pace import Pace
from xce_nodeagent.binding.parts import Parts
from xce_nodeagent.binding.release import Releases
from xce_nodeagent.binding.turn import Turns
from xce_nodeagent.binding.verification import Verification
from xce_nodeagent.errors import AgentError, Enforcement, Unhealthy
from xce_nodeagent.model import name, wire
from xce_nodeagent.model.binding import Binding, Changed, Committed, Key
from xce_nodeagent.model.config import ReleaseConfig
from xce_nodeagent.model.instance import DeviceNode, Instance
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.plan import AllowDevice, CgroupRef
from xce_nodeagent.provider import Provider


def _not_at_all(instances: Iterable[Instance], nodes: Iterable[DeviceNode]) -> None:
    """Look at no node: where nothing is on a disk."""


def _without(inventory: Inventory, instance: str, why: str) -> Inventory:
    """Give the inventory with an instance that is unhealthy."""
    instances = tuple(
        structs.replace(one, healthy=False, reason=why) if one.id == instance else one
        for one in inventory.instances
    )
    return structs.replace(inventory, instances=instances)


class Lifecycle:
    """All bindings of this host, from the first prepare to the last trace.

    `inventory` gives the current one; `mounted` is where the cgroup hierarchies are
    (host.cgroup.mounts). `look_at_nodes` raises Unhealthy where a node on disk is not what is
    granted: it gets the instances, and all nodes; it is on the path of a prepare.
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
        uptime: Callable[[], float],
        release: ReleaseConfig,
        look_at_nodes: Callable[[Iterable[Instance], Iterable[DeviceNode]], None] = _not_at_all,
    ) -> None:
        self.ledger = ledger
        self.book: Book = ledger.book
        self.site = site
        self.last_seen: dict[Key, float] = {}
        self._executor = executor
        self._providers = providers
        self._composer = Composer(providers, site)
        self.turns = Turns()
        self.pace = Pace()
        self.outcomes = Outcomes(ledger)
        self.verification = Verification(
            ledger,
            executor,
            self.turns,
            self.outcomes,
            clock=clock,
            finish=lambda: self.releases.clean_later(),  # noqa: PLW0108  # it comes after this
        )
        self.releases = Releases(
            ledger=ledger,
            executor=executor,
            turns=self.turns,
            outcomes=self.outcomes,
            pace=self.pace.release,
            composer=self._composer,
            parts=parts,
            inventory=inventory,
            last_seen=self.last_seen,
            clock=clock,
            uptime=uptime,
            policy=release,
        )
        self._selector = selector
        self.inventory = inventory
        self._parts = parts
        self._mounted = mounted
        self._clock = clock
        self._look_at_nodes = look_at_nodes

    # ---- prepare ----------------------------------------------------------------------------

    async def prepare(self, ask: wire.Prepare) -> wire.Prepared:
        """Bind what is asked for; the same ask again gets the same answer."""
        want = demand(ask)
        key = (want.job, want.attempt)
        async with self.turns.of(key):
            self.last_seen[key] = self._clock()
            held = self.book.live.get(key)
            if held is not None and ask.pid is not None:
                # The same ask again, though the process may have gone since.
                want = want.in_cgroup(held.asks[0].cgroup)
            found = self._existing(want)
            if found is not None:
                if await self.verification.still_whole(found):
                    return answer.prepared(self.whole(self.book.live[key]))
                self._existing(want)
            cgroup = place.named(
                want, ask.pid, self.site, self._mounted, held=key in self.book.live
            )
            if cgroup is not None:
                want = want.in_cgroup(cgroup.path)
            if self.ledger.unseen:
                raise Enforcement(self.ledger.unseen)
            before = self.book.live.get(key)
            event = self._planned(want, cgroup, before)
            started = perf_counter()
            binding = self.ledger.commit(event)
            assert binding is not None  # noqa: S101  # these two events always leave a binding
            committed = perf_counter()
            await self._carry_out(binding, before)
            self.pace.prepare["bind"].add(perf_counter() - committed)
            self.pace.prepare["commit"].add(committed - started)
            return answer.prepared(binding)

    def _planned(
        self, want: Demand, cgroup: CgroupRef | None, before: Binding | None
    ) -> Committed | Changed:
        """Plan, with a last look at the nodes on disk.

        What has a wrong one is taken for unhealthy: if it was named, that is the answer, and what
        was only counted is chosen anew without it.
        """
        inventory = self.inventory()
        divisible = planner.wants_ports(inventory, want)
        in_use = self._parts.in_use(divisible) if divisible else frozenset()
        had = set(before.instances) if before else set()
        pace = self.pace.prepare
        while True:
            started = perf_counter()
            event = planner.plan(
                want,
                inventory=inventory,
                book=self.book,
                composer=self._composer,
                providers=self._providers,
                selector=self._selector,
                site=self.site,
                cgroup=cgroup,
                ports_in_use=in_use,
            )
            planned = perf_counter()
            pace["plan"].add(planned - started)
            if self.site.policy != "required":
                return event
            chosen = set(event.instances) - had
            try:
                self._look_at_nodes(
                    [one for one in inventory.instances if one.id in chosen],
                    [step.node for step in event.plan.steps if isinstance(step, AllowDevice)],
                )
            except Unhealthy as error:
                sick = error.details.get("instance", "")
                if sick not in chosen or not inventory.by_id()[sick].healthy:
                    raise
                inventory = _without(inventory, sick, error.details["reason"])
            else:
                pace["look"].add(perf_counter() - planned)
                return event

    def _existing(self, want: Demand) -> Binding | None:
        memory = self.site.attempt_memory_seconds
        return planner.existing(self.book, want, self.ledger.elapsed() - memory)

    async def _carry_out(self, binding: Binding, before: Binding | None) -> None:
        try:
            await self._executor.carry_out(binding)
        except AgentError as error:
            await self.releases.fail(binding, before, error)
            raise
        self.outcomes.carried_out(binding)
        self.releases.vigil.began(binding)

    # ---- the other calls --------------------------------------------------------------------

    def whole(self, binding: Binding) -> Binding:
        """Give a binding with its environment; raise Unhealthy where that is lost."""
        if binding.plan.environment:  # before the first scan is done there is no inventory
            return binding
        return self._composer.whole(binding, self.inventory())

    def one(self, job: str, attempt: str | None) -> Binding:
        """Give the live binding that is meant; raise BadRequest if there is none, or several."""
        found = self.book.of_job(name.job_id(job), attempt)
        if not found:
            raise answer.no_binding(job, attempt)
        # What waits to be clean is not meant while another run of the job is there.
        found = [b for b in found if b.state in ("committed", "bound")] or found
        if len(found) > 1:
            raise answer.several_bindings(job, [binding.attempt for binding in found])
        return found[0]

    async def close(self) -> None:
        """Stop the timers and write what waits."""
        await self.releases.close()
        self.outcomes.close()
