"""What is lost while the agent is down: its ledger, where the kernel knows all, or a cgroup."""

from __future__ import annotations

from pathlib import Path

from soak.aim import Aim, Dice
from soak.asking import Asking
from soak.blow import Blow
from soak.crew import remove_cgroup
from soak.draw import Draw
from soak.node import Node
from soak.promises import Held, Key


class Lost:
    """Steps of the walk."""

    def __init__(self, dice: Dice, node: Node, aim: Aim, draw: Draw, asking: Asking) -> None:
        self._dice, self._node, self._aim = dice, node, aim
        self._draw, self._asking = draw, asking

    def lose(self) -> None:
        """Every binding is back when the agent is, from what the cgroups bear."""
        node = self._node
        node.check()  # what is on its way is done: nobody but the ledger knows of it
        node.services.down()
        what = self._damage()
        node.story.note(f"the ledger is {what}")
        node.model.forgot()
        self._asking.asked.clear()
        self._asking.late.clear()
        node.services.restart(self._blow("lose"))
        node.check()
        for instance in sorted(node.hardware.types):  # a drain may be lost, and the end of one
            if (call := node.one("Undrain", id=instance)).state != "answered":
                node.story.fail(f"Undrain: {call.state} {call.answer}")
        node.model.drained.clear()

    def _blow(self, of: str) -> Blow | None:
        """Have a start go well now and then; else be hit where it does more than others."""
        return self._aim.at(of) if self._dice.chance.random() < 0.7 else None

    def vanish(self) -> None:
        """Root removes a job's cgroup: its binding is closed when the agent is back, no other is.

        It is carried out again, whole, where the ledger knows of it only that it was to be.
        """
        node = self._node
        node.check()
        key = self._draw.held(lambda key: not self._certain(key).gone)
        if key is None:
            return
        held = self._certain(key)
        node.prison.free(key)
        node.services.down()
        node.story.note(f"the cgroup of {key} is removed")
        remove_cgroup(Path(held.cgroup))
        node.model.put(key, {held, None})
        node.services.restart(self._blow("vanish"))
        node.check()
        if not node.model.holds(key):
            self._asking.asked.pop(key, None)

    def _certain(self, key: Key) -> Held:
        held = self._node.model.holds(key)
        assert held is not None
        return held

    def _damage(self) -> str:
        chance = self._dice.chance
        path = self._node.services.ledger
        log = Path(f"{path}-wal")
        kind = chance.choice(("deleted", "truncated", "flipped", "overwritten"))
        files = [file for file in (path, log) if file.exists() and file.stat().st_size]
        if kind == "deleted" or not files:
            for file in (path, log, Path(f"{path}-shm")):
                file.unlink(missing_ok=True)
            return "deleted"
        file = path if path in files else files[0]
        data = bytearray(file.read_bytes())
        if kind == "truncated":
            del data[chance.randrange(len(data)) :]
        elif kind == "flipped":
            for _ in range(chance.choice((1, 10, 1000))):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            start = chance.randrange(len(data))
            size = min(4096, len(data) - start)
            data[start : start + size] = bytes(size)
        with file.open("r+b") as opened:  # it stays its owner's
            opened.write(data)
            opened.truncate()
        return f"{kind}: {file.name}, {len(data)} bytes"
