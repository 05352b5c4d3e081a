"""Fencing: the binder, and which devices it is told to manage."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from xce_nodeagent.binding.helper import Helper
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.supply import Supply
from xce_nodeagent.daemon.foreign import foreign
from xce_nodeagent.errors import Enforcement
from xce_nodeagent.host import Host
from xce_nodeagent.model.config import Config
from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged.ops import BinderAnswer, Manage, Take, Taken

log = logging.getLogger(__name__)

BINDER_SECONDS = 2.0
"""How long a binder may take for one operation, which takes it well below a millisecond, before
it is taken for hung and replaced."""

BINDER_LINGER = 2
"""Milliseconds that the agent waits in place for the binder's answer."""


class Fencing:
    """What is managed, None before the first scan, and who sees to it.

    With `enforced` the binder is told.
    """

    def __init__(
        self, config: Config, host: Host, supply: Supply, ledger: Ledger, *, enforced: bool
    ) -> None:
        self.managed: frozenset[Device] | None = None
        self._config = config
        self._host = host
        self._ledger = ledger
        self._enforced = enforced
        self.binder = Helper(
            "binder",
            supply,
            BinderAnswer,
            greeting=self._greeting,
            unavailable=Enforcement,
            deadline=BINDER_SECONDS,
            linger=BINDER_LINGER,
        )

    def _greeting(self) -> tuple[Any, ...]:
        known = [step.cgroup for b in self._ledger.book if (step := b.plan.cgroup)]
        if self.managed is not None:
            # A new binder knows only what is declared now, and ends over what is not.
            self.managed -= self.foreign(self.managed).keys()
        managed = () if self.managed is None else (Manage(tuple(sorted(self.managed))),)
        return (Take(tuple(known), agent=os.getpid()), *managed)

    @property
    def taken(self) -> Taken | None:
        """What the live binder said of itself when it took over."""
        greeted = self.binder.greeted
        return greeted[0] if greeted and isinstance(greeted[0], Taken) else None

    async def manage(self, devices: frozenset[Device]) -> None:
        """Tell the binder what is managed: the inventory's, and what live bindings were granted.

        A card that fell off the bus is in no inventory, and stays fenced while a job has it.
        """
        granted = {rule.device for binding in self._ledger.book for rule in binding.plan.grants}
        gone = self.foreign(granted - devices)
        self.managed = frozenset(devices | granted) - gone.keys()
        if not self._enforced:
            return
        try:
            await self.binder.call(Manage(tuple(sorted(self.managed))))
        except Enforcement:
            if self._config.agent.enforcement == "required":
                raise
            log.warning("devices are not fenced: the binder cannot manage them")

    def foreign(self, devices: AbstractSet[Device]) -> Mapping[Device, str]:
        """Give those of which the binder would not hear, with why."""
        return foreign(devices, self._host, simulates=bool(self._config.simulate.profile))
