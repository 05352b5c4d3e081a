"""Who chooses when a caller only counts: placement, as the planner asks for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xce_nodeagent import placement
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.request import parse
from xce_nodeagent.model.wire import PortAsk


class Placement:
    """The agent's own choice. It has no state, so the same question has one answer."""

    def instances(
        self, inventory: Inventory, request: str, *, unavailable: set[str], near: set[str]
    ) -> tuple[str, ...]:
        """Give the ids for a request text; raise BadRequest, NoFitNow or NeverFits."""
        choice = placement.choose(inventory, parse(request), unavailable=unavailable, near=near)
        return choice.instances

    def ports(
        self,
        parts: Sequence[range],
        asks: Sequence[PortAsk],
        *,
        held: Collection[int],
        in_use: Collection[int],
    ) -> tuple[tuple[int, str], ...]:
        """Give each port with its name; raise what `placement.choose_ports` raises."""
        return placement.choose_ports(parts, asks, held=held, in_use=in_use)
