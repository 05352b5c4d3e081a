"""The life of bindings: prepare and grow here; release, verification and outcomes put together.

The order is always the same: decide (planner), record (ledger), act (executor, and look once more
at the host meanwhile), answer, and note the outcome. One binding is worked on by one call at a
time; different bindings do not wait for each other, but for the ledger's commit, which is one
`fdatasync`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

from xce_nodeagent.binding import answer, place, planner
from xce_nodeagent.binding.book import Book
from xce_nodeagent.binding.composer import Composer, Site
from xce_nodeagent.binding.demand import Demand, demand
from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.binding.lastlook import LastLook, LookAtNodes, Strangers
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.outcome import Outcomes
from xce_nodeagent.binding.pace import Pace
from xce_nodeagent.binding.parts import Parts
from xce_nodeagent.binding.release import Releases
from xce_nodeagent.binding.turn import Turns
from xce_nodeagent.binding.verification import Verification
from xce_nodeagent.errors import AgentError, Enforcement
from xce_nodeagent.host import cgroup as host_cgroup
from xce_nodeagent.model import name, wire
from xce_nodeagent.model.binding import Binding, Key
from xce_nodeagent.model.config import ReleaseConfig
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.provider import Divides, Provider


class Lifecycle:
    """All bindings of this host, from the first prepare to the last trace.

    `inventory` gives the current one; `mounted` is where the cgroup hierarchies are
    (host.cgroup.mounts). `look_at_nodes` is part of the last look (lastlook.py).
    `populated` says whether a process is in a cgroup, None where that is not known.
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
        look_at_nodes: LookAtNodes | None = None,
        populated: Callable[[CgroupRef], bool | None] = host_cgroup.populated,
    ) -> None:
        self.ledger = ledger
        self.book: Book = ledger.book
        self.site = site
        self.last_seen: dict[Key, float] = {}
        self.unlooked: set[Key] = set()
        """What was committed before a crash, and perhaps never looked at (lastlook.py)."""
        self._executor = executor
        self._dividing = {n: one for n, one in providers.items() if isinstance(one, Divides)}
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
            lost=lambda binding: self.releases.losses.close(binding),  # noqa: PLW0108  # the same
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
        self._strangers = Strangers(parts)
        self._mounted = mounted
        self._populated = populated
        self._clock = clock
        # Without a fence, a node is as good as the next.
        self._look_at_nodes = look_at_nodes if site.policy == "required" else None

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
                if await self.verification.still_whole(found) and await self._looked_at(found):
                    return answer.prepared(self.whole(self.book.live[key]))
                self._existing(want)
            cgroup = place.named(
                want, ask.pid, self.site, self._mounted, held=key in self.book.live
            )
            if cgroup is not None:
                want = want.in_cgroup(cgroup.path)
            if self.ledger.unseen:
                raise Enforcement(self.ledger.unseen)
            return answer.prepared(await self._bound(want, cgroup, key))

    async def _looked_at(self, found: Binding) -> bool:
        """See that what a crash left unlooked at is as it was planned; False if it is taken back.

        Whoever asks again for it may never have been answered. Where somebody is in its cgroup,
        they were, and what uses its ports is the job.
        """
        step = found.plan.cgroup
        if found.key not in self.unlooked:
            return True
        self.unlooked.discard(found.key)
        if step is None or self._populated(step.cgroup) is not False:
            return True
        look = self._look(found, None, self.inventory(), looked=not found.plan.ports)
        look()
        if look.error is None:
            return True
        await self.releases.fail(found, None, look.error)
        return False

    def _look(
        self, binding: Binding, before: Binding | None, inventory: Inventory, *, looked: bool
    ) -> LastLook:
        """Give the last look; `looked`: not at the ports, for that was done before."""
        return LastLook(
            binding,
            before,
            inventory,
            nodes=self._look_at_nodes,
            strangers=self._strangers,
            ports=None if looked else inventory.ports,
            held=self.book.ports_held(),
        )

    async def _bound(self, want: Demand, cgroup: CgroupRef | None, key: Key) -> Binding:
        """Plan, commit and carry out; again, as long as the last look finds what nobody knew."""
        inventory = self.inventory()
        pace = self.pace.prepare
        while True:
            before = self.book.live.get(key)
            started = perf_counter()
            ports = planner.wants_ports(inventory, want)
            in_use = self._strangers.known(ports, self.book.ports_held())
            event = planner.plan(
                want,
                inventory=inventory,
                book=self.book,
                composer=self._composer,
                dividing=self._dividing,
                selector=self._selector,
                site=self.site,
                cgroup=cgroup,
                ports_in_use=in_use or frozenset(),
            )
            planned = perf_counter()
            binding = self.ledger.commit(event)
            assert binding is not None  # noqa: S101  # these two events always leave a binding
            committed = perf_counter()
            look = self._look(
                binding, before, inventory, looked=ports is None or in_use is not None
            )
            await self._carry_out(binding, before, look)
            if look.error is None:
                pace["bind"].add(perf_counter() - committed)
                pace["commit"].add(committed - planned)
                pace["plan"].add(planned - started)
                pace["look"].add(look.seconds)
                return binding
            corrected = look.corrected()
            # What could not be taken back is still to be released.
            if corrected is None or (before is None and key in self.book.live):
                raise look.error
            inventory = corrected

    def _existing(self, want: Demand) -> Binding | None:
        memory = self.site.attempt_memory_seconds
        return planner.existing(self.book, want, self.ledger.elapsed() - memory)

    async def _carry_out(self, binding: Binding, before: Binding | None, look: LastLook) -> None:
        """Have it done; take it back where it cannot be, or where the look finds something."""
        try:
            await self._executor.carry_out(binding, meanwhile=look)
        except AgentError as error:
            await self.releases.fail(binding, before, error)
            raise
        if look.error is not None:
            await self.releases.fail(binding, before, look.error)
            return
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
