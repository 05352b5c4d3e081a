"""What the life of bindings must know of the parts of a divisible instance."""

from __future__ import annotations

from typing import Protocol

from xce_nodeagent.model import wire
from xce_nodeagent.model.instance import Instance


class Parts(Protocol):
    """Who uses the numbers of a divisible instance on this host."""

    def in_use(self, instance: Instance) -> frozenset[int]:
        """Give those in use now, held or not; cheap, it is on the path of a prepare."""
        ...

    def served(self, instance: Instance) -> frozenset[int]:
        """Give those where somebody waits for others; cheap, it is on the path of a release."""
        ...

    async def who(self, ports: tuple[int, ...]) -> tuple[wire.LeftOver, ...]:
        """Say who does, with at least one line for any; it takes milliseconds."""
        ...
