"""The pace: how long the steps of a prepare and of a release took, of those that went well."""

from __future__ import annotations

from xce_nodeagent.model.histogram import Histogram


class Pace:
    """A histogram for each step.

    Of a prepare: `plan` (choose and plan), `commit` (the ledger), `bind` (the binder), and `look`
    (at nodes and ports, while the binder works). Of a release: `commit` (the intent), and `unbind`
    (the binder, and who is left).
    """

    def __init__(self) -> None:
        self.prepare = {step: Histogram() for step in ("plan", "look", "commit", "bind")}
        self.release = {step: Histogram() for step in ("commit", "unbind")}
