"""The agent: what its clients see (`service.py`), put together from what the layers below do."""

# ruff: noqa: ARG002  # Service gives every method its peer; few need it

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable

from xce_nodeagent.binding import absence, answer
from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.binding.join import join
from xce_nodeagent.binding.lifecycle import Lifecycle
from xce_nodeagent.binding.reconcile import reconcile
from xce_nodeagent.binding.verification import GONE
from xce_nodeagent.daemon.cards import NEWS, Cards
from xce_nodeagent.daemon.connection import Peer
from xce_nodeagent.daemon.survey import Survey
from xce_nodeagent.errors import AgentError, BadRequest, NotPermitted, NotReady, UnknownInstance
from xce_nodeagent.host import cgroup as host_cgroup
from xce_nodeagent.model import wire
from xce_nodeagent.model.binding import Binding, Drained, Undrained
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory, with_holders

log = logging.getLogger(__name__)

REASON_LIMIT = 1024
DOCTOR_SECONDS = 5.0
PORTS_SECONDS = 1.0


class Agent:
    """Answers every method of `io.xce.NodeAgent`. It keeps what doctor saw last."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        executor: Executor,
        survey: Survey,
        cards: Cards,
        *,
        prepare_uids: frozenset[int],
        examine: Callable[[bool], Awaitable[tuple[wire.Check, ...]]],
    ) -> None:
        self._lifecycle = lifecycle
        self._executor = executor
        self._survey = survey
        self._cards = cards
        self._prepare_uids = prepare_uids
        self._examine = examine
        self._examining = asyncio.Lock()
        self._ports_at = -PORTS_SECONDS
        self._examined_at = -DOCTOR_SECONDS
        self._checks: tuple[wire.Check, ...] = ()

    def may_prepare(self, uid: int) -> bool:
        """Say whether the configuration lets this user prepare and release."""
        return uid in self._prepare_uids

    def inventory(self) -> Inventory:
        """Give the inventory without holders; raise NotReady before the first scan is done."""
        current = self._survey.current
        if current is None:
            raise NotReady("discovery has not finished yet: try again in a moment")
        return current

    async def prepare(self, peer: Peer, ask: wire.Prepare) -> wire.Prepared:
        """Bind instances to a job."""
        return await self._lifecycle.prepare(ask)

    async def release(self, peer: Peer, ask: wire.Release) -> wire.Released:
        """Release a job's binding, or some instances of it."""
        return await self._lifecycle.releases.release(ask)

    async def join(self, peer: Peer, ask: wire.Join) -> wire.Joined:
        """Move a process, without a pid the caller itself, into its job's cgroup."""
        binding = self._lifecycle.whole(self._lifecycle.one(ask.job, ask.attempt))
        await join(
            self._executor,
            binding,
            peer.pid if ask.pid is None else ask.pid,
            peer_uid=peer.uid,
            may_prepare=self.may_prepare(peer.uid),
        )
        return wire.Joined(cgroup=answer.cgroup(binding), env=binding.plan.environment)

    async def reconcile(self, peer: Peer, ask: wire.Reconcile) -> wire.Reconciled:
        """Release what the caller does not name."""
        return await reconcile(self._lifecycle, ask, time.time())

    async def get_inventory(self, peer: Peer) -> Inventory:
        """Give the inventory as it is now, with `held_by`."""
        # Who else uses ports changes without an event. Once a second is enough for people, and
        # keeps whoever asks in a loop from writing a generation each time.
        if time.monotonic() - self._ports_at >= PORTS_SECONDS:
            self._ports_at = time.monotonic()
            self._survey.look_at_ports()
        return with_holders(self.inventory(), self._lifecycle.book.held())

    def subscribe(self, callback: Callable[[Inventory], None]) -> Callable[[], None]:
        """Call back with each new inventory; the result ends that."""
        held = self._lifecycle.book.held
        return self._survey.subscribe(lambda inventory: callback(with_holders(inventory, held())))

    async def list_bindings(self, peer: Peer) -> wire.Bindings:
        """Give all bindings, without their environment."""
        self._lifecycle.outcomes.settle()
        return wire.Bindings(
            bindings=tuple(self._view(binding, env=False) for binding in self._lifecycle.book)
        )

    async def get_binding(self, peer: Peer, ask: wire.JobRef) -> wire.OneBinding:
        """Give one binding; its environment only to who may prepare and to the job's user."""
        self._lifecycle.outcomes.settle()
        binding = self._lifecycle.one(ask.job, ask.attempt)
        env = self.may_prepare(peer.uid) or peer.uid == binding.uid
        return wire.OneBinding(binding=self._view(binding, env=env))

    def _view(self, binding: Binding, *, env: bool) -> wire.BindingView:
        lost = ""
        if env and binding.state in ("committed", "bound"):
            try:
                binding = self._lifecycle.whole(binding)
            except AgentError as error:
                lost = error.message
        vigil = self._lifecycle.releases.vigil
        step = binding.plan.cgroup
        fault = self._lifecycle.verification.fault(binding)
        if not fault and step and binding.state == "bound" and not os.path.isdir(step.cgroup.path):
            fault = (
                f"{GONE}: the agent closes the binding within five minutes, a repair does so now"
            )
        return answer.view(
            binding,
            last_seen=self._lifecycle.last_seen.get(binding.key, binding.since),
            populated=host_cgroup.populated(step.cgroup) if step else None,
            env=env,
            fault=fault or lost,
            shared=vigil.shared.get(binding.key, ()),
            trouble=absence.told(binding, self.inventory()) or vigil.trouble,
        )

    async def drain(self, peer: Peer, ask: wire.Drain) -> None:
        """Keep an instance from being granted. Who holds it keeps it."""
        if not ask.reason or len(ask.reason) > REASON_LIMIT or not ask.reason.isprintable():
            raise BadRequest(f"reason: expected 1 to {REASON_LIMIT} printable characters")
        instance = self._known(ask.id)
        self._lifecycle.ledger.commit(Drained(id=ask.id, reason=ask.reason))
        self._survey.publish()
        await self._cards.let_go(instance)

    async def undrain(self, peer: Peer, ask: wire.Undrain) -> None:
        """Let an instance be granted again; one that vanished while drained can be named too.

        It is also the word that it is in order, whatever was heard of it.
        """
        drained = ask.id in self._lifecycle.book.drained
        instance = self.inventory().by_id().get(ask.id) if drained else self._known(ask.id)
        if instance is not None and drained:
            try:
                await self._cards.reopen(instance)
                await self._survey.refresh((NEWS,))
            except (AgentError, OSError) as error:
                log.error("%s is undrained, and cannot be looked at: %s", ask.id, error)
        if drained:
            self._lifecycle.ledger.commit(Undrained(id=ask.id))
        if instance is not None:
            self._cards.undrained(instance)
        self._survey.publish()

    def _known(self, instance: str) -> Instance:
        found = self.inventory().by_id().get(instance)
        if found is None:
            raise UnknownInstance(
                f"instance {instance[:100]!r} is not in this host's inventory:"
                " `xce-nodeagent inventory` shows what is",
                instance=instance[:100],
            )
        return found

    async def doctor(self, peer: Peer, ask: wire.Doctor) -> wire.Checks:
        """Look at everything that the agent depends on; with `repair`, put every fence right."""
        may_prepare = self.may_prepare(peer.uid)
        if ask.repair and not may_prepare:
            raise NotPermitted(
                f"uid {peer.uid} may look, and not have repaired what is found: ask root, or be"
                " listed in `[access] prepare_uids`",
                uid=peer.uid,
            )
        # It asks the binder about every binding, and looks through /proc: whoever may not prepare
        # gets what was seen in the last seconds, so that asking in a loop hinders nobody.
        async with self._examining:
            fresh = time.monotonic() - self._examined_at < DOCTOR_SECONDS
            if may_prepare or not fresh:
                self._lifecycle.outcomes.settle()
                checks = await self._examine(bool(ask.repair))
                if ask.repair:
                    return wire.Checks(checks=checks)
                self._checks = checks
                self._examined_at = time.monotonic()
        return wire.Checks(checks=self._checks)
