"""What a worker does besides: it has a process join, and after its restart says its whole truth."""

from __future__ import annotations

from pathlib import Path

from soak.aim import Aim, Dice
from soak.asking import Asking, named
from soak.caller import Call
from soak.draw import Draw
from soak.node import Node
from soak.promises import Fact, Held


class Worker:
    """Steps of the walk."""

    def __init__(self, dice: Dice, node: Node, aim: Aim, draw: Draw, asking: Asking) -> None:
        self._dice, self._node, self._aim = dice, node, aim
        self._draw, self._asking = draw, asking
        self._model = node.model

    def join(self) -> None:
        """A process that was started elsewhere is moved into a job's cgroup: then it is fenced."""
        key = self._draw.held(lambda key: key not in self._node.prison)
        held = self._model.holds(key) if key else None
        if key is None or held is None:
            return

        def join(pid: int) -> bool:
            blow = self._aim.maybe("join")
            parameters = {**named(key), "pid": pid}
            self._node.story.note(f"Join {parameters}")
            call = self._ask("Join", parameters, blow)
            inside = _is_in(pid, held)
            if call.state == "answered" and not inside:
                self._node.story.fail(f"{key}: process {pid} joined, and is not in {held.cgroup}")
            if call.state == "refused" and not blow:
                self._node.story.fail(f"{key}: no process may join: {call.answer}")
            return inside

        self._node.prison.lock_up(key, held, join=join)
        self._node.check()

    def _ask(self, method: str, parameters: dict[str, object], blow: object) -> Call:
        node = self._node
        if blow is None:
            return node.one(method, **parameters)
        call = node.strike(blow, [(method, parameters)])[0]
        node.services.settle(blow)
        return call

    def reconcile(self) -> None:
        """Whatever a worker does not name is released, and nothing else is touched."""
        node, model = self._node, self._model
        node.check()
        live = sorted(model.certain())
        keep = {key for key in live if self._dice.chance.random() < 0.6}
        away = [key for key in live if key not in keep]
        for key in away:
            if self._dice.chance.random() < 0.7:
                node.prison.free(key)
        wishes = {key: self._asking.release(key) for key in away}
        for key in away:
            node.prison.allow(key, wishes[key].may())
        jobs = [named(key) for key in sorted(keep)] + [{"job": "never"}]
        node.story.note(f"Reconcile {jobs}")
        blow = self._aim.maybe("release")
        call = self._ask("Reconcile", {"jobs": jobs}, blow)
        for key, wish in wishes.items():
            after: set[Fact] = set(wish.after)
            model.put(key, after if call.state == "answered" else after | set(wish.before))
            self._asking.over(key)
            if call.state == "answered" and key[1]:
                model.dead.add(key)
        if call.state == "answered":
            self._compare(call, keep, set(away))
        elif blow is None:
            node.story.fail(f"Reconcile: {call.state} {call.answer}")
        node.check()

    def _compare(self, call: Call, keep: set[tuple[str, str]], away: set[tuple[str, str]]) -> None:
        said = {
            what: {(ref["job"], ref.get("attempt") or "") for ref in call.answer[what]}
            for what in ("kept", "released", "unknown")
        }
        if said != {"kept": keep, "released": away, "unknown": {("never", "")}}:
            self._node.story.fail(f"reconciled {said}, and held {sorted(keep | away)}")


def _is_in(pid: int, held: Held) -> bool:
    """Say whether a process is in a job's cgroup; paths there begin at the mount."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return False
    paths = [line.split(":", 2)[2] for line in lines]
    return any(held.cgroup.endswith(path) for path in paths if path != "/")
