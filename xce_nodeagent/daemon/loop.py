"""The agent's life between the first helper and the last signal: composition of what it runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from xce_nodeagent import __version__
from xce_nodeagent.binding import rebuild
from xce_nodeagent.binding.composer import Site
from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.binding.helper import Helper
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.lifecycle import Lifecycle
from xce_nodeagent.binding.recovery import recover
from xce_nodeagent.binding.supply import Dial, Supply
from xce_nodeagent.daemon import sinks, siteprogram
from xce_nodeagent.daemon.account import Places
from xce_nodeagent.daemon.agent import Agent
from xce_nodeagent.daemon.cards import NEWS, Cards
from xce_nodeagent.daemon.changes import SETTLE_SECONDS, Changes
from xce_nodeagent.daemon.examination import Examined, examine
from xce_nodeagent.daemon.exposure import Exposure
from xce_nodeagent.daemon.fencing import Fencing
from xce_nodeagent.daemon.meter import Meter
from xce_nodeagent.daemon.metrics import Measured
from xce_nodeagent.daemon.nodes import Nodes, node_watch
from xce_nodeagent.daemon.parts import Parts
from xce_nodeagent.daemon.reporter import Reporter
from xce_nodeagent.daemon.selector import Placement
from xce_nodeagent.daemon.server import Limits, Server
from xce_nodeagent.daemon.siteprogram import SiteProgram
from xce_nodeagent.daemon.survey import Survey
from xce_nodeagent.daemon.upkeep import Heart, Upkeep, reload_watch
from xce_nodeagent.errors import AgentError, Enforcement, NotReady
from xce_nodeagent.host import Host
from xce_nodeagent.host import cgroup as host_cgroup
from xce_nodeagent.host.event import AGAIN, LOST, REPORTED, Event
from xce_nodeagent.host.linkmonitor import LinkMonitor
from xce_nodeagent.host.sitewatch import SiteWatch
from xce_nodeagent.host.udev import Monitor
from xce_nodeagent.model.config import Config
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.model.wire import Check
from xce_nodeagent.privileged.notify import Notify
from xce_nodeagent.privileged.ops import WitnessAnswer
from xce_nodeagent.provider import Provider

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""How soon it is looked again when a provider said `not_yet`: an event may not come."""


class Daemon:
    """Everything that runs, wired together. It owns nothing that outlives `run`."""

    def __init__(
        self,
        *,
        config: Config,
        where: Places,
        dial: Dial,
        listener: socket.socket,
        host: Host,
        providers: Sequence[Provider],
        notify: Notify,
        monitors: Sequence[Monitor | LinkMonitor | SiteWatch],
        own_uid: int,
        helpers_are_root: bool,
    ) -> None:
        self._config = config
        self._where = where
        self._listener = listener
        self._host = host
        self._providers = {provider.name: provider for provider in providers}
        self._notify = notify
        self._monitors = monitors
        self._tasks: set[asyncio.Task[Any]] = set()
        self._upkeep: Upkeep | None = None
        self._meter = Meter()
        self._exposure = Exposure(config.metrics)
        self._stop = asyncio.Event()
        state = where.state
        places = sinks.configured(config, __version__, sinks.Endpoints(where))
        self._reporter = Reporter(places, state, __version__)
        # Helpers without root can fence nothing: `best-effort` then goes on as `off` does.
        self._enforced = enforced = config.agent.enforcement != "off" and helpers_are_root
        path, boot = state / "ledger.db", host.boot_id()
        self.ledger = Ledger(path, boot, time.time, uptime=host.uptime, fenced=enforced)
        self._supply = Supply(dial)
        fencing = Fencing(config, host, self._supply, self.ledger, enforced=enforced)
        self._fencing, self.binder = fencing, fencing.binder
        self.witness = Helper("witness", self._supply, WitnessAnswer, deadline=30.0)
        self._cards = Cards(config, host, self._supply, state, self.ledger, answered=self._ask)
        runner, pause = siteprogram.runner(config.reporter, self._supply)
        self._site_program = SiteProgram(runner, lambda: self.changed(REPORTED), interval=pause)
        host.report = (lambda: self._site_program.last) if runner else None
        own = (self._cards.prober, self._cards.listener, *((runner,) if runner else ()))
        self._helpers = (self.binder, self.witness, *own)
        self._executor = Executor(
            self.binder if enforced else None,
            lambda: fencing.managed or frozenset(),
            self.ledger.book.has_mark,
        )
        self.survey = Survey(
            host,
            providers,
            self.ledger,
            node=config.agent.node,
            fence=fencing.manage,
            foreign=fencing.foreign,
            judge=self._judge,
            kept=state / "inventory.json",
        )
        self._cards.publish = self.survey.publish
        self._nodes = Nodes(host, lambda event: self.changed(event, after=0))
        self._mounted = host_cgroup.mounts(host.read("/proc/self/mountinfo") or "")
        self._prepare_uids = frozenset({0, own_uid, *config.access.prepare_uids})

    # ---- the run ----------------------------------------------------------------------------

    async def run(self) -> int:
        """Start, serve until a signal, stop; give the exit status."""
        on_signal = asyncio.get_running_loop().add_signal_handler
        for number in (signal.SIGTERM, signal.SIGINT):
            on_signal(number, self._stop.set)
        # Somebody asks for it: they may have repaired what hung.
        on_signal(signal.SIGHUP, lambda: self.changed(LOST, after=0))
        self._heart = Heart(self._notify)
        self._changes = Changes(self._look)
        try:
            lifecycle = await self._start()
            server = self._serve(lifecycle)
            try:
                await self._stop.wait()
            finally:
                self._notify("STOPPING=1")
                log.info("stopping")
                await server.close()
                self._where.socket.unlink(missing_ok=True)
                await lifecycle.close()
        finally:
            await self._close()
            # The loop gives signals back to their defaults when it closes; until somebody has
            # said what becomes of a second one, it waits.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        return 0

    async def _start(self) -> Lifecycle:
        policy = self._config.agent.enforcement
        home: CgroupRef | None = None
        if self._enforced:
            await self.binder.start()
            taken = self._fencing.taken
            home = taken.home if taken else None
        lifecycle = Lifecycle(
            ledger=self.ledger,
            executor=self._executor,
            site=Site(
                policy=policy,
                home=home,
                roots=self._config.agent.cgroup_allowed_roots,
                visible=self._config.environment.visible_devices,
                attempt_memory_seconds=self._config.agent.attempt_memory_seconds,
            ),
            providers=self._providers,
            selector=Placement(),
            inventory=self._inventory,
            parts=Parts(self._host, self._providers, self.witness),
            mounted=self._mounted,
            clock=time.time,
            uptime=self._host.uptime,
            release=self._config.release,
            look_at_nodes=self._nodes.look,
        )
        self._lifecycle = lifecycle
        # From before the look at what is bound: what comes in between is seen then.
        self._reloads = reload_watch()
        # The witness is for later; but no helper is to be started on a job's path.
        self._spawn(self._start_witness())
        await self._compare(lifecycle.site)
        self.survey.subscribe(lambda found: rebuild.withhold(self.ledger, found))
        self.survey.subscribe(self._cards.published)
        self.survey.subscribe(self._nodes.published)
        self._nodes.watch(node_watch())
        await asyncio.gather(self._cards.ask(), self._site_program.start())
        await self.survey.refresh()
        self._cards.start()
        counts = await recover(self.ledger, self._executor, lifecycle)
        if counts:
            text = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
            log.info("bindings after the start: %s", text)
        lifecycle.releases.vigil.start()
        return lifecycle

    async def _compare(self, site: Site) -> None:
        try:
            if await rebuild.compare(self.ledger, self._executor, site, time.time()):
                self.survey.renew()
        except AgentError as error:
            if self.ledger.doubted:
                raise
            log.error("the ledger is not compared with the kernel: %s", error.message)

    async def _start_witness(self) -> None:
        try:
            await self.witness.start()
        except AgentError as error:
            log.warning("there is no witness: %s", error.message)

    def _serve(self, lifecycle: Lifecycle) -> Server:
        self.agent = Agent(
            lifecycle,
            self._executor,
            self.survey,
            self._cards,
            prepare_uids=self._prepare_uids,
            examine=self._examine,
        )
        self._reporter.start(self.survey, self.ledger)
        server = Server(
            self.agent, self._listener, version=__version__, limits=Limits(), meter=self._meter
        )
        server.start()
        self._watch()
        self._upkeep = Upkeep(
            self.ledger,
            lifecycle.outcomes,
            lifecycle.verification,
            memory_seconds=self._config.agent.attempt_memory_seconds,
            sweep=lambda: rebuild.sweep(lifecycle, self._executor, time.time()),
            watch=self._reloads,
        )
        self.survey.subscribe(self._upkeep.write_later)
        self._exposure.start(
            Measured(
                meter=self._meter,
                lifecycle=lifecycle,
                inventory=self._inventory,
                helpers=self._helpers,
                server=server,
                cards=self._cards,
                upkeep=self._upkeep,
                sinks=self._reporter.statuses,
            )
        )
        inventory = self._inventory()
        state = f"{len(inventory.instances)} instances, {len(self.ledger.book.live)} bindings"
        self._notify(f"READY=1\nSTATUS={state}")
        log.info("serving: %s", state)
        return server

    async def _close(self) -> None:
        self._heart.close()
        await self._exposure.close()
        if self._upkeep is not None:
            await self._upkeep.close()
        await self._changes.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cards.close()
        await self._reporter.close()
        self._nodes.close()
        self._site_program.close()
        for helper in self._helpers:
            helper.close()
        self._supply.close()
        with contextlib.suppress(Enforcement):
            self.ledger.close()

    # ---- what the layers below ask for ------------------------------------------------------

    def _inventory(self) -> Inventory:
        if self.survey.current is None:
            raise NotReady("discovery has not finished yet: try again in a moment")
        return self.survey.current

    def _judge(self, inventory: Inventory) -> Inventory:
        judged = self._cards.judge(inventory)
        # As before a grant: where nothing is fenced, nobody needs the nodes.
        required = self._config.agent.enforcement == "required"
        return self._nodes.judge(judged) if required else judged

    # ---- the hardware changes ---------------------------------------------------------------

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        for monitor in self._monitors:
            loop.add_reader(monitor.fileno(), self._event, monitor)
        self._retry()

    def _event(self, monitor: Monitor | LinkMonitor | SiteWatch) -> None:
        if events := monitor.drain():
            self._meter.events += len(events)
            if LOST in events:
                self._changes.missed()
            self.changed(*events)

    def changed(self, *events: Event, after: float = SETTLE_SECONDS) -> None:
        """Have looked at what these events concern, a little later and together with others."""
        self._cards.tell(events)
        self._changes.tell(events, after=after)

    async def _look(self, events: Collection[Event]) -> None:
        self._host.held_ports = frozenset(self.ledger.book.ports_held())
        started = time.perf_counter()
        await self.survey.refresh(events)
        self._meter.looks.add(time.perf_counter() - started)
        # What the bus tells is told at once; a library may take seconds for its part.
        if self._cards.concerned(events):
            self._ask()
        self._retry()

    def _retry(self) -> None:
        """See to it that who could not tell is asked again, though no event may come."""
        if self._unfinished():
            self.changed(AGAIN, after=RETRY_SECONDS)

    def _ask(self) -> None:
        self._spawn(self._ask_library())

    async def _ask_library(self) -> None:
        await self._cards.ask()
        self.changed(NEWS, after=0)

    def _unfinished(self) -> bool:
        current = self.survey.current
        return current is None or any(p.state == "not_yet" for p in current.problems)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- doctor -----------------------------------------------------------------------------

    async def _examine(self, repair: bool) -> tuple[Check, ...]:
        it = Examined(
            config=self._config,
            host=self._host,
            enforced=self._enforced,
            taken=self._fencing.taken,
            helpers=self._helpers,
            cards=self._cards.checks(),
            metrics=self._exposure.checks(),
            ledger=self.ledger,
            lifecycle=self._lifecycle,
            inventory=self.survey.current,
            managed=self._fencing.managed or frozenset(),
            upkeep=self._upkeep,
            reporter=self._reporter,
        )
        return await examine(it, time.time(), repair=repair)


def run(make: Callable[[], Daemon]) -> int:
    """Run a daemon in an event loop of its own."""

    async def main() -> int:
        return await make().run()

    return asyncio.run(main())
