"""Asking a node, and taking in what is so then."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from soak.aim import Dice
from soak.blow import Blow
from soak.caller import Call
from soak.node import Node
from soak.promises import Fact, Held, Key


class Wish(NamedTuple):
    """A question, and what is so if it is carried out."""

    method: str
    parameters: dict[str, Any]
    key: Key
    before: frozenset[Fact]
    after: frozenset[Fact]

    @property
    def instances(self) -> frozenset[str]:
        """What it names."""
        return frozenset(self.parameters.get("instances", ()))

    @property
    def whole(self) -> bool:
        """Whether it is the release of a whole binding."""
        return self.method == "Release" and "instances" not in self.parameters

    def is_owed(self, call: Call) -> bool:
        """Say whether instances are let go by an answer after which they may be open still."""
        part = self.method == "Release" and not self.whole
        return part and call.state == "answered" and not call.answer["clean"]

    def may(self) -> frozenset[str]:
        """Give what the job may hold until the answer is there."""
        facts = self.before | self.after
        return frozenset().union(
            *(fact.instances for fact in facts if fact and not fact.quarantined)
        )


class Asking:
    """Asks, and keeps the model. `asked` are the prepares that were answered and may be repeated,

    `late` those whose attempt is over.
    """

    def __init__(self, dice: Dice, node: Node) -> None:
        self._dice = dice
        self._node = node
        self._model = node.model
        self.asked: dict[Key, dict[str, Any]] = {}
        self.late: list[tuple[Key, dict[str, Any]]] = []

    def prepare(
        self,
        key: Key,
        instances: frozenset[str],
        ports: tuple[dict[str, Any], ...],
        cgroup: str,
        *,
        add: bool = False,
    ) -> Wish:
        """Wish for a binding, or for more of one."""
        parameters: dict[str, Any] = named(key)
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
            cgroup or f"{self._node.home}/job-{key[0]}",
        )  # fmt: skip
        before = frozenset(self._model.of(key))
        after = frozenset(self._model.asked(key, wanted, add=add))
        return Wish("Prepare", parameters, key, before, after)

    def release(self, key: Key, **more: str) -> Wish:
        """Wish for a binding's end; what is in its cgroup then keeps it in quarantine."""
        before = frozenset(self._model.of(key))
        after: set[Fact] = {None}
        if self._node.prison.is_outside(key):
            # It listens still: what it held is free, but for its ports.
            quarantined = {"instances": frozenset(), "quarantined": True, "gone": True}
            after = {fact._replace(**quarantined) if fact else None for fact in before}
        elif key in self._node.prison:
            after |= {fact._replace(quarantined=True) for fact in before if fact}
        return Wish("Release", named(key) | more, key, before, frozenset(after))

    def ask(self, wishes: list[Wish], blow: Blow | None, *, settle: bool = True) -> list[Call]:
        """Ask, and take in what is so then; with a blow, compare with the kernel after it."""
        node = self._node
        before = node.services.late
        for wish in wishes:
            node.story.note(f"{wish.method} {json.dumps(wish.parameters, sort_keys=True)}")
            node.prison.allow(wish.key, wish.may())
        questions = [(wish.method, wish.parameters) for wish in wishes]
        if blow is not None:
            calls = node.strike(blow, questions)
        else:
            calls = [node.call(method, **parameters) for method, parameters in questions]
            node.ask(calls)
        node.story.note(*(f"  {call.state} {call.code}" for call in calls))
        # Releases first: what they free may be in the answers of the others.
        pairs = sorted(
            zip(wishes, calls, strict=True), key=lambda pair: pair[0].method == "Prepare"
        )
        found: list[str] = []
        for wish, call in pairs:
            found += self._take(wish, call, blow)
        if found:
            node.story.fail("\n".join(found))
        if blow is not None:
            if settle:
                self.after(blow)
        elif any(call.state == "lost" for call in calls):
            node.services.struck_late()
            if node.services.late == before:
                node.story.fail("a connection was cut, and nobody had struck")
            node.check()
        elif settle and any(wish.is_owed(call) for wish, call in pairs):
            node.check()
        for wish, call in pairs:
            if wish.whole and call.state == "answered":
                node.prison.allow(wish.key, frozenset())
        for wish in wishes:
            held = self._model.holds(wish.key)
            if held is not None:
                node.prison.allow(wish.key, held.instances)
                if wish.method == "Prepare" and self._dice.chance.random() < 0.8:
                    self.lock_up(wish.key, held)
            elif self._model.of(wish.key) == {None}:
                node.prison.free(wish.key)
        return calls

    def lock_up(self, key: Key, held: Held) -> None:
        """Start a process of a job, of one kind or another."""
        ports = sorted(held.ports or ())
        port = ports[0] if ports and self._dice.chance.random() < 0.5 else 0
        stubborn = self._dice.chance.random() < 0.5
        self._node.prison.lock_up(key, held, stubborn=stubborn, port=port)

    def after(self, blow: Blow | None) -> None:
        """Start again what a blow has ended, and compare with the kernel."""
        if blow is not None:
            self._node.services.settle(blow)
            self._node.check()

    def _take(self, wish: Wish, call: Call, blow: Blow | None) -> list[str]:
        model, key = self._model, wish.key
        if wish.method == "Prepare":
            if call.state == "answered":
                if not wish.parameters.get("add"):
                    self.asked[key] = wish.parameters
                else:
                    self.asked.pop(key, None)
                return model.prepared(key, call.answer, self._node.hardware)
            if call.state == "lost" and model.of(key) == set(wish.before):
                model.put(key, set(wish.before | wish.after))
                if not wish.parameters.get("add"):
                    self.asked[key] = wish.parameters
            elif call.code == "enforcement" and blow is None:
                return [f"{key}: refused without an accident: {call.answer}"]
            return []
        if call.state != "answered":
            model.put(key, set(wish.before | wish.after))
            if wish.whole:
                self.over(key)
            return []
        if not wish.whole:
            model.put(key, set(wish.after))
            return []
        found = []
        bound = all(fact and not fact.quarantined for fact in wish.before)
        if not call.answer["known"] and bound and blow is None:
            found.append(f"{key}: was bound, and its release says that it was not")
        if call.answer["clean"]:
            if None not in wish.after:
                found.append(f"{key}: is clean, and its process still listens")
            model.put(key, {None})
        else:
            model.put(key, {fact for fact in wish.after if fact} | ({None} & wish.after))
        if call.answer["known"] and key[1]:
            model.dead.add(key)
        self.over(key)
        return found

    def over(self, key: Key) -> None:
        """Take an attempt for over: what it asked for may come once more, late."""
        parameters = self.asked.pop(key, None)
        if parameters and key[1] and "cgroup" not in parameters:
            self.late.append((key, parameters))


def named(key: Key) -> dict[str, Any]:
    """Name a run of a job in a message; one whose caller gave no attempt has none."""
    return {"job": key[0], "attempt": key[1]} if key[1] else {"job": key[0]}
