"""The book: all live bindings as the fold of the ledger's events, with what is asked of them often.

No I/O. Questions are answered from indexes, so that they cost the same at one binding and at a
thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from xce_nodeagent.model import share
from xce_nodeagent.model.binding import (
    Adopted,
    Binding,
    Committed,
    Drained,
    Ended,
    Event,
    Key,
    Undrained,
    follow,
)
from xce_nodeagent.model.instance import Holder, Instance
from xce_nodeagent.model.inventory import overlapping
from xce_nodeagent.model.rule import Device

_PARTS = frozenset({"mig", "gi", "mps"})
_WAS_RELEASED = ("releasing", "quarantined")


class Book:
    """The live bindings, the attempts that are over, the instances that are drained.

    `on_change` is called when an event was taken in, often on a job's path.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.live: dict[Key, Binding] = {}
        self.over: dict[Key, float] = {}
        self.drained: dict[str, str] = {}
        self._by_job: dict[str, set[Key]] = {}
        self._held: dict[str, set[Key]] = {}
        self._excluded: dict[str, set[Key]] = {}
        self._ports: dict[int, Key] = {}
        self._cgroups: dict[str, Key] = {}
        self._above: dict[str, set[str]] = {}  # the bound cgroups below each one above any

    def preview(self, event: Event, now: float, up: float | None = None) -> Binding | None:
        """Give the binding as the event would leave it; raise InvalidTransition if it can't.

        `now` is the time of day, `up` the seconds since the boot, where that is known.
        """
        if isinstance(event, (Drained, Undrained, Ended)):
            return None
        return follow(self.live.get((event.job, event.attempt)), event, now, up)

    def apply(self, event: Event, now: float) -> Binding | None:
        """Take an event in. The event is on disk already, or about to be lost with the process."""
        return self.take(event, self.preview(event, now), now)

    def take(self, event: Event, after: Binding | None, moment: float) -> Binding | None:
        """Take an event in, with the binding as `preview` said that it leaves it.

        `moment` is when it was, on the clock by which attempts are aged.
        """
        match event:
            case Drained(id=instance, reason=reason):
                self.drained[instance] = reason
            case Undrained(id=instance):
                self.drained.pop(instance, None)
            case Ended(job=job, attempt=attempt):
                self.over[job, attempt] = moment
            case Committed() | Adopted():
                # A requeue under an attempt that was never told apart: the tombstone is no more.
                self.over.pop((event.job, event.attempt), None)
        if after is not None:
            self._store(after, moment)
        self.on_change()
        return after

    def _store(self, after: Binding, moment: float) -> None:
        key = after.key
        before = self.live.pop(key, None)
        if before is not None:
            self._unindex(before)
        if after.state != "ended":
            self.live[key] = after
            self._index(after)
        elif after.attempt and before is not None and before.state in _WAS_RELEASED:
            # Only a release ends an attempt for good, also one whose outcome was not recorded.
            # A prepare that failed, and a binding that was lost, may be asked for again.
            self.over[key] = moment

    def _index(self, binding: Binding) -> None:
        key = binding.key
        self._by_job.setdefault(binding.job, set()).add(key)
        for instance in binding.instances:
            self._held.setdefault(instance, set()).add(key)
        if binding.state != "quarantined":
            for instance in (*binding.excluded, *binding.leaving):
                self._excluded.setdefault(instance, set()).add(key)
        for hold in binding.plan.ports:
            self._ports[hold.port] = key
        if step := binding.plan.cgroup:
            self._cgroups[step.cgroup.path] = key
            for above in _ancestors(step.cgroup.path):
                self._above.setdefault(above, set()).add(step.cgroup.path)

    def _unindex(self, binding: Binding) -> None:
        key = binding.key
        _discard(self._by_job, (binding.job,), key)
        _discard(self._held, binding.instances, key)
        _discard(self._excluded, (*binding.excluded, *binding.leaving), key)
        for hold in binding.plan.ports:
            if self._ports.get(hold.port) == key:
                del self._ports[hold.port]
        if (step := binding.plan.cgroup) and self._cgroups.get(step.cgroup.path) == key:
            del self._cgroups[step.cgroup.path]
            for above in _ancestors(step.cgroup.path):
                self._above[above].discard(step.cgroup.path)
                if not self._above[above]:
                    del self._above[above]

    def of_job(self, job: str, attempt: str | None = None) -> list[Binding]:
        """Give a job's live bindings: of one attempt, or of all."""
        keys = sorted(self._by_job.get(job, ()))
        return [self.live[key] for key in keys if attempt is None or key[1] == attempt]

    def is_free(self, instance: Instance) -> bool:
        """Say whether nobody holds an instance or what overlaps it; the usual case, quickly."""
        held = self._held
        return not (
            instance.id in held
            or instance.id in self._excluded
            or (instance.overlaps and not held.keys().isdisjoint(instance.overlaps))
        )

    def holders(self, instances: Mapping[str, Instance], wanted: str) -> tuple[Holder, ...]:
        """Give who holds an instance or anything that overlaps it, now or when it was bound."""
        keys = set(self._excluded.get(wanted, ()))
        for instance in overlapping(instances, wanted):
            keys |= self._held.get(instance, set())
        return tuple(sorted(Holder(*key) for key in keys))

    def held(self) -> dict[str, tuple[Holder, ...]]:
        """Give who holds each held instance by its own name, as the inventory shows it."""
        return {
            instance: tuple(sorted(Holder(*key) for key in keys))
            for instance, keys in self._held.items()
        }

    def unavailable(self, instances: Iterable[Instance]) -> set[str]:
        """Give the ids that are held, or overlap what is held."""
        held, taken = self._held.keys(), self._held.keys() | self._excluded.keys()
        return {i.id for i in instances if i.id in taken or not held.isdisjoint(i.overlaps)}

    def stranded(self, known: Mapping[str, Instance]) -> dict[str, Key]:
        """Give instances whose silicon is held under an id that is not known any more.

        Who declares or reports instances may give a device another id while a job holds it, and a
        library that answers late finds what was declared. A device that is granted tells of it;
        what the job holds under ids that are known is no news.
        """
        found: dict[str, Key] = {}
        for gone in self._held.keys() - known.keys():
            for key in self._held[gone]:
                binding = self.live[key]
                still = [known[one] for one in binding.instances if one in known]
                own = {Device.of(node) for one in still for node in one.devices}
                devices = {rule.device for rule in binding.plan.grants} - own
                if devices:
                    found.update(
                        (one.id, key)
                        for one in known.values()
                        if not devices.isdisjoint(_telling(gone, binding, one, known))
                    )
        return found

    def ports_held(self) -> Mapping[int, Key]:
        """Give the ports that bindings hold."""
        return self._ports

    def bound_cgroup(self, path: str) -> tuple[str, Key] | None:
        """Give the bound cgroup that is this one, above it or below it, and who has it."""
        above = path
        while above:
            if above in self._cgroups:
                return above, self._cgroups[above]
            above = above.rpartition("/")[0]
        for inside in self._above.get(path, ()):
            return inside, self._cgroups[inside]
        return None

    def has_mark(self, mark: str) -> bool:
        """Say whether a live binding has a cgroup's mark."""
        job, _, attempt = mark.partition("\n")
        return (job, attempt) in self.live

    def forget(self, before: float) -> list[Key]:
        """Drop the tombstones of attempts that were over before a moment; give their keys."""
        old = [key for key, ended in self.over.items() if ended < before]
        for key in old:
            del self.over[key]
        return old

    def __iter__(self) -> Iterator[Binding]:
        return iter(list(self.live.values()))


def _telling(
    gone: str, binding: Binding, one: Instance, known: Mapping[str, Instance]
) -> set[Device]:
    """Give those devices of an instance that tell, when they are held, that it is held as `gone`.

    Slices and shares have their card's nodes. These tell nothing where `gone` was a part of that
    card, beside which such a part may be given: a slice beside slices, a share beside shares. A
    part had excluded its card when it was bound.
    """
    nodes = {Device.of(node) for node in one.devices}
    card = known.get(one.parent or "") if one.type in _PARTS else None
    if card is None or card.id not in binding.excluded:
        return nodes
    if share.is_of(gone, card.id) is not (one.type == "mps"):
        return nodes
    return nodes - {Device.of(node) for node in card.devices}


def _ancestors(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _discard(index: dict[str, set[Key]], names: Iterable[str], key: Key) -> None:
    for name in names:
        if keys := index.get(name):
            keys.discard(key)
            if not keys:
                del index[name]
