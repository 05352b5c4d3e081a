"""What was told, and is on the disk as soon as that can be written."""

from __future__ import annotations

from collections.abc import Mapping

from xce_nodeagent.binding.store import Store
from xce_nodeagent.model.inventory import Seen

Hardware = tuple[Mapping[str, Seen], int]
"""What is remembered of the instances, and the N of the last generation."""


class Owed:
    """The generation that was told last, and notes. True while something is not written."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self._notes: dict[str, str] = {}
        self._told = False

    def __bool__(self) -> bool:
        return self._told or bool(self._notes)

    def tell(self, hardware: Hardware) -> None:
        """Take what was told, or is about to be."""
        self.hardware, self._told = hardware, True

    def keep(self, **notes: str) -> None:
        """Take notes."""
        self._notes.update(notes)

    def pay(self, store: Store) -> None:
        """Write it all to a file that is ready. Raises Enforcement, and owes the rest then."""
        if self._told:
            store.remember(*self.hardware)
            self._told = False
        if self._notes:
            store.keep(**self._notes)
            self._notes.clear()

    def paid(self) -> None:
        """Forget that it was owed: all is written anew."""
        self._told = False
        self._notes.clear()
