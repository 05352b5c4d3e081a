"""What callers were told, and whether the kernel keeps it. Pure: no I/O, no clock.

The model is a dict: for each (job, attempt) the set of what may be so. After an answer that is one
thing; after a question that got none it is two or more, each of them whole: what was before, and
what would have been. A look at the node says which, and from then on it is that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Key = tuple[str, str]


class Held(NamedTuple):
    """A binding: whole. `ports` is None where the agent was to choose `count` of them.

    `gone`: nobody is in its cgroup any more, which is given back; only a port is not free yet.
    `part`: some of its ports may be forgotten, for what added them is lost and no cgroup bears it.
    """

    instances: frozenset[str]
    ports: frozenset[int] | None
    count: int
    cgroup: str
    quarantined: bool = False
    gone: bool = False
    part: bool = False

    def is_seen(self, view: View) -> bool:
        """Say whether what the agent lists is this."""
        return (
            self.instances == view.instances - {"ports"}
            and (self.part or self.count == len(view.ports))
            and (self.ports is None or self.ports == view.ports or self._was(view))
            and self.cgroup == view.cgroup
            and self.quarantined == (view.state == "quarantined")
        )

    def _was(self, view: View) -> bool:
        return self.part and self.ports is not None and view.ports < self.ports


Fact = Held | None


class View(NamedTuple):
    """A binding as ListBindings shows it."""

    state: str
    instances: frozenset[str]
    ports: frozenset[int]
    cgroup: str


class Cgroup(NamedTuple):
    """A cgroup as the kernel shows it. `programs` are the fences of ours on it: name and maps."""

    mark: str | None
    programs: tuple[tuple[str, frozenset[int]], ...]
    number: int


class Snapshot(NamedTuple):
    """What the kernel has, and what the agent says. None is what this back end does not have.

    `sockets` are the cgroups in which open sockets were made: the kernel keeps their stores.
    """

    listed: Mapping[Key, View]
    home: Mapping[str, Cgroup]
    named: Mapping[str, Cgroup]
    anchors: int | None
    managed: frozenset[str] | None
    stored: frozenset[int] | None
    sockets: frozenset[int]
    nodes: Mapping[str, tuple[int, int]]
    opened: Mapping[Key, frozenset[str]]


@dataclass(frozen=True)
class Hardware:
    """What the inventory says once for all: a profile does not change."""

    overlaps: Mapping[str, frozenset[str]]
    devices: Mapping[str, frozenset[str]]
    types: Mapping[str, str]
    nodes: Mapping[str, tuple[int, int]]
    backend: str
    per_job: bool

    def granted(self, instances: Iterable[str]) -> frozenset[str]:
        """Give the nodes that a job with these instances may open, and no others."""
        found: set[str] = set()
        for instance in instances:
            found |= self.devices.get(instance, frozenset())
            kind = self.types.get(instance, "")
            if kind in ("gpu", "mig"):
                found |= self._control("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
            elif kind == "nic" and self.devices.get(instance):
                found |= self._control("rdma_cm")
        return frozenset(found)

    def _control(self, *names: str) -> set[str]:
        return {path for path in self.nodes if path.rpartition("/")[2] in names}

    def clash(self, left: Iterable[str], right: Iterable[str]) -> set[str]:
        """Give what two bindings cannot both hold."""
        right = set(right)
        return {one for one in left if one in right or self.overlaps[one] & right}


@dataclass
class Model:
    """What may be so, by key; `dead` are attempts whose release was acknowledged."""

    facts: dict[Key, set[Fact]] = field(default_factory=dict)
    dead: set[Key] = field(default_factory=set)
    drained: dict[str, set[bool]] = field(default_factory=dict)
    ledger_was_lost: bool = False

    def of(self, key: Key) -> set[Fact]:
        return self.facts.get(key, {None})

    def holds(self, key: Key) -> Held | None:
        """Give what a key holds for certain; None where it may be something else."""
        facts = self.of(key)
        if len(facts) == 1 and (fact := next(iter(facts))) and not fact.quarantined:
            return fact
        return None

    def may(self, key: Key) -> frozenset[str]:
        """Give the instances that a key may hold now: while in doubt, all of them."""
        return frozenset().union(
            *(fact.instances for fact in self.of(key) if fact and not fact.quarantined)
        )

    def put(self, key: Key, facts: set[Fact]) -> None:
        if facts == {None}:
            self.facts.pop(key, None)
        else:
            self.facts[key] = facts

    def certain(self) -> dict[Key, Held]:
        return {key: held for key in sorted(self.facts) if (held := self.holds(key))}

    # ---- answers ----------------------------------------------------------------------------

    def asked(self, key: Key, wanted: Held, *, add: bool) -> set[Fact]:
        """Give what is so if a prepare is carried out."""
        after: set[Fact] = set()
        for fact in self.of(key):
            if fact is None:
                after |= set() if add else {wanted}
            elif add and not fact.quarantined:
                unknown = fact.ports is None or wanted.ports is None
                after.add(
                    fact._replace(
                        instances=fact.instances | wanted.instances,
                        count=fact.count + wanted.count,
                        ports=None if unknown else fact.ports | wanted.ports,
                    )
                )
            else:
                after.add(fact)
        return after

    def prepared(self, key: Key, answer: Mapping[str, Any], hardware: Hardware) -> list[str]:
        """Take in an answer to Prepare; give the promises that it breaks."""
        held = Held(
            frozenset(answer["instances"]) - {"ports"},
            frozenset(port["port"] for port in answer.get("ports", ())),
            len(answer.get("ports", ())),
            next(iter(answer["cgroup"].values()), ""),
        )
        faults = [f"{key}: a released attempt was bound again"] if key in self.dead else []
        before = self.of(key)
        if len(before) == 1 and (fact := next(iter(before))):
            lost = fact.instances - held.instances
            if lost or (fact.ports or frozenset()) - (held.ports or frozenset()):
                faults.append(f"{key}: had {fact}, and was answered {held}")
        news = held.instances - self.may(key)
        faults += [
            f"{key}: was given {one}, which is drained"
            for one in sorted(news)
            if self.drained.get(one) == {True}
        ]
        for other, theirs in self.certain().items():
            if other != key:
                faults += _twice(hardware, key, held, other, theirs)
        self.put(key, {held})
        return faults

    def settle(self, listed: Mapping[Key, View]) -> list[str]:
        """Take in what is so, by ListBindings; give what was promised and is not so."""
        faults = [
            f"{key}: is listed, and nobody asked for it: {view}"
            for key, view in listed.items()
            if self.of(key) == {None}
        ]
        for key in sorted(self.facts):
            view = listed.get(key)
            seen: set[Fact] = {
                fact
                for fact in self.facts[key]
                if (fact is None and view is None) or (fact and view and fact.is_seen(view))
            }
            if not seen:
                faults.append(f"{key}: should be {_either(self.facts[key])}, but is {view}")
            fact = next(iter(seen), None)
            if fact and view:
                fact = fact._replace(ports=view.ports, count=len(view.ports), part=False)
            self.put(key, {fact})
        return faults

    def rebooted(self) -> None:
        """Nothing is bound after a reboot. What was drained is drained."""
        self.facts.clear()

    def is_doubtful(self, key: Key, view: View, listening: frozenset[int]) -> bool:
        """Say whether a binding that has ended may be there again, in quarantine.

        That it was clean may be what a damaged ledger lost. Then it is, as soon as that is looked
        at: unless somebody listens on a port that was its own, who is another job's, which the
        ledger has lost as well and no cgroup bears.
        """
        return (
            self.ledger_was_lost
            and view.state == "quarantined"
            and self.of(key) == {None}
            and not view.ports.isdisjoint(listening)
        )

    def forgot(self) -> None:
        """The ledger is lost: what no cgroup bears may be forgotten, and nothing else.

        Of a binding that grew, the growth alone may be what is lost: a port that it leaves out is
        not granted all the same while somebody listens there.
        """
        self.dead.clear()
        self.ledger_was_lost = True
        for key, facts in self.facts.items():
            if any(fact and fact.gone for fact in facts):
                self.facts[key] = {f._replace(part=f.gone) if f else None for f in facts} | {None}


def faults(model: Model, seen: Snapshot, hardware: Hardware) -> list[str]:
    """Compare a settled model with the kernel; give every broken promise."""
    found = _cgroups(model, seen, hardware)
    bindings = {key: fact for key, facts in model.facts.items() for fact in facts if fact}
    keys = sorted(bindings)
    for place, key in enumerate(keys):
        for other in keys[place + 1 :]:
            found += _twice(hardware, key, bindings[key], other, bindings[other])
    for key, opened in seen.opened.items():
        held = bindings.get(key)
        let = hardware.granted(held.instances) if held and not held.quarantined else frozenset()
        if opened - let:
            found.append(f"{key}: can open {_short(opened - let)} without a grant")
        if let - opened:
            found.append(f"{key}: cannot open {_short(let - opened)}, which it was given")
    # With nothing bound, a binder that ended may have tidied its nodes away: then all are gone.
    if seen.nodes != hardware.nodes and (bindings or seen.nodes):
        wrong = seen.nodes.items() ^ hardware.nodes.items()
        found.append(f"device nodes differ: {_short(path for path, _ in wrong)}")
    return found


def _cgroups(model: Model, seen: Snapshot, hardware: Hardware) -> list[str]:
    found: list[str] = []
    every = {**seen.home, **seen.named}
    wanted = {
        fact.cgroup: "\n".join(key)
        for key, facts in model.facts.items()
        for fact in facts
        if fact and not fact.gone
    }
    found += [f"{path}: is gone" for path in wanted.keys() - every.keys()]
    found += [f"{path}: is left over" for path in seen.home.keys() - wanted.keys()]
    numbers = set()
    fence = "xce_fence_job" if hardware.per_job else "xce_fence"
    for path, cgroup in every.items():
        mark = wanted.get(path)
        if cgroup.mark != mark:
            found.append(f"{path}: its mark is {cgroup.mark!r}, and should be {mark!r}")
        if hardware.backend != "cgroup2":
            continue
        numbers.add(cgroup.number)
        names = [name for name, _ in cgroup.programs]
        # One that was named by its owner stays fenced after the release, until the owner goes.
        if names != [fence] and (mark is not None or names):
            found.append(f"{path}: has the programs {names}, and should have {fence}")
        if len({maps for _, maps in cgroup.programs}) > 1:
            found.append(f"{path}: has programs of two generations")
    if hardware.backend == "cgroup2" and not hardware.per_job:
        # One that was left to its owner may have an older set: nobody in it has a grant.
        bound = [cgroup for cgroup in every.values() if cgroup.mark is not None]
        maps = {maps for cgroup in bound for _, maps in cgroup.programs}
        if len(maps) > 1:
            found.append(f"jobs are fenced by {len(maps)} sets of maps")
        if seen.anchors is not None and seen.anchors > 1:
            found.append(f"the home has {seen.anchors} anchors")
        if seen.managed is not None:
            numbers_of = {f"{major}:{minor}" for major, minor in hardware.nodes.values()}
            if seen.managed != numbers_of:
                found.append(f"managed devices differ: {_short(seen.managed ^ numbers_of)}")
        left = (seen.stored or frozenset()) - numbers - seen.sockets
        if left:
            found.append(f"grants are left for cgroups that are gone: {left}")
    return found


def _twice(hardware: Hardware, key: Key, held: Held, other: Key, theirs: Held) -> list[str]:
    if key == other:
        return []
    both = hardware.clash(held.instances, theirs.instances)
    ports = (held.ports or frozenset()) & (theirs.ports or frozenset())
    found = [f"{key} and {other} both hold {_short(both)}"] if both else []
    if ports:
        found.append(f"{key} and {other} both hold the ports {sorted(ports)}")
    if held.cgroup and held.cgroup == theirs.cgroup and not (held.gone or theirs.gone):
        found.append(f"{key} and {other} are both in {held.cgroup}")
    return found


def _either(facts: set[Fact]) -> str:
    return " or ".join(sorted(str(fact) for fact in facts))


def _short(many: Iterable[object]) -> str:
    names = sorted(str(one).rpartition("/")[2] for one in many)
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
