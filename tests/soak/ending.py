"""The end of a job that does not go as it should: its processes stay, leave, or are to be ended."""

from __future__ import annotations

from soak.aim import Aim, Dice
from soak.asking import Asking
from soak.blow import Blow
from soak.draw import Draw
from soak.node import Node
from soak.promises import Fact, Held, Key

TRIES = 200
"""Of a requeue right after a release: until the old run is clean, and the next one can begin."""


class Ending:
    """Steps of the walk."""

    def __init__(self, dice: Dice, node: Node, aim: Aim, draw: Draw, asking: Asking) -> None:
        self._dice, self._node, self._aim = dice, node, aim
        self._draw, self._asking = draw, asking
        self._model = node.model

    def die(self) -> None:
        """The processes of a job in quarantine end: then it is freed, and nobody has to ask."""
        left = [key for key in sorted(self._model.facts) if self._is_left(key)]
        if not left:
            return
        key = self._dice.chance.choice(left)
        self._node.story.note(f"the process of {key} ends")
        self._node.prison.free(key)
        self._model.put(key, {*self._model.of(key), None})
        self._clear(key, "clean")

    def _clear(self, key: Key, of: str) -> None:
        """Wait until nothing is left of a job; somebody may be hit meanwhile."""
        if blow := self._aim.maybe(of):
            self._node.strike_until(
                blow, lambda bindings: key not in [(b["job"], b["attempt"]) for b in bindings]
            )
            self._asking.after(blow)
        self._node.check()

    def _is_left(self, key: Key) -> bool:
        return key in self._node.prison and all(
            fact and fact.quarantined for fact in self._model.of(key)
        )

    def keep(self) -> None:
        """A job is released while its processes are there."""
        key = self._draw.held(lambda key: key in self._node.prison)
        if key is not None:
            self._asking.ask([self._asking.release(key)], self._aim.maybe("release"))

    def escape(self) -> None:
        """A process that listens on a port of its job leaves the cgroup, and the job is released.

        The port is not free, and the process is none of ours to end, whoever asks for that.
        """
        key = self._listening()
        if key is None:
            return
        self._node.story.note(f"the process of {key} leaves its cgroup")
        self._node.prison.escape(key)
        more = {"kill": "term-then-kill"} if self._dice.chance.random() < 0.5 else {}
        self._asking.ask([self._asking.release(key, **more)], self._aim.maybe("release"))
        self._node.check()
        if self._dice.chance.random() < 0.5 and self._is_left(key):
            self.die()
        elif self._model.holds(key):  # it was not released: then it must not be outside
            self._node.prison.free(key)

    def _listening(self) -> Key | None:
        key = self._draw.held(lambda key: self._held(key).ports and not self._held(key).gone)
        if key is None:
            return None
        held = self._held(key)
        self._node.prison.free(key)
        self._node.prison.lock_up(key, held, port=min(held.ports or ()))
        return key if key in self._node.prison else None

    def _held(self, key: Key) -> Held:
        held = self._model.holds(key)
        assert held is not None
        return held

    # ---- kill -------------------------------------------------------------------------------

    def kill(self) -> None:
        """What is in the cgroup is to be ended: it is, also when somebody else ends meanwhile."""
        key = self._draw.held(lambda key: key in self._node.prison)
        if key is not None:
            self._end(key, self._aim.maybe(self._dice.chance.choice(("release", "kill"))))
            self._clear(key, "kill")

    def requeue(self) -> None:
        """The next run of a job comes right after, and gives no attempt. Nobody ends it."""
        job = self._draw.key()[0]
        key, instances = (job, ""), self._draw.choose()
        self._asking.ask([self._asking.prepare(key, instances, (), "")], None)
        held = self._model.holds(key)
        if held is None:
            return
        if key not in self._node.prison:
            self._asking.lock_up(key, held)
        self._end(key, None)
        blow: Blow | None = self._aim.maybe("kill")
        for _ in range(TRIES):
            call = self._asking.ask([self._asking.prepare(key, held.instances, (), "")], blow)[0]
            if call.state == "answered" or call.code not in ("busy", "conflict"):
                break
            blow = None
        if (again := self._model.holds(key)) and key not in self._node.prison:
            self._node.prison.lock_up(key, again)

    def _end(self, key: Key, blow: Blow | None) -> None:
        """Release, and have what is left ended."""
        prison = self._node.prison
        prison.condemn(key)
        wish = self._asking.release(key, kill="term-then-kill")
        call = self._asking.ask([wish], blow)[0]
        if call.state != "answered" and len(self._model.of(key)) > 1:
            self._node.check()  # it may be bound still, and then may open what it holds
        facts: set[Fact] = self._model.of(key)
        if call.state != "answered" and self._model.holds(key):
            prison.pardon(key)
            return
        if call.state == "answered" and not (call.answer["clean"] or call.answer["killing"]):
            self._node.story.fail(f"{key}: what is left is not ended: {call.answer}")
        prison.doom(key)
        self._model.put(key, {*facts, None})
