"""Vendors' cards, beside a scan: they are asked, listened to, judged, and let go of.

When a card is drained, no helper of ours has it open any more when the answer comes, and none
opens it again until it is undrained: whoever drained it may want it for himself, to change its MIG
mode, to reset it, or to unbind its driver. What was known of it stays as it was.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from xce_nodeagent.binding.helper import Helper
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.supply import Supply
from xce_nodeagent.daemon.health import Health
from xce_nodeagent.daemon.telemetry import Telemetry
from xce_nodeagent.daemon.vendor import LIBRARY_GRACE, Vendor
from xce_nodeagent.host import Host, nvidia
from xce_nodeagent.host.event import LIBRARY, Event
from xce_nodeagent.model import policy
from xce_nodeagent.model.config import Config
from xce_nodeagent.model.health import Limits, Moment, Sample, Xid
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.wire import Check
from xce_nodeagent.privileged.ops import ListenerAnswer, ProberAnswer

log = logging.getLogger(__name__)

PROVIDER = "nvidia"

NEWS = Event("change", LIBRARY, PROVIDER)
"""The library has told something."""


class Cards:
    """`ledger` has what is drained.

    `answered` is called when the library is to be asked and what it says looked at, `publish` when
    the health of a card is another one.
    """

    publish: Callable[[], None]

    def __init__(
        self,
        config: Config,
        host: Host,
        supply: Supply,
        state: Path,
        ledger: Ledger,
        *,
        answered: Callable[[], None],
    ) -> None:
        self._host = host
        self._ledger = ledger
        self._answered = answered
        self._opening: set[str] = set()
        self._known: dict[str, str] = {}  # the ids of cards by their addresses
        # A library that hung one prober would hang the next: one is enough.
        patience = config.agent.library_seconds + LIBRARY_GRACE
        self.prober = Helper("prober", supply, ProberAnswer, deadline=patience, generations=1)
        self.listener = Helper("listener", supply, ListenerAnswer, deadline=patience, generations=1)
        self._vendor = Vendor(self.prober, answered, only=self._open)
        self._told = self._vendor.last
        host.probe = lambda _: self._told
        own = config.health
        limits = Limits(
            thermal_seconds=own.thermal_seconds,
            cool_seconds=own.cool_seconds,
            lost_seconds=own.lost_seconds,
            corrected_per_hour=own.corrected_per_hour,
        )
        self._health = Health(
            state / "health.json",
            host.boot_id(),
            policy.merged(own.policy),
            limits,
            now=lambda: Moment(host.uptime(), time.time()),
            changed=lambda: self.publish(),  # noqa: PLW0108  # it is not there yet
        )
        self._telemetry = Telemetry(
            self.listener,
            heard=self._heard,
            cut=self._cut,
            measured=self._measured,
            hung=self._hung,
            patience=patience,
        )

    # ---- a look -----------------------------------------------------------------------------

    async def ask(self) -> None:
        """Get what the library knows, for the look that comes next."""
        state, reason, facts = await self._vendor.ask()
        if state == "found":
            closed = [_closed_fact(at, self._all()[at]) for at in sorted(self._closed())]
            facts = {**facts, "devices": [*facts.get("devices", ()), *closed]}
        self._told = state, reason, facts

    def concerned(self, events: Collection[Event]) -> bool:
        """Say whether the library is to be asked after these events."""
        return self._vendor.concerned(events)

    def judge(self, inventory: Inventory) -> Inventory:
        """Give the inventory with what is wrong with cards."""
        return self._health.judge(inventory)

    def published(self, inventory: Inventory) -> None:
        """Listen to the cards of a new inventory."""
        self._known = {
            address: one.id
            for one in inventory.instances
            if one.provider == PROVIDER and not one.parent and (address := one.text("pci_address"))
        }
        self._health.place({one: address for address, one in self._known.items()})
        self._follow()

    def tell(self, events: Collection[Event]) -> None:
        """Take in what changed on the host: a card that a driver is bound to begins anew."""
        self._vendor.tell(events)
        for event in events:
            if (event.subsystem, event.action) == ("pci", "bind") and event.name in self._known:
                self._health.renewed(self._known[event.name])
        self._follow()

    # ---- drained ----------------------------------------------------------------------------

    async def let_go(self, instance: Instance) -> None:
        """See that nobody of ours has a card open that was just drained."""
        if instance.text("pci_address") not in self._closed():
            return
        self._follow()
        if not (await self._telemetry.gone() and await self._vendor.idle()):
            log.warning("%s is drained, and a helper does not end that has it open", instance.id)

    async def reopen(self, instance: Instance) -> None:
        """Ask a card again that is still drained, for a look before `undrained` is called.

        Its layout may be another one by now, and must not be given away as it was.
        """
        self._opening.add(instance.id)
        self._vendor.changed()
        await self._vendor.idle()
        await self.ask()

    def undrained(self, instance: Instance) -> None:
        """An administrator says that an instance is in order."""
        self._opening.discard(instance.id)
        self._health.undrained(instance)
        self._follow()

    def _closed(self) -> frozenset[str]:
        """Give the addresses of the cards that are not to be open."""
        drained = self._ledger.book.drained.keys() - self._opening
        if not drained:
            return frozenset()
        return frozenset(address for address, one in self._all().items() if one in drained)

    def _open(self) -> tuple[str, ...] | None:
        """Give the addresses of the cards that may be opened; None is all."""
        closed = self._closed()
        return tuple(sorted(self._all().keys() - closed)) if closed else None

    def _all(self) -> Mapping[str, str]:
        before = {address: one for one, address in self._health.places.items()}
        return before | _told_by_driver(self._host) | self._known

    # ---- listening --------------------------------------------------------------------------

    def _follow(self) -> None:
        hung = self._vendor.hung
        if any(what not in self._known for what in hung):  # not a card, but the library
            self._telemetry.follow(frozenset())
            return
        self._telemetry.follow(frozenset(self._known) - self._closed() - hung)

    def _heard(self, address: str, xid: Xid) -> bool:
        if not xid.number:
            return True
        card = self._known.get(address)
        return card is not None and self._health.heard(card, xid)

    def _cut(self) -> None:
        """Somebody made slices or took some away: what is asked just now may be older."""
        self._vendor.changed()
        self._answered()

    def _measured(self, samples: Mapping[str, Sample]) -> None:
        self._health.measured(
            {
                self._known[address]: one
                for address, one in samples.items()
                if address in self._known
            }
        )

    def _hung(self, what: str) -> None:
        self._vendor.blame(what)
        self._follow()
        self._answered()

    # ---- the rest ---------------------------------------------------------------------------

    @property
    def library(self) -> str:
        """What the library said last: found, none, not_yet or error."""
        return self._vendor.last[0]

    @property
    def ears(self) -> tuple[int, int]:
        """To how many cards is listened, and of how many of them nothing is heard."""
        heard, deaf = len(self._telemetry.cards), len(self._telemetry.deaf)
        return (0, heard) if self._telemetry.fault else (heard - deaf, deaf)

    def start(self) -> None:
        """Begin to look at the clock."""
        self._health.start()

    def checks(self) -> list[Check]:
        """Say for doctor what is remembered of cards, and what is not heard."""
        checks = self._health.checks()
        if self._telemetry.fault:
            text = f"XIDs are not heard: {self._telemetry.fault}"
            checks.append(Check(name="telemetry", state="warning", text=text))
        checks += [
            Check(name=f"telemetry.{card}", state="note", text=f"its XIDs are not heard: {why}")
            for card, why in sorted(self._telemetry.deaf.items())
        ]
        if self._telemetry.cards and not self._telemetry.fault:
            text = f"{len(self._telemetry.cards)} cards are listened to"
            checks.append(Check(name="telemetry", state="ok", text=text))
        return checks

    async def close(self) -> None:
        """Ask and listen no more; write what is not written."""
        self._telemetry.close()
        self._vendor.close()
        await self._health.close()


def _closed_fact(address: str, card: str) -> dict[str, Any]:
    """Give what is known of a card that is not asked, as `nvml.probe` tells of others."""
    fact = {"pci_address": address, "closed": True}
    return fact if card == f"gpu-{address}" else {**fact, "uuid": card}


def _told_by_driver(host: Host) -> dict[str, str]:
    """Give cards' ids by their addresses, as the driver tells them; it opens no card for that."""
    uuids = {
        address: nvidia.told(host, address).get("GPU UUID", "?") for address in nvidia.cards(host)
    }
    return {at: f"gpu-{at}" if "?" in uuid else uuid for at, uuid in uuids.items()}
