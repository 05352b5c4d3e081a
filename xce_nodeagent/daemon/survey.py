"""The survey: the current inventory, made again when asked, told to whoever wants to know.

Looking reads up to some hundreds of small files and asks netlink, so it runs in a thread; nothing
on a job's path waits for it. A new device is fenced before it is published.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

from msgspec import structs

from xce_nodeagent import discovery
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.daemon.kept import Kept
from xce_nodeagent.discovery import Discovery
from xce_nodeagent.errors import Enforcement
from xce_nodeagent.host import Host
from xce_nodeagent.host.event import Event
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory, advance
from xce_nodeagent.model.rule import Device
from xce_nodeagent.provider import Provider

log = logging.getLogger(__name__)

Listener = Callable[[Inventory], None]


class Survey:
    """Holds the inventory. `fence` is called with the managed devices before they are published.

    `foreign` says of which devices the binder would not hear, and why. `judge` marks what is
    unhealthy for a reason that a look does not see. `kept` is the file in which an agent finds what
    the one before it saw; None: nowhere.
    """

    def __init__(
        self,
        host: Host,
        providers: Sequence[Provider],
        ledger: Ledger,
        *,
        node: str,
        fence: Callable[[frozenset[Device]], Awaitable[None]],
        foreign: Callable[[frozenset[Device]], Mapping[Device, str]],
        judge: Callable[[Inventory], Inventory] = lambda inventory: inventory,
        kept: Path | None = None,
    ) -> None:
        self.current: Inventory | None = None
        self._raw: Inventory | None = None
        self._host = host
        self._dividing = discovery.dividing(providers)
        self._ledger = ledger
        self._node = node
        self._discovery = Discovery(host, providers)
        self._fence = fence
        self._foreign = foreign
        self._judge = judge
        self._kept = None if kept is None else Kept(kept)
        self._listeners: list[Listener] = []
        self._seen, self._number = ledger.hardware()
        self._managed: frozenset[Device] | None = None
        self._one_at_a_time = asyncio.Lock()

    def renew(self) -> None:
        """Take every instance for new: the ledger had lost what was told of them."""
        self._seen, self._number = {}, self._ledger.unused_number()

    async def refresh(self, events: Collection[Event] | None = None) -> None:
        """Look, fence what is new, publish. Raises Enforcement where the fence can't be made.

        `events` are what was told since the last look; None: anything may have changed.
        """
        async with self._one_at_a_time:
            found = await asyncio.to_thread(self._look, events)
            self._raw = structs.replace(found, source="agent", node=self._node or found.node)
            devices = self._raw.managed()
            foreign = self._foreign(devices)
            if foreign:
                self._raw = _without_driver(self._raw, foreign)
            self._raw = self._with_strangers(self._raw)
            managed = devices - foreign.keys()
            if managed != self._managed:
                await self._fence(managed)
                self._managed = managed
            self.publish()
            if self._kept is not None:
                await asyncio.to_thread(self._kept.write, self._raw)

    def _look(self, events: Collection[Event] | None) -> Inventory:
        if self._raw is not None or self._kept is None:
            return self._discovery.look(self._raw, events)
        return self._discovery.look(self._kept.read(self._host.boot_id()), events, earlier=True)

    def look_at_ports(self) -> None:
        """Publish anew if strangers took or left ports since the last look.

        One question to the kernel, and nothing else where nothing changed. Like a prepare, it is
        for the event loop's thread: no job comes between the listeners and who holds ports.
        """
        if self._raw is not None:
            looked = self._with_strangers(self._raw)
            if looked is not self._raw:
                self._raw = looked
                self.publish()

    def _with_strangers(self, inventory: Inventory) -> Inventory:
        """Give the inventory with what strangers use now; the same one if that is known already.

        What a scan said of it is replaced: it looked from a thread, while jobs came and went.
        """
        held = self._ledger.book.ports_held()
        changed: dict[str, Instance] = {}
        for instance in inventory.instances:
            provider = self._dividing.get(instance.provider)
            if provider is None or instance.type not in inventory.divisible:
                continue
            try:
                in_use = provider.in_use(self._host, instance)
            except OSError as error:
                log.warning("who uses %s cannot be seen: %s", instance.id, error)
                continue
            looked = provider.taken(instance, in_use - held.keys())
            if looked != instance:
                changed[instance.id] = looked
        if not changed:
            return inventory
        instances = tuple(changed.get(one.id, one) for one in inventory.instances)
        return structs.replace(
            inventory,
            instances=instances,
            counters=discovery.counters(instances, self._dividing),
        )

    def publish(self) -> None:
        """Number what was scanned, with the drains of now, and tell it if anything changed."""
        if self._raw is None:
            return
        drained = self._ledger.book.drained
        judged = self._judge(self._raw)
        if judged is not self._raw:
            counts = discovery.counters(judged.instances, self._dividing)
            judged = structs.replace(judged, counters=counts)
        found = structs.replace(
            judged, instances=tuple(_with_drain(i, drained) for i in judged.instances)
        )
        numbered, seen, number = advance(found, self._seen, self._number)
        if seen != self._seen or number != self._number:
            try:
                self._ledger.remember(seen, number)
            except Enforcement as error:
                # It is told all the same, under a number that no later one can be; see there.
                log.error("generation not recorded: %s", error.message)
                numbered, seen, number = advance(found, self._seen, self._ledger.unused_number())
                self._ledger.owe(seen, number)
            self._seen, self._number = seen, number
        changed = self.current is None or numbered != self.current
        self.current = numbered
        if changed:
            log.info("inventory: generation %s, %s", numbered.generation, _count(numbered))
            for listener in list(self._listeners):
                listener(numbered)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call back with each new inventory; the result ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


def _without_driver(inventory: Inventory, foreign: Mapping[Device, str]) -> Inventory:
    """Mark what has a node of no known driver: it cannot be fenced, so it is not given to jobs.

    A driver that is unloaded while we look has such nodes, too; one bad device must not keep the
    others from being fenced.
    """

    def marked(instance: Instance) -> Instance:
        for node in instance.devices:
            if (why := foreign.get(Device.of(node))) and instance.healthy:
                return structs.replace(instance, healthy=False, reason=f"cannot be fenced: {why}")
        return instance

    return structs.replace(inventory, instances=tuple(map(marked, inventory.instances)))


def _with_drain(instance: Instance, drained: Mapping[str, str]) -> Instance:
    """Mark an instance that is drained, or is of one silicon with one that is.

    An admin who takes a bad card out means its slices too; and a card with a bad slice is not
    whole. Slices beside each other do not overlap, so they stay.
    """
    if instance.id in drained:
        why = drained[instance.id]
    elif of := next((other for other in instance.overlaps if other in drained), ""):
        why = f"{of} is drained: {drained[of]}"
    else:
        return instance
    return structs.replace(instance, drained=True, reason=instance.reason or why)


def _count(inventory: Inventory) -> str:
    total = len(inventory.instances)
    sick = sum(not instance.healthy for instance in inventory.instances)
    return f"{total} instances" + (f", {sick} unhealthy" if sick else "")
