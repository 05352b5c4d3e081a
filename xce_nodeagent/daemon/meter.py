"""The meter: what is counted while the agent serves, as plain values. Nothing here asks anybody."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from xce_nodeagent.errors import AgentError
from xce_nodeagent.model import wire
from xce_nodeagent.model.histogram import Histogram

OTHER: Final = "other"
"""What a call is counted as that is no method of ours."""

_METHODS: Final = {
    f"{wire.INTERFACE}.{name}": name
    for name in (
        "Prepare", "Release", "Join", "Reconcile", "GetInventory", "ListBindings", "GetBinding",
        "Drain", "Undrain", "Doctor",
    )
}  # fmt: skip


class Meter:
    """Counts since the agent's start.

    `calls` are by method and code; `durations` of Prepare and Release by method and outcome.
    `turned_away` are clients that there was no room for. `looks` are those at the hardware, after
    so many `events`.
    """

    def __init__(self) -> None:
        # What did not happen yet is told as 0, or nobody could say by how much it rose.
        self.calls = Counter({(name, "ok"): 0 for name in (*_METHODS.values(), OTHER)})
        self.durations: dict[str, dict[str, Histogram]] = {
            "Prepare": defaultdict(Histogram, ok=Histogram()),
            "Release": defaultdict(Histogram, ok=Histogram()),
        }
        self.turned_away = 0
        self.looks = Histogram()
        self.events = 0

    def called(self, method: str, seconds: float, error: AgentError | None = None) -> None:
        """Count a call that was answered so many seconds after it was read."""
        name = _METHODS.get(method, OTHER)
        self.calls[name, "ok" if error is None else error.code] += 1
        if known := self.durations.get(name):
            known["ok" if error is None else error.error_class.value].add(seconds)
