"""What the life of bindings must know of the host: who uses parts of an instance, or a device."""

from __future__ import annotations

from typing import Protocol

from xce_nodeagent.model import wire
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.privileged.ops import Look, Looked


class Parts(Protocol):
    """Who uses the numbers of a divisible instance on this host, and who has a device open."""

    def in_use(self, instance: Instance) -> frozenset[int]:
        """Give those in use now, held or not; cheap, it is on the path of a prepare."""
        ...

    def served(self, instance: Instance) -> frozenset[int]:
        """Give those where somebody waits for others; cheap, it is on the path of a release."""
        ...

    async def who(self, ports: tuple[int, ...]) -> tuple[wire.LeftOver, ...]:
        """Say who does, with at least one line for any; it takes milliseconds."""
        ...

    async def look(self, what: Look) -> Looked:
        """Ask the witness; it may take long. Raises NotReady where there is none."""
        ...
