"""The choice of instances for a request. Pure.

A request with counts is met from what is not the host's own, healthy, not drained, free, and of
other silicon than what is held or chosen already. Then, in this order:

- Cards stay together: below one PCIe switch if that can be, else on one NUMA node, else in one
  NVLink domain; slices of one size on one card. Of several such groups that are large enough the
  smallest is taken, so that the larger ones stay whole for larger jobs.
- A NIC is as near to its card as can be: below the same PCIe bridge (the more they share, the
  nearer), else on the same NUMA node. Of those that are equally near, the one of a rail comes
  first. The cards take turns. A job without cards takes NICs of no rail first.
- A NIC whose link is down comes late, and so does a port that has virtual functions here.
- What is still equal goes by PCI address.

A card that is cut into MIG slices is no `gpu` for a count: CUDA cannot use it as a whole. Who
wants it all the same names it. Of slices the smallest are taken, by their memory: a count says
nothing of a size, and a larger one may be another job's only way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from xce_nodeagent.errors import (
    AgentError,
    BadRequest,
    NeverFits,
    NoFitNow,
    NotReady,
    Unhealthy,
)
from xce_nodeagent.model.distance import rank
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.request import Request
from xce_nodeagent.placement.gathering import gather, grouped

_REASONS = 64  # instances whose reason is told in an error


class Choice(Struct, frozen=True):
    """What was chosen: ids, in inventory order."""

    instances: tuple[str, ...]


def choose(
    inventory: Inventory,
    request: Request,
    *,
    unavailable: Collection[str] = (),
    near: Collection[str] = (),
) -> Choice:
    """Choose instances for a request.

    `unavailable` are ids that are held, overlap what is held, or are quarantined; `near` are ids
    that the job has already: what is chosen is near to them, and is neither one of them nor of
    their silicon. Raise NoFitNow where others are in the way (`reasons` says of each instance
    why it cannot be had), NeverFits where the host has not so many (NotReady or Unhealthy where
    discovery could not see all of them), BadRequest for what is not counted by instance.
    """
    return _Choosing(inventory, unavailable, near).choose(request)


class _Choosing:
    """One choice, while it is made."""

    def __init__(
        self, inventory: Inventory, unavailable: Collection[str], near: Collection[str]
    ) -> None:
        self._inventory = inventory
        self._layout = inventory.layout
        self._unavailable = frozenset(unavailable)
        self._near = frozenset(near)
        self._cut = 0  # cards that are cut into slices
        self._own: Counter[str] = Counter()  # what the host keeps for itself, by type
        self._cards: list[Instance] = []  # the job's, those it has and those it gets
        self._silicon: set[str] = set(near)
        for instance in inventory.instances if near else ():
            if instance.id in self._near:
                self._silicon.update(instance.overlaps)
                if instance.type != "nic":
                    self._cards.append(instance)

    def choose(self, request: Request) -> Choice:
        counts = request.counts()
        for kind in self._inventory.types:
            if kind.divisible and kind.name in counts:
                raise BadRequest(
                    f"request: {kind.name} are not counted as instances; ask for them with --ports"
                )
        by_type: dict[str, list[Instance]] = {name: [] for name in counts}
        slices = {one.parent for one in self._inventory.instances if one.type == "mig"}
        for one in self._inventory.instances:
            if one.reserved:
                self._own[one.type] += 1
            elif one.type == "gpu" and one.id in slices:
                self._cut += 1
            elif one.type in by_type:
                by_type[one.type].append(one)
        for name, count in counts.items():
            total = len(by_type[name])
            if count > total:
                raise self._too_few(name, count, total)
        chosen: set[str] = set()
        # NICs come last, as they follow the cards; the other types by name.
        for name in sorted(counts, key=lambda name: (name == "nic", name)):
            free = [instance for instance in by_type[name] if not self.reason(instance)]
            if name == "nic":
                taken = self._nics(free, counts[name])
            elif name == "mig":
                taken = self._smallest(free, counts[name])
            else:
                taken = self._together(free, counts[name])
                self._cards += taken
            if len(taken) < counts[name]:
                raise self._no_fit(name, counts[name], by_type[name])
            for instance in taken:
                chosen.add(instance.id)
                self._silicon.add(instance.id)
                self._silicon.update(instance.overlaps)
        return Choice(tuple(i.id for i in self._inventory.instances if i.id in chosen))

    def reason(self, instance: Instance) -> str:
        """Say why an instance cannot be had; empty where it can."""
        if instance.reserved:
            return f"the host's own: {instance.reserved}"
        if not instance.healthy:
            return f"unhealthy: {instance.reason}" if instance.reason else "unhealthy"
        if instance.drained:
            return "drained"
        if instance.id in self._near:
            return "the job has it already"
        if instance.id in self._unavailable:
            return "held, or it overlaps what is held"
        if instance.id in self._silicon or not self._silicon.isdisjoint(instance.overlaps):
            return "it overlaps what the job has or gets"
        return ""

    def _too_few(self, name: str, count: int, total: int) -> AgentError:
        """Only where all is known of a type is it sure that the host can never have so many."""
        told = f"request: {name}={count}, but this host has {self._total(name, total)}"
        facts = {"type": name, "wanted": count, "total": total}
        if (problem := self._inventory.unsure(name)) is None:
            return NeverFits(told, **facts)
        why = f"{told}, as far as is known: {problem.provider}: {problem.reason}"
        return (NotReady if problem.state == "not_yet" else Unhealthy)(why, **facts)

    def _no_fit(self, name: str, count: int, candidates: Sequence[Instance]) -> AgentError:
        """What is unhealthy only until its library has answered, or for a while, is waited for."""
        reasons = {one.id: why for one in candidates if (why := self.reason(one))}
        free = len(candidates) - len(reasons)
        problem = self._inventory.unsure(name)
        unsure = problem is not None and problem.state == "not_yet"
        waiting = sum(one.waits and not one.drained for one in candidates)
        later = unsure and not all(one.healthy for one in candidates)
        later = later or count <= free + waiting
        return (NotReady if later else NoFitNow)(
            f"request: {name}={count}, but of this host's {self._total(name, len(candidates))} only"
            f" {free} can be had now: " + _summary(reasons.values()),
            type=name,
            wanted=count,
            free=free,
            total=len(candidates),
            reasons=dict(list(reasons.items())[:_REASONS]),
        )

    def _total(self, name: str, total: int) -> str:
        """Say how many there are of a type, and what a person may take for one of them."""
        if name == "gpu" and self._cut:
            return f"{total} ({self._cut} more are cut into MIG slices)"
        if own := self._own[name]:
            return f"{total} (and {own} of the host's own: `[nic] offer` gives those to jobs)"
        if total:
            return str(total)
        divisible = {kind.name for kind in self._inventory.types if kind.divisible}
        there = sorted({one.type for one in self._inventory.instances} - divisible)
        return f"0; it has {', '.join(there) or 'nothing that is counted'}"

    # ---- cards ------------------------------------------------------------------------------

    def _smallest(self, free: Sequence[Instance], count: int) -> list[Instance]:
        """Take the smallest slices; those of one size together, and near to the smaller ones."""
        sizes: dict[int, list[Instance]] = {}
        for one in free:
            # One that does not tell its size is not known to be small.
            sizes.setdefault(one.number("memory_bytes", 1 << 63), []).append(one)
        taken: list[Instance] = []
        for size in sorted(sizes):
            more = self._together(sizes[size], count - len(taken))
            self._cards += more
            taken += more
            if len(taken) == count:
                break
        return taken

    def _together(self, free: Sequence[Instance], count: int) -> list[Instance]:
        """Take cards that are close together; near to those that the job has, if it has any."""
        if count >= len(free):
            return list(free)
        if self._cards:
            homes = {card.id for card in self._cards}
            far = [min(self._far(card.id, home) for home in homes) for card in free]
            return [free[at] for at in sorted(range(len(free)), key=far.__getitem__)[:count]]
        return [free[at] for at in gather(range(len(free)), grouped(free, self._layout), count)]

    def _far(self, card: str, home: str) -> tuple[int, ...]:
        """Sort by the links between cards, then by their way over PCI."""
        layout = self._layout
        return (rank(layout.between(card, home)), *layout.nearness(card, home))

    # ---- NICs -------------------------------------------------------------------------------

    def _nics(self, free: Sequence[Instance], count: int) -> list[Instance]:
        """Take NICs near to the job's cards, the cards in turns."""
        if count >= len(free):
            return list(free)
        divided = {one.parent for one in self._inventory.instances if one.type == "nic"}
        late = [(nic.text("state").endswith("down"), nic.id in divided) for nic in free]
        rail = ["rail" in nic.attributes for nic in free]
        if not self._cards:
            order = sorted(range(len(free)), key=lambda at: (late[at], rail[at], at))
            return [free[at] for at in order[:count]]
        homes = self._homes()
        left = set(range(len(free)))
        ranked: dict[int, list[int]] = {}
        for turn in range(count):
            # Fewer NICs than places are spread over them; more go round again.
            at = turn * len(homes) // count if count < len(homes) else turn % len(homes)
            if at not in ranked:
                keys = [
                    (late[nic], self._to_nic(homes[at], free[nic]), nic) for nic in range(len(free))
                ]
                ranked[at] = [key[-1] for key in sorted(keys)]
            left.remove(next(nic for nic in ranked[at] if nic in left))
        return [free[at] for at in range(len(free)) if at not in left]

    def _homes(self) -> list[Instance]:
        """Give the cards that take turns: one for each rail, or below each bridge of a root."""
        homes: dict[tuple[object, ...], Instance] = {}
        for card in self._cards:
            rail = self._layout.rail(card.id)
            place = self._layout.site(card.id).path[:2] or (card.id,)
            homes.setdefault(place if rail is None else (rail,), card)
        return list(homes.values())

    def _to_nic(self, card: Instance, nic: Instance) -> tuple[int | bool, ...]:
        """Sort by the way over PCI; of equal ways, the card's own rail, and then any."""
        far, *nearer = self._layout.nearness(card.id, nic.id)
        rail = self._layout.rail(nic.id)
        own = rail is not None and rail == self._layout.rail(card.id)
        return (far, not own, *nearer, rail is None)


def _summary(reasons: Iterable[str]) -> str:
    """Count equal reasons: `5 held, ...; 1 drained`."""
    counted = Counter(reasons)
    return "; ".join(f"{number} {why}" for why, number in sorted(counted.items())[:8])
