"""The pace: how long the steps of a prepare and of a release took, of those that went well."""

from __future__ import annotations

from typing import Literal

from xce_nodeagent.model.histogram import Histogram

PrepareStep = Literal["plan", "look", "commit", "bind"]
"""Choose and plan; look at the nodes on disk; write the ledger; have the binder act."""

ReleaseStep = Literal["commit", "unbind"]
"""Write the intent; have the binder act, and see who is left."""


class Pace:
    """A histogram for each step."""

    def __init__(self) -> None:
        self.prepare: dict[PrepareStep, Histogram] = {
            "plan": Histogram(), "look": Histogram(), "commit": Histogram(), "bind": Histogram(),
        }  # fmt: skip
        self.release: dict[ReleaseStep, Histogram] = {
            "commit": Histogram(), "unbind": Histogram(),
        }  # fmt: skip
