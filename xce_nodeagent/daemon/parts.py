"""Who uses the parts of a divisible instance (ports, for now) on this host."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from xce_nodeagent.binding.helper import Helper
from xce_nodeagent.errors import AgentError, NotReady
from xce_nodeagent.host import Host
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.wire import LeftOver
from xce_nodeagent.privileged.ops import Look, Looked
from xce_nodeagent.provider import Divides, Provider

log = logging.getLogger(__name__)


class Parts:
    """Asks the provider of the instance, and the witness for names (see binding/parts.py)."""

    def __init__(self, host: Host, providers: Mapping[str, Provider], witness: Helper) -> None:
        self._host = host
        self._dividing = {n: one for n, one in providers.items() if isinstance(one, Divides)}
        self._witness = witness

    def in_use(self, instance: Instance) -> frozenset[int]:
        """Give the numbers in use now; raise NotReady where that cannot be seen."""
        return self._ask(instance, lambda provider: provider.in_use(self._host, instance))

    def served(self, instance: Instance) -> frozenset[int]:
        """Give the numbers where somebody waits for others; raise NotReady as above."""
        return self._ask(instance, lambda provider: provider.served(self._host, instance))

    def _ask(self, instance: Instance, look: Callable[[Divides], frozenset[int]]) -> frozenset[int]:
        provider = self._dividing.get(instance.provider)
        if provider is None:
            return frozenset()
        try:
            return look(provider)
        except OSError as error:
            raise NotReady(f"which {instance.id} are in use cannot be seen: {error}") from None

    async def who(self, ports: tuple[int, ...]) -> tuple[LeftOver, ...]:
        """Say who listens on these ports; at least one line, also when nobody can be named."""
        try:
            looked = await self._witness.call(Look(ports=ports))
        except AgentError as error:
            log.warning("who listens cannot be seen: %s", error.message)
            return tuple(LeftOver(-1, f"listens on port {port}") for port in ports)
        seen = tuple(
            LeftOver(s.pid, f"listens on {s.what}", s.comm, s.uid)
            for s in looked.seen
            if not s.namespace  # elsewhere the same number is another port
        )
        return seen or tuple(LeftOver(-1, f"listened on port {port}") for port in ports)

    async def look(self, what: Look) -> Looked:
        """Ask the witness."""
        answer: Looked = await self._witness.call(what)
        return answer
