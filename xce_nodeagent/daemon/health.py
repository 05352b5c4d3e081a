"""The health of cards: what was heard of them, kept in a file, and told of their instances.

The file is written in a thread, after the inventory says so: it is for the agent that comes next,
and a disk that is full delays nobody. One that cannot be read is moved aside: what figures say is
known again with the next ones, and what only an event said is lost, which the log says.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct, convert, structs

from xce_nodeagent.host import whole
from xce_nodeagent.model import health
from xce_nodeagent.model.health import SOUND, Card, Limits, Moment, Sample, Xid
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.link import Link
from xce_nodeagent.model.policy import Table, of, remedy
from xce_nodeagent.model.wire import Check

log = logging.getLogger(__name__)

CARDS_LIMIT = 256
"""Cards that are remembered, those included that are not here now."""

TIMER_MOST = 86_400.0


class Remembered(Struct, frozen=True):
    """The file: in which boot it was written, each card that is not sound, and where cards are.

    The driver does not tell the UUID of a card that nobody has open, so the place of one that is
    not to be opened must be known. In another boot it may be another one's.
    """

    boot: str
    cards: dict[str, Card]
    places: dict[str, str] = {}


class Health:
    """What is wrong with cards, by the ids of their instances.

    `changed` is called when that is something else than before.
    """

    def __init__(
        self,
        path: Path,
        boot: str,
        table: Table,
        limits: Limits,
        *,
        now: Callable[[], Moment],
        changed: Callable[[], None],
    ) -> None:
        self.unwritten = ""
        self.places: dict[str, str] = {}
        self._path = path
        self._boot = boot
        self._table = table
        self._limits = limits
        self._now = now
        self._changed = changed
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._again = False
        self._cards = self._read()

    # ---- what happens -----------------------------------------------------------------------

    def heard(self, card: str, xid: Xid) -> bool:
        """Take in an XID; say whether it is more than an application's."""
        before = self._cards.get(card, SOUND)
        after = health.heard(before, xid, self._now(), self._table)
        self._take({card: after})
        return after != before

    def measured(self, samples: Mapping[str, Sample]) -> None:
        """Take in samples."""
        now = self._now()
        self._take(
            {
                card: health.measured(
                    self._cards.get(card, SOUND), sample, now, self._table, self._limits
                )
                for card, sample in samples.items()
            }
        )

    def renewed(self, card: str) -> None:
        """The driver has taken a card up anew."""
        if card in self._cards:
            self._take({card: health.renewed(self._cards[card], self._table)})

    def undrained(self, instance: Instance) -> None:
        """An administrator says that an instance is in order."""
        card = instance.parent or instance.id
        if card in self._cards:
            slice_ = instance.number("gpu_instance") if instance.parent else -1
            gpu_instance = slice_ if slice_ >= 0 else None
            self._take({card: health.undrained(self._cards[card], gpu_instance)})

    def place(self, places: Mapping[str, str]) -> None:
        """Remember where cards are: the PCI address of each id."""
        if not places.items() <= self.places.items():
            addresses = set(places.values())
            before = {c: where for c, where in self.places.items() if where not in addresses}
            self.places = {**before, **places}
            self._write_later()

    def start(self) -> None:
        """End what is over by the clock, and set the timer for what will be."""
        self._look()

    def _look(self) -> None:
        now = self._now()
        self._timer = None
        self._take({c: health.quiet(card, now, self._table) for c, card in self._cards.items()})
        self._set_timer()

    def _take(self, cards: Mapping[str, Card]) -> None:
        before = {card: self._cards.get(card, SOUND).conditions for card in cards}
        for name, card in cards.items():
            if name in self._cards or len(self._cards) < CARDS_LIMIT:
                self._cards[name] = card
        altered = [n for n, was in before.items() if self._cards.get(n, SOUND).conditions != was]
        if not altered:
            return
        for name in altered:
            _log(name, before[name], self._cards[name].conditions, self._table)
        self._write_later()
        self._set_timer()
        self._changed()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ends = [health.due(card, self._table) for card in self._cards.values()]
        if due := [end for end in ends if end is not None]:
            wait = min(max(0.0, min(due) - self._now().up), TIMER_MOST)
            self._timer = asyncio.get_running_loop().call_later(wait, self._look)

    # ---- what is told -----------------------------------------------------------------------

    def judge(self, inventory: Inventory) -> Inventory:
        """Give the inventory with what is wrong; the same one where nothing is."""
        sick = {name: card for name, card in self._cards.items() if card.conditions}
        if not sick:
            return inventory
        links = convert(inventory.topology.get("links", ()), tuple[Link, ...])
        told = health.told(inventory.instances, links, sick, self._table)
        if told.keys().isdisjoint(inventory.by_id()):
            return inventory
        marked = (_marked(one, told.get(one.id, "")) for one in inventory.instances)
        return structs.replace(inventory, instances=tuple(marked))

    def checks(self) -> list[Check]:
        """Say for doctor what is remembered of each card, notes as well."""
        checks = []
        for name, card in sorted(self._cards.items()):
            for condition in card.conditions:
                policy = of(self._table, condition.cause)
                if policy.verdict == "ignore":
                    continue
                ago = max(0.0, self._now().time - condition.since)
                times = f", {condition.count} times" if condition.count > 1 else ""
                checks.append(
                    Check(
                        name=f"health.{name}",
                        state="warning" if policy.verdict == "unhealthy" else "note",
                        text=f"{health.described(condition, policy)}{times}; since {_span(ago)}",
                        remedy=remedy(policy) if policy.verdict == "unhealthy" else "",
                    )
                )
        if self.unwritten:
            checks.append(
                Check(
                    name="health",
                    state="warning",
                    text=f"what is wrong with cards cannot be written: {self.unwritten}",
                    remedy=f"let the agent's user (uid {os.geteuid()}) write in its state folder,"
                    " and make space there",
                )
            )
        return checks

    # ---- the file ---------------------------------------------------------------------------

    def _read(self) -> dict[str, Card]:
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=Remembered)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            log.error("%s cannot be read: %s; XIDs of before are forgotten", self._path, error)
            self._set_aside()
            return {}
        cards = {name: health.resumed(card) for name, card in found.cards.items()}
        if found.boot == self._boot:
            self.places = found.places
        else:
            now = self._now()
            cards = {n: health.rebooted(card, now, self._table) for n, card in cards.items()}
        return cards

    def _set_aside(self) -> None:
        try:
            self._path.replace(self._path.with_suffix(".damaged"))
        except OSError as error:
            log.error("%s cannot be moved aside: %s", self._path, error)

    def _write_later(self) -> None:
        """Write in a thread; once more, if there was more to say meanwhile."""
        if self._writing is not None:
            self._again = True
            return
        self._writing = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        try:
            while True:
                self._again = False
                await asyncio.to_thread(self._store, self._encoded())
                if not self._again:
                    return
        finally:
            self._writing = None

    def _encoded(self) -> bytes:
        sick = {name: card for name, card in self._cards.items() if card.conditions}
        return msgspec.json.encode(Remembered(self._boot, sick, self.places))

    def _store(self, text: bytes) -> None:
        try:
            whole.replace(self._path, text, sync=True)
        except OSError as error:
            self.unwritten = f"{error}"
            log.error("%s cannot be written: %s", self._path, error)
        else:
            self.unwritten = ""

    async def close(self) -> None:
        """Write what is not written yet."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await self._writing
        elif self.unwritten:
            self._store(self._encoded())


def _marked(instance: Instance, why: str) -> Instance:
    if not why:
        return instance
    reason = instance.reason if not instance.healthy else ""
    return structs.replace(instance, healthy=False, reason="; ".join(filter(None, (why, reason))))


def _log(
    card: str,
    before: Iterable[health.Condition],
    after: Iterable[health.Condition],
    table: Table,
) -> None:
    """Say what began and what ended; not that a condition was met once more."""
    had = {condition.place: condition for condition in before}
    has = {condition.place: condition for condition in after}
    for place in has.keys() - had.keys():
        policy = of(table, has[place].cause)
        say = log.warning if policy.verdict == "unhealthy" else log.info
        say("%s: %s", card, health.described(has[place], policy))
    for place in had.keys() - has.keys():
        ended = health.described(had[place], of(table, had[place].cause))
        log.info("%s: over: %s", card, ended)


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
