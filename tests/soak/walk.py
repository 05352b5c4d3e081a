"""A random walk over a node: what workers, admins and accidents do, in whatever order.

Everything random comes from one `random.Random`, so a history is told again by its seed (but for
the moments of blows from outside), and a generator that hypothesis controls can shrink it.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable

from soak.aim import Aim, Dice
from soak.asking import Asking, Wish, named
from soak.blow import Blow
from soak.draw import Draw
from soak.ending import Ending
from soak.lost import Lost
from soak.node import Node
from soak.promises import Held, Key
from soak.worker import Worker

LIVE = 8
"""Bindings at a time."""


class Walk:
    """One history on one node. `turn` is its number, `wanted` are points to be hit first."""

    def __init__(
        self, node: Node, chance: random.Random, *, blows: float = 0.45, turn: int = 0,
        wanted: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        self.node = node
        self.model = node.model
        self.dice = Dice(chance)
        self._aim = Aim(self.dice, blows, turn, wanted)
        self._draw = Draw(self.dice, node)
        self._asking = Asking(self.dice, node)
        ending = Ending(self.dice, node, self._aim, self._draw, self._asking)
        worker = Worker(self.dice, node, self._aim, self._draw, self._asking)
        lost = Lost(self.dice, node, self._aim, self._draw, self._asking)
        self.steps: dict[str, tuple[float, Callable[[], None]]] = {
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
            "quiet": (8 * blows, self.quiet),
            "restart": (10 * blows, self.restart),
            "stale": (2 * blows, self.stale),
            "leave": (2, self.leave),
            "reboot": (1, self.reboot),
            "keep": (3, ending.keep),
            "die": (4, ending.die),
            "escape": (2, ending.escape),
            "kill": (3, ending.kill),
            "requeue": (2, ending.requeue),
            "join": (3, worker.join),
            "reconcile": (1, worker.reconcile),
            "lose": (2 * blows, lost.lose),
            "vanish": (2 * blows, lost.vanish),
            "check": (4, self.node.check),
        }

    def run(self, steps: int, told: Callable[[], None] = lambda: None) -> None:
        """Take so many steps, and end with an empty node."""
        names = list(self.steps)
        weights = [weight for weight, _ in self.steps.values()]
        for _ in range(steps):
            self.step(self.dice.chance.choices(names, weights)[0])
            told()
        self.finish()

    def step(self, name: str) -> None:
        self.node.tally.steps += 1
        self.steps[name][1]()
        self.node.prison.alarms()

    def finish(self) -> None:
        """Release everything; then everything must be free, and nothing may be left."""
        node = self.node
        node.check()
        for instance in sorted(self.model.drained):
            self._drain(instance, on=False)
        for key in sorted(self.model.facts):
            node.prison.free(key)
            self._asking.ask([self._asking.release(key)], None)
        node.check()
        if self.model.facts:
            node.story.fail(f"released, but still bound: {sorted(self.model.facts)}")
        whole = self._disjoint()
        wish = self._asking.prepare(("whole", "1"), whole, (), "")
        if (call := self._asking.ask([wish], None)[0]).state != "answered":
            node.story.fail(f"nothing is bound, but not everything is free: {call.answer}")
        node.check()
        node.prison.free(("whole", "1"))
        self._asking.ask([self._asking.release(("whole", "1"))], None)
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
        key = self._draw.key()
        wish = self._asking.prepare(
            key, self._draw.choose(), self._draw.port_asks(), self._draw.named()
        )
        self._asking.ask([wish], self._aim.maybe("prepare"))
        return None

    def again(self) -> None:
        """The same once more: a worker that got no answer."""
        key = self._draw.held(lambda key: key in self._asking.asked)
        if key is None:
            return
        held = self.model.holds(key)
        facts = frozenset(self.model.of(key))
        wish = Wish("Prepare", self._asking.asked[key], key, facts, facts)
        call = self._asking.ask([wish], self._aim.maybe("prepare"))[0]
        if call.state == "answered" and self.model.holds(key) != held:
            self.node.story.fail(f"{key}: had {held}, and was answered {call.answer}")
        if call.state == "refused" and call.code not in ("enforcement", "not_ready"):
            self.node.story.fail(f"{key}: the same prepare again was refused: {call.answer}")

    def grow(self) -> None:
        key = self._draw.held()
        if key is None:
            return
        more = self._draw.choose() or frozenset(self._draw.some(1))
        wish = self._asking.prepare(key, more, self._draw.port_asks(), "", add=True)
        self._asking.ask([wish], self._aim.maybe("prepare"))

    def shrink(self) -> None:
        key = self._draw.held(lambda key: len(self._certain(key).instances) > 1)
        if key is None:
            return
        held = self._certain(key)
        away = set(self.dice.chance.sample(sorted(held.instances), 1))
        stays = held._replace(instances=held.instances - away)
        parameters = {**named(key), "instances": sorted(away)}
        wish = Wish("Release", parameters, key, frozenset({held}), frozenset({stays}))
        self._asking.asked.pop(key, None)
        self._asking.ask([wish], self._aim.maybe("prepare"))

    def release(self) -> None:
        key = self._draw.held()
        if key is None:
            return
        if self.dice.chance.random() < 0.8:
            self.node.prison.free(key)
        self._asking.ask([self._asking.release(key)], self._aim.maybe("release"))

    def release_unknown(self) -> None:
        call = self.node.one("Release", job="never", attempt="1")
        if call.state == "answered" and (call.answer["known"] or not call.answer["clean"]):
            self.node.story.fail(f"a job that never was: {call.answer}")

    def late(self) -> None:
        """A retry that was long on its way: its attempt was released."""
        if not self._asking.late:
            return
        key, parameters = self.dice.chance.choice(self._asking.late)
        if self.model.of(key) != {None} or key not in self.model.dead:
            return
        wish = Wish("Prepare", parameters, key, frozenset({None}), frozenset({None}))
        call = self._asking.ask([wish], None)[0]
        if call.code not in ("stale", "bad_cgroup"):
            self.node.story.fail(
                f"{key}: a late retry of a released attempt: {call.state} {call.answer}"
            )

    def crowd(self) -> None:
        """Several workers at once, some of them after the same card."""
        wishes: list[Wish] = []
        for key in self.dice.chance.sample(
            sorted(self.model.certain()), min(2, len(self.model.certain()))
        ):
            self.node.prison.free(key)
            wishes.append(self._asking.release(key))
        wanted = self._draw.choose()
        for _ in range(self.dice.chance.randint(2, 4)):
            if len(self.model.facts) + len(wishes) < LIVE + 4:
                wanted = wanted if self.dice.chance.random() < 0.5 else self._draw.choose()
                wish = self._asking.prepare(self._draw.key(), wanted, self._draw.port_asks(), "")
                wishes.append(wish)
                if self.dice.chance.random() < 0.3:
                    wishes.append(wish)
        self.dice.chance.shuffle(wishes)
        self._asking.ask(wishes, self._aim.maybe("prepare"))

    def leave(self) -> None:
        """A worker that asks and goes away: what it asked for is done or not, but whole."""
        wish = self._asking.prepare(
            self._draw.key(), self._draw.choose(), self._draw.port_asks(), ""
        )
        self.node.story.note(
            f"{wish.method} {json.dumps(wish.parameters, sort_keys=True)}, and away"
        )
        call = self.node.call(wish.method, **wish.parameters)
        call.drop()
        self.model.put(wish.key, set(wish.before | wish.after))
        self.node.one("ListBindings")  # it comes after the other
        self.node.check()

    # ---- what admins do ---------------------------------------------------------------------

    def drain(self) -> None:
        drained = sorted(self.model.drained)
        if drained and self.dice.chance.random() < 0.5:
            self._drain(self.dice.chance.choice(drained), on=False)
        else:
            self._drain(self.dice.chance.choice(sorted(self.node.hardware.types)), on=True)

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
        blow = self._aim.maybe("look")
        calls = self.node.strike(blow, [("Doctor", {})]) if blow else [self.node.one("Doctor")]
        self._asking.after(blow)
        if calls[0].state == "answered":
            wrong = [c for c in calls[0].answer["checks"] if c["state"] == "fault"]
            if wrong and not blow:
                self.node.story.fail(f"doctor finds {wrong}")

    # ---- accidents --------------------------------------------------------------------------

    def quiet(self) -> None:
        """A process dies while nothing is asked."""
        blow = self._aim.outside()
        blow.after = 0.0
        self.node.strike(blow, [("ListBindings", {})])
        self._asking.after(blow)

    def restart(self) -> None:
        """The agent dies, and something dies while it starts again."""
        node = self.node
        first = Blow("agent")
        node.strike(first, [("ListBindings", {})])
        blow: Blow | None = self._aim.at("start")
        node.services.restart(blow)
        node.check()

    def stale(self) -> None:
        """A binder stalls with a grant in hand, and wakes up when another has taken its place.

        Nobody but its successor can have ended it: the supervisor is stopped as well, meanwhile.
        """
        node = self.node
        if len(self.model.facts) >= LIVE:
            return
        wish = self._asking.prepare(
            self._draw.key(), self._draw.choose() or frozenset(self._draw.some(1)), (), ""
        )
        blow = self._aim.stale()
        call = self._asking.ask([wish], blow, settle=False)[0]
        supervisors = node.services.pids("supervisor") if blow.fell_on > 0 else []
        for pid in supervisors:
            os.kill(pid, signal.SIGSTOP)
        try:
            if call.state == "answered":
                self._asking.ask([self._asking.release(wish.key)], None, settle=False)
                again = self._asking.prepare(self._draw.key(), wish.instances, (), "")
                self._asking.ask([again], None, settle=False)
            if blow.fell_on > 0:
                node.services.go_on(blow)
                node.services.outlive(blow)  # it does what it had in mind
                node.prison.look()
        finally:
            for pid in supervisors:
                os.kill(pid, signal.SIGCONT)
        self._asking.after(blow)

    def reboot(self) -> None:
        self.node.reboot()
        self._asking.asked.clear()
        self.node.check()

    def _certain(self, key: Key) -> Held:
        held = self.model.holds(key)
        assert held is not None
        return held
