"""A random walk over a node: what workers, admins and accidents do, in whatever order.

Everything random comes from one `random.Random`, so a history is told again by its seed (but for
the moments of blows from outside), and a generator that hypothesis controls can shrink it.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

from soak import page, points
from soak.caller import Call
from soak.node import PORTS, Blow, Node, plain
from soak.promises import Fact, Held, Key

JOBS = 12
"""Names of jobs, used again and again: by new attempts, in cgroups of the same name."""

LIVE = 8
"""Bindings at a time."""


class Wish(NamedTuple):
    """A question and what is so if it is carried out."""

    method: str
    parameters: dict[str, Any]
    key: Key
    before: frozenset[Fact]
    after: frozenset[Fact]


class Walk:
    """One history on one node."""

    def __init__(self, node: Node, chance: random.Random, *, blows: float = 0.45) -> None:
        self.node = node
        self.model = node.model
        self.chance = chance
        self._blows = blows
        self._number = 0
        self._asked: dict[Key, dict[str, Any]] = {}
        self._late: list[tuple[Key, dict[str, Any]]] = []
        self.steps: dict[str, tuple[int, Callable[[], None]]] = {
            "prepare": (30, self.prepare),
            "again": (8, self.again),
            "grow": (8, self.grow),
            "shrink": (8, self.shrink),
            "release": (26, self.release),
            "crowd": (6, self.crowd),
            "late": (3, self.late),
            "drain": (3, self.drain),
            "unknown": (1, self.release_unknown),
            "doctor": (1, self.doctor),
            "quiet": (4, self.quiet),
            "restart": (5, self.restart),
            "leave": (2, self.leave),
            "reboot": (1, self.reboot),
            "check": (4, self.node.check),
        }

    def run(self, steps: int, told: Callable[[], None] = lambda: None) -> None:
        """Take so many steps, and end with an empty node."""
        names = list(self.steps)
        weights = [weight for weight, _ in self.steps.values()]
        for _ in range(steps):
            self.step(self.chance.choices(names, weights)[0])
            told()
        self.finish()

    def step(self, name: str) -> None:
        self.node.tally.steps += 1
        self.steps[name][1]()
        self.node.alarms()

    def finish(self) -> None:
        """Release everything; then everything must be free, and nothing may be left."""
        node = self.node
        node.check()
        for instance in sorted(self.model.drained):
            self._drain(instance, on=False)
        for key in sorted(self.model.facts):
            node.free(key)
            self._ask([self._release(key)], None)
        node.check()
        if self.model.facts:
            node.fail(f"released, but still bound: {sorted(self.model.facts)}")
        whole = self._disjoint()
        wish = self._prepare(("whole", "1"), whole, (), "")
        if (call := self._ask([wish], None)[0]).state != "answered":
            node.fail(f"nothing is bound, but not everything is free: {call.answer}")
        node.check()
        node.free(("whole", "1"))
        self._ask([self._release(("whole", "1"))], None)
        node.check()
        node.stop()

    def _disjoint(self) -> frozenset[str]:
        taken: set[str] = set()
        for instance, overlaps in sorted(self.node.hardware.overlaps.items()):
            if not overlaps & taken:
                taken.add(instance)
        return frozenset(taken)

    # ---- what workers do --------------------------------------------------------------------

    def prepare(self) -> None:
        if len(self.model.facts) >= LIVE:
            return self.release()
        key = self._key()
        wish = self._prepare(key, self._choose(), self._port_asks(), self._named())
        self._ask([wish], self._blow("prepare"))
        return None

    def again(self) -> None:
        """The same once more: a worker that got no answer."""
        key = self._held(lambda key: key in self._asked)
        if key is None:
            return
        held = self.model.holds(key)
        facts = frozenset(self.model.of(key))
        wish = Wish("Prepare", self._asked[key], key, facts, facts)
        call = self._ask([wish], self._blow("prepare"))[0]
        if call.state == "answered" and self.model.holds(key) != held:
            self.node.fail(f"{key}: had {held}, and was answered {call.answer}")
        if call.state == "refused" and call.code not in ("enforcement", "not_ready"):
            self.node.fail(f"{key}: the same prepare again was refused: {call.answer}")

    def grow(self) -> None:
        key = self._held()
        if key is None:
            return
        more = self._choose() or frozenset(self._some(1))
        wish = self._prepare(key, more, self._port_asks(), "", add=True)
        self._ask([wish], self._blow("prepare"))

    def shrink(self) -> None:
        key = self._held(lambda key: len(self._certain(key).instances) > 1)
        if key is None:
            return
        held = self._certain(key)
        away = set(self.chance.sample(sorted(held.instances), 1))
        stays = held._replace(instances=held.instances - away)
        parameters = {"job": key[0], "attempt": key[1], "instances": sorted(away)}
        wish = Wish("Release", parameters, key, frozenset({held}), frozenset({stays}))
        self._asked.pop(key, None)
        self._ask([wish], self._blow("prepare"))

    def release(self) -> None:
        key = self._held()
        if key is None:
            return
        if self.chance.random() < 0.8:
            self.node.free(key)
        self._ask([self._release(key)], self._blow("release"))

    def release_unknown(self) -> None:
        call = self.node.one("Release", job="never", attempt="1")
        if call.state == "answered" and (call.answer["known"] or not call.answer["clean"]):
            self.node.fail(f"a job that never was: {call.answer}")

    def late(self) -> None:
        """A retry that was long on its way: its attempt was released."""
        if not self._late:
            return
        key, parameters = self.chance.choice(self._late)
        if self.model.of(key) != {None} or key not in self.model.dead:
            return
        wish = Wish("Prepare", parameters, key, frozenset({None}), frozenset({None}))
        call = self._ask([wish], None)[0]
        if call.code not in ("stale", "bad_cgroup"):
            self.node.fail(f"{key}: a late retry of a released attempt: {call.state} {call.answer}")

    def crowd(self) -> None:
        """Several workers at once, some of them after the same card."""
        wishes: list[Wish] = []
        for key in self.chance.sample(
            sorted(self.model.certain()), min(2, len(self.model.certain()))
        ):
            self.node.free(key)
            wishes.append(self._release(key))
        wanted = self._choose()
        for _ in range(self.chance.randint(2, 4)):
            if len(self.model.facts) + len(wishes) < LIVE + 4:
                wanted = wanted if self.chance.random() < 0.5 else self._choose()
                wish = self._prepare(self._key(), wanted, self._port_asks(), "")
                wishes.append(wish)
                if self.chance.random() < 0.3:
                    wishes.append(wish)
        self.chance.shuffle(wishes)
        self._ask(wishes, self._blow("prepare"))

    def leave(self) -> None:
        """A worker that asks and goes away: what it asked for is done or not, but whole."""
        wish = self._prepare(self._key(), self._choose(), self._port_asks(), "")
        self.node.story.append(f"{wish.method} {plain(wish.parameters)}, and away")
        call = self.node.call(wish.method, **wish.parameters)
        call.drop()
        self.model.put(wish.key, set(wish.before | wish.after))
        self.node.one("ListBindings")  # it comes after the other
        self.node.check()

    # ---- what admins do ---------------------------------------------------------------------

    def drain(self) -> None:
        drained = sorted(self.model.drained)
        if drained and self.chance.random() < 0.5:
            self._drain(self.chance.choice(drained), on=False)
        else:
            self._drain(self.chance.choice(sorted(self.node.hardware.types)), on=True)

    def _drain(self, instance: str, *, on: bool) -> None:
        if on:
            call = self.node.one("Drain", id=instance, reason="soak")
        else:
            call = self.node.one("Undrain", id=instance)
        if call.state == "answered":
            self.model.drained.pop(instance, None)
            if on:
                self.model.drained[instance] = {True}

    def doctor(self) -> None:
        blow = self._blow("look")
        calls = self.node.strike(blow, [("Doctor", {})]) if blow else [self.node.one("Doctor")]
        self._after(blow)
        if calls[0].state == "answered":
            wrong = [c for c in calls[0].answer["checks"] if c["state"] == "fault"]
            if wrong and not blow:
                self.node.fail(f"doctor finds {wrong}")

    # ---- accidents --------------------------------------------------------------------------

    def quiet(self) -> None:
        """A process dies while nothing is asked."""
        blow = self._outside()
        blow.after = 0.0
        self.node.strike(blow, [("ListBindings", {})])
        self._after(blow)

    def restart(self) -> None:
        """The agent dies, and something dies while it starts again."""
        node = self.node
        first = Blow("agent")
        node.strike(first, [("ListBindings", {})])
        blow: Blow | None = self._blow("start", always=True)
        node.restart(blow)
        node.check()

    def reboot(self) -> None:
        self.node.reboot()
        self._asked.clear()
        self.node.check()

    # ---- asking -----------------------------------------------------------------------------

    def _ask(self, wishes: list[Wish], blow: Blow | None) -> list[Call]:
        """Ask, and take in what is so then; with a blow, compare with the kernel after it."""
        node = self.node
        for wish in wishes:
            node.story.append(f"{wish.method} {plain(wish.parameters)}")
            node.allow(wish.key, self._may(wish))
        questions = [(wish.method, wish.parameters) for wish in wishes]
        if blow is not None:
            calls = node.strike(blow, questions)
        else:
            calls = [node.call(method, **parameters) for method, parameters in questions]
            node.ask(calls)
        node.story += [f"  {call.state} {call.code}" for call in calls]
        # Releases first: what they free may be in the answers of the others.
        pairs = sorted(
            zip(wishes, calls, strict=True), key=lambda pair: pair[0].method == "Prepare"
        )
        found: list[str] = []
        for wish, call in pairs:
            found += self._take(wish, call, blow)
        if found:
            node.fail("\n".join(found))
        if blow is not None:
            self._after(blow)
        elif any(call.state == "lost" for call in calls):
            if not node.struck_late():
                node.fail("a connection was cut, and nobody had struck")
            node.check()
        for wish in wishes:
            held = self.model.holds(wish.key)
            if held is not None:
                node.allow(wish.key, held.instances)
                if wish.method == "Prepare" and self.chance.random() < 0.8:
                    node.lock_up(wish.key, held)
            elif self.model.of(wish.key) == {None}:
                node.free(wish.key)
        return calls

    def _may(self, wish: Wish) -> frozenset[str]:
        facts = wish.before | wish.after
        return frozenset().union(
            *(fact.instances for fact in facts if fact and not fact.quarantined)
        )

    def _after(self, blow: Blow | None) -> None:
        if blow is not None:
            self.node.settle(blow)
            self.node.check()

    def _take(self, wish: Wish, call: Call, blow: Blow | None) -> list[str]:
        model, key = self.model, wish.key
        if wish.method == "Prepare":
            if call.state == "answered":
                if not wish.parameters.get("add"):
                    self._asked[key] = wish.parameters
                else:
                    self._asked.pop(key, None)
                return model.prepared(key, call.answer, self.node.hardware)
            if call.state == "lost" and model.of(key) == set(wish.before):
                model.put(key, set(wish.before | wish.after))
                if not wish.parameters.get("add"):
                    self._asked[key] = wish.parameters
            elif call.code == "enforcement" and blow is None:
                return [f"{key}: refused without an accident: {call.answer}"]
            return []
        whole = "instances" not in wish.parameters
        if call.state != "answered":
            model.put(key, set(wish.before | wish.after))
            if whole:
                self._over(key)
            return []
        if not whole:
            model.put(key, set(wish.after))
            return []
        found = []
        bound = all(fact and not fact.quarantined for fact in wish.before)
        if not call.answer["known"] and bound and blow is None:
            found.append(f"{key}: was bound, and its release says that it was not")
        if call.answer["clean"]:
            model.put(key, {None})
        else:
            model.put(key, {fact for fact in wish.after if fact} | {None})
        if call.answer["known"]:
            model.dead.add(key)
        self._over(key)
        return found

    def _over(self, key: Key) -> None:
        parameters = self._asked.pop(key, None)
        if parameters and "cgroup" not in parameters:
            self._late.append((key, parameters))

    # ---- wishes -----------------------------------------------------------------------------

    def _prepare(
        self,
        key: Key,
        instances: frozenset[str],
        ports: tuple[dict[str, Any], ...],
        cgroup: str,
        *,
        add: bool = False,
    ) -> Wish:
        parameters: dict[str, Any] = {"job": key[0], "attempt": key[1]}
        if instances:
            parameters["instances"] = sorted(instances)
        if ports:
            parameters["ports"] = list(ports)
        if cgroup:
            parameters["cgroup"] = cgroup
        if add:
            parameters["add"] = True
        exact = frozenset(ask["port"] for ask in ports if "port" in ask)
        count = sum(ask.get("count", 1) for ask in ports)
        wanted = Held(
            instances, exact if len(exact) == count else None, count,
            cgroup or f"{self.node.home}/job-{key[0]}",
        )  # fmt: skip
        before = frozenset(self.model.of(key))
        after = frozenset(self.model.asked(key, wanted, add=add))
        return Wish("Prepare", parameters, key, before, after)

    def _release(self, key: Key) -> Wish:
        before = frozenset(self.model.of(key))
        after: set[Fact] = {None}
        if key in self.node.prisoners:
            after |= {fact._replace(quarantined=True) for fact in before if fact}
        parameters = {"job": key[0], "attempt": key[1]}
        return Wish("Release", parameters, key, before, frozenset(after))

    def _key(self) -> Key:
        """Give a job that holds nothing, with an attempt of its own."""
        self._number += 1
        busy = {job for job, _ in self.model.facts}
        jobs = [str(job) for job in range(JOBS + len(busy)) if str(job) not in busy]
        return self.chance.choice(jobs), f"a{self._number}"

    def _some(self, most: int) -> list[str]:
        """Choose instances, none overlapping another; they may be held."""
        every = sorted(self.node.hardware.types)
        chosen: list[str] = []
        for one in self.chance.sample(every, most):
            if not any(self.node.hardware.overlaps[one] & {other} for other in chosen):
                chosen.append(one)
        return chosen

    def _choose(self) -> frozenset[str]:
        chosen = self._some(self.chance.choice((0, 1, 1, 2, 2, 3)))
        if self.chance.random() < 0.2:
            return frozenset(chosen)  # of which somebody may hold some
        taken = frozenset().union(*(self.model.may(key) for key in self.model.facts))
        return frozenset(one for one in chosen if not self.node.hardware.clash([one], taken))

    def _port_asks(self) -> tuple[dict[str, Any], ...]:
        kind = self.chance.random()
        if kind < 0.6:
            return ()
        if kind < 0.85:
            return ({"count": self.chance.randint(1, 2)},)
        return ({"port": self.chance.randint(*PORTS)},)

    def _named(self) -> str:
        """Make a cgroup as a caller does that names its own; nothing, mostly."""
        if self.chance.random() > 0.15:
            return ""
        path = self.node.other / f"own-{self._number}"
        path.mkdir()
        return str(path)

    def _held(self, fits: Callable[[Key], bool] = lambda _: True) -> Key | None:
        keys = [key for key in self.model.certain() if fits(key)]
        return self.chance.choice(keys) if keys else None

    def _certain(self, key: Key) -> Held:
        held = self.model.holds(key)
        assert held is not None
        return held

    # ---- blows ------------------------------------------------------------------------------

    def _blow(self, of: str, *, always: bool = False) -> Blow | None:
        chance = self.chance
        if not always and chance.random() > self._blows:
            return None
        if chance.random() < 0.2:
            return self._outside()
        some = [point for point in points.POINTS if of in point.of]
        roles = sorted({point.role for point in some})
        point = chance.choice(points.at(chance.choice(roles), of))
        blow = Blow(point.role, point=point.number, hits=chance.choice((1, 1, 1, 2, 3)))
        kind = chance.random()
        if kind < 0.25:
            blow.then, blow.number = page.CALLS, int(2 ** (chance.random() * 8))
        elif kind < 0.4:
            blow.then, blow.number = page.LINES, int(2 ** (chance.random() * 8))
        self._maybe_stop(blow)
        return blow

    def _outside(self) -> Blow:
        chance = self.chance
        role = chance.choice(("agent", "binder", "binder", "supervisor", "prober", "witness"))
        blow = Blow(role, after=chance.random() * 0.004, number=chance.randrange(4))
        self._maybe_stop(blow)
        return blow

    def _maybe_stop(self, blow: Blow) -> None:
        if self.chance.random() < 0.12:
            blow.signal = signal.SIGSTOP
            # Half of them beyond the time that a binder has: it wakes up with an old grant in hand.
            long = blow.role == "binder" and self.chance.random() < 0.5
            blow.pause = 0.5 + self.chance.random() if long else self.chance.random() * 0.05
