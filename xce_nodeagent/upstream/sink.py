"""The contract of a sink: where reports go. A sink may block as long as its own deadlines say.

`delivery.py` runs each sink in a thread of its own, so that none waits for another, and nothing on
a job's path for any.
"""

from __future__ import annotations

import math
from typing import ClassVar, Protocol

from xce_nodeagent.upstream.report import Report

PLAIN = "in plain HTTP: whoever is on the way can read and change it"
"""The note of a sink that speaks so to another host."""


class Undelivered(Exception):
    """A report, or a sign of life, did not get there.

    `reason` names the place and what it said, `remedy` what somebody should do, where only
    somebody can. With `hopeless`, trying again soon is of no use (a wrong password, a name that
    another agent has): it is tried again all the same, but seldom. `after` is the place's own wish:
    seconds before which it is not to be asked again. `meanwhile` is in how many seconds `tend` is
    to be asked although this failed: a lease lives on while its report waits.
    """

    def __init__(
        self, reason: str, *, remedy: str = "", hopeless: bool = False, after: float = 0.0
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.hopeless = hopeless
        self.after = after
        self.meanwhile = math.inf


class Sink(Protocol):
    """One place for reports."""

    kind: ClassVar[str]
    """`file`, `etcd` or `http`, as in the configuration."""

    @property
    def patience(self) -> float:
        """The seconds between two tries at most, while trying is of use."""
        ...

    @property
    def where(self) -> str:
        """The place, for people: a path, a URL. No secret is in it."""
        ...

    @property
    def note(self) -> str:
        """What people should know although reports get there; empty for nothing."""
        ...

    def deliver(self, report: Report) -> int:
        """Bring the place to this report; give the bytes that it took. Raise Undelivered.

        The sink remembers what is there, and sends no more than what changed, as far as the place
        is able to take that. After something failed it gets the newest report again, also where
        that is the one that it had.
        """
        ...

    def tend(self) -> float:
        """Do what is due by the clock (keep a lease alive); give the seconds until the next time.

        `inf` where nothing is. It is asked after each delivery, too, and before it is due. Raise
        Undelivered.
        """
        ...

    def close(self) -> None:
        """Give up connections. What is at the place stays there."""
        ...
