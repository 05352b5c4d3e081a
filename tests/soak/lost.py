"""The ledger is lost or damaged while the agent is down: the kernel knows what is bound."""

from __future__ import annotations

from pathlib import Path

from soak.aim import Dice
from soak.asking import Asking
from soak.node import Node


class Lost:
    """A step of the walk."""

    def __init__(self, dice: Dice, node: Node, asking: Asking) -> None:
        self._dice, self._node, self._asking = dice, node, asking

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
        node.services.restart(None)
        node.check()
        for instance in sorted(node.hardware.types):  # a drain may be lost, and the end of one
            if (call := node.one("Undrain", id=instance)).state != "answered":
                node.story.fail(f"Undrain: {call.state} {call.answer}")
        node.model.drained.clear()

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
