"""The vigil: after a release it is looked, off the path, who still has what was released.

One look by the witness serves all releases of the last moments, and every binding that waits to be
clean. There is no look while nothing has changed, at most one each second, and so few that the
witness stays below a twentieth of a processor.

Who is found on an instance that nobody has got meanwhile: the instance is withheld, durably. Where
somebody else holds it by now, that job keeps it, and its binding is shown with who else has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from xce_nodeagent.binding import absence, leftover, question
from xce_nodeagent.binding.evidence import Evidence, Tenure
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.parts import Parts
from xce_nodeagent.errors import AgentError
from xce_nodeagent.model.binding import Binding, Key, Withheld
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.plan import AllowDevice, Plan
from xce_nodeagent.model.rule import Device
from xce_nodeagent.model.wire import LeftOver
from xce_nodeagent.privileged.ops import Looked, Seen

log = logging.getLogger(__name__)

SECONDS = 1.0
"""For how long releases are collected before it is looked for all of them."""

SHARE = 20
"""A look is followed by so many times what it cost in CPU without one."""

AWAY_SECONDS = 10.0
"""After which it is looked again when there was no witness."""

RECENT_SECONDS = 120.0
"""For how long a release is looked after when the agent was restarted since: its look may be lost.
Later than that, who came meanwhile could not be told from who was left."""

DEPARTED_LIMIT = 4096
"""Releases that wait for a look. A host has fewer devices; the oldest are given up."""


class Departed(NamedTuple):
    """What was released and is not looked for yet. `since` is of the time of day."""

    binding: Binding
    instances: tuple[str, ...]
    tenure: Tenure


class Vigil:
    """Looks after releases.

    `freed` is called with each quarantined binding that is clean, and `withheld` when there is one
    more that is to be looked at until it is. `clock` is the time of day and `uptime` the seconds
    since the boot.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        parts: Parts,
        inventory: Callable[[], Inventory],
        freed: Callable[[Key], None],
        withheld: Callable[[], None],
        clock: Callable[[], float],
        uptime: Callable[[], float],
        residents: Iterable[str] = (),
    ) -> None:
        self._ledger = ledger
        self._book = ledger.book
        self._parts = parts
        self._inventory = inventory
        self._freed = freed
        self._withheld = withheld
        self._clock = clock
        self._uptime = uptime
        self._evidence = Evidence(frozenset(residents))
        self._departed: list[Departed] = []
        self._doubtful: set[Key] = set()
        self._insisted: dict[Key, frozenset[Device]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._closed = False
        self._rest = SECONDS
        self.trouble = ""
        """Why it could not be looked the last time; "" when it could."""
        self.shared: dict[Key, tuple[LeftOver, ...]] = {}
        """Who has something open that a live binding holds, and is outside of it."""

    # ---- what happens to bindings -----------------------------------------------------------

    def start(self) -> None:
        """Begin: see who has what by now, and after the releases just before a restart."""
        for binding in self._ledger.departed:
            if 0 <= self._clock() - binding.changed < RECENT_SECONDS:
                self.left(binding, binding.instances)
        self.later()

    def began(self, binding: Binding) -> None:
        """Note that a binding was made: who has its devices open from the start on is no left-over.

        On a job's path: a timer at most.
        """
        if binding.plan.grants:
            self.later()

    def left(self, binding: Binding, instances: tuple[str, ...]) -> None:
        """Note that these instances of a binding are free now. On a job's path, as above."""
        self.shared.pop(binding.key, None)
        if instances and binding.plan.grants:
            self._departed.append(Departed(binding, instances, self._tenure(binding)))
            del self._departed[:-DEPARTED_LIMIT]
            self.later()

    def doubt(self, binding: Binding, *, insists: bool = False) -> bool:
        """Have it looked for a quarantined binding's devices; False where there are none.

        One whose card is not in the inventory now is not free: its driver may come back, with
        whoever has it open. Where somebody `insists`, it is looked who has the devices that were
        granted, by their numbers, and nobody may.
        """
        absent = absence.missing(binding, self._inventory())
        if not self._devices(binding.instances) and not absent:
            return False
        if absent and insists:
            self._insisted[binding.key] = absence.devices(binding, self._inventory())
        self._doubtful.add(binding.key)
        self.later()
        return True

    def later(self) -> None:
        """See to it that it is looked soon."""
        if self._task is not None:
            self._again = True
        elif self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._rest, self._begin)

    async def look(self, patience: float) -> None:
        """Look now, and wait for it so many seconds at most."""
        if (before := self._task) is not None:
            await asyncio.wait({before}, timeout=patience)
        if self._task is None:
            if self._timer is not None:
                self._timer.cancel()
            self._begin()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=patience)

    async def close(self) -> None:
        """Stop looking."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    # ---- a look -----------------------------------------------------------------------------

    def _begin(self) -> None:
        self._timer = None
        self._again = False
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("it cannot be looked who has what was released", exc_info=fault)
        if self._again and not task.cancelled():
            self.later()

    async def _run(self) -> None:
        departed, self._departed = self._departed, []
        at = self._uptime()
        owners = question.owners(self._book, self._inventory())
        ports = {hold.port for one in departed for hold in one.binding.plan.ports}
        look = question.look(self._inventory(), owners, ports)
        look = question.more(look, *self._insisted.values())
        if not look.devices and not look.ports:
            return
        try:
            looked = await self._parts.look(look)
        except AgentError as error:
            self._away(error.message, departed)
            return
        except asyncio.CancelledError:
            self._departed = departed + self._departed
            raise
        self._rest = max(SECONDS, SHARE * looked.cpu)
        took = self._uptime() - at
        self.trouble = f"not everybody was looked at in {took:.0f} seconds" if looked.cut else ""
        asked = {binding.key for binding, _ in owners}
        self._judge(looked, departed, asked, frozenset(look.devices))
        held_by: dict[str, list[Tenure]] = {}
        for binding, devices in owners:
            for device in devices:
                held_by.setdefault(device, []).append(self._tenure(binding))
        self._share(looked, owners)
        watched = {
            str(device)
            for binding in self._book
            if binding.state == "quarantined"
            for device in self._devices(binding.instances)
        }
        self._evidence.take(at, looked.seen, held_by, watched)

    def _away(self, why: str, departed: list[Departed]) -> None:
        """Keep what is to be looked for, until there is a witness again."""
        if why != self.trouble:
            log.warning("it cannot be looked who still has what was released: %s", why)
        self.trouble = why
        self._departed = departed + self._departed
        self._rest = AWAY_SECONDS
        if self._departed or self._doubtful:
            self._again = True

    def _judge(
        self,
        looked: Looked,
        departed: list[Departed],
        asked: set[Key],
        devices: frozenset[Device],
    ) -> None:
        by_device: dict[str, list[Seen]] = {}
        for seen in looked.seen:
            if seen.how != "path":
                by_device.setdefault(seen.what, []).append(seen)
        _tell_other_namespaces(looked, departed)
        for one in departed:
            self._judge_departed(one, by_device, asked)
        for key in list(self._doubtful):
            binding = self._book.live.get(key)
            insisted = self._insisted.get(key, frozenset())
            if not insisted <= devices:
                continue  # it came while it was looked: the next look is for it, too
            self._insisted.pop(key, None)
            if binding is None or binding.state != "quarantined":
                self._doubtful.discard(key)
                continue
            pids = {left.pid for left in binding.left}
            if absence.missing(binding, self._inventory()):
                self._doubtful.discard(key)
                unseen = looked.cut or not pids.isdisjoint(looked.unread)
                if insisted and not unseen and by_device.keys().isdisjoint(map(str, insisted)):
                    self._freed(key)
                continue
            still = leftover.still(binding, self._book)
            found = self._found(still, self._tenure(binding), by_device, pids)
            if found:
                self._doubtful.discard(key)
                self._withhold(binding, key, found)
            elif not looked.cut and pids.isdisjoint(looked.unread):
                self._doubtful.discard(key)
                self._freed(key)

    def _judge_departed(
        self, one: Departed, by_device: Mapping[str, list[Seen]], asked: set[Key]
    ) -> None:
        found = self._found(one.instances, one.tenure, by_device, ())
        if not found:
            return
        instances = self._inventory().by_id()
        free = {i: who for i, who in found.items() if self._book.is_free(instances[i])}
        # Who got an instance while it was looked: its own processes were not told apart.
        unasked = {
            holder
            for i in found.keys() - free.keys()
            for holder in self._book.holders(instances, i)
            if (holder.job, holder.attempt) not in asked
        }
        if unasked:
            self._departed.append(one)
            self._again = True
        if free:
            self._withhold(one.binding, self._free_key(one.binding.key), free)

    def _found(
        self,
        ids: Iterable[str],
        tenure: Tenure,
        by_device: Mapping[str, list[Seen]],
        pids: Iterable[int],
    ) -> dict[str, list[Seen]]:
        """Give who has each of these instances from that binding."""
        known = frozenset(pids)
        instances = self._inventory().by_id()
        found: dict[str, list[Seen]] = {}
        for i in ids:
            for device in question.nodes(instances.get(i)):
                for seen in by_device.get(str(device), ()):
                    if self._evidence.left(seen, tenure, known):
                        found.setdefault(i, []).append(seen)
        return found

    def _withhold(self, binding: Binding, key: Key, found: Mapping[str, list[Seen]]) -> None:
        """Record who still has what; nothing where that is recorded already."""
        everybody = {seen for who in found.values() for seen in who}
        left = tuple(_left(seen) for seen in sorted(everybody, key=lambda s: (s.pid, s.what)))
        instances = tuple(i for i in binding.instances if i in found)
        live = self._book.live.get(key)
        if live is not None and set(live.left) == set(left) and live.instances == instances:
            return
        nodes = [node for i in instances for node in self._inventory().by_id()[i].devices]
        self._ledger.record(
            Withheld(
                job=key[0],
                attempt=key[1],
                uid=binding.uid,
                instances=instances,
                excluded=binding.excluded,
                plan=Plan(tuple(AllowDevice(node) for node in dict.fromkeys(nodes))),
                left=left,
                generation=binding.generation,
                enforcement=binding.enforcement,
                since=binding.since,
                born=binding.born,
            )
        )
        log.warning(
            "job %s is released, but %s: %s held back until they are gone",
            key[0],
            "; ".join(f"{one.comm} (pid {one.pid}) {one.what}" for one in left),
            ", ".join(instances),
        )
        self._withheld()

    def _share(self, looked: Looked, owners: Iterable[question.Held]) -> None:
        """Note who has something open that a live binding holds, and is outside of it."""
        before, self.shared = self.shared, {}
        for binding, devices in owners:
            key = binding.key
            if key not in self._book.live:
                continue
            who = [
                seen
                for seen in looked.seen
                if seen.what in devices and seen.how != "path" and not self._evidence.resident(seen)
            ]
            if not who:
                continue
            self.shared[key] = tuple(_left(seen) for seen in who)
            for one in set(self.shared[key]) - set(before.get(key, ())):
                log.warning(
                    "job %s shares what it holds: %s (pid %d, uid %d) %s, and is not in its cgroup",
                    *(key[0], one.comm, one.pid, one.uid, one.what),
                )

    # ---- devices ----------------------------------------------------------------------------

    def _devices(self, ids: Iterable[str]) -> list[Device]:
        instances = self._inventory().by_id()
        return [device for i in ids for device in question.nodes(instances.get(i))]

    def absent(self) -> dict[Key, str]:
        """Give each binding that waits for what is not in the inventory, with what to say of it."""
        told = {one.key: absence.told(one, self._inventory()) for one in self._book}
        return {key: text for key, text in told.items() if text}

    def _tenure(self, binding: Binding) -> Tenure:
        ago = self._clock() - binding.since  # where an older agent made it; a clock may be stepped
        return Tenure(binding.key, binding.born or self._uptime() - ago)

    def _free_key(self, key: Key) -> Key:
        """Give a key that no live binding has: a binding that shrank is live itself."""
        number = 0
        found = key
        while found in self._book.live:
            number += 1
            found = (key[0], f"{key[1]}~{number}")
        return found


def _left(seen: Seen) -> LeftOver:
    how = f"has {seen.what} in its memory" if seen.how == "mapped" else f"has {seen.what} open"
    return LeftOver(seen.pid, how, seen.comm, seen.uid)


def _tell_other_namespaces(looked: Looked, departed: Iterable[Departed]) -> None:
    """Log who listens on a port of a job's in another network namespace: nobody is hindered."""
    ports = {f"{hold.port}": one for one in departed for hold in one.binding.plan.ports}
    for seen in looked.seen:
        one = ports.get(seen.what.rpartition(" ")[2]) if seen.namespace else None
        if one is not None:
            log.warning(
                "job %s is released, and %s (pid %d, uid %d) listens on its port (%s) in another"
                " network namespace, net:[%d]",
                *(one.binding.job, seen.comm, seen.pid, seen.uid, seen.what, seen.namespace),
            )
