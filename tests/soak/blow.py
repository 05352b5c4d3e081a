"""A blow: one process is killed or stopped, at a moment that is named or random. And its count."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from soak import page, points


@dataclass
class Blow:
    """A kill or a stop of one process: at a point, some instructions after it, or from outside.

    `after` is in seconds from the question on, for a blow from outside, and `number` says on which
    process of the role it falls; `pause` is how long a stopped process stays so.
    """

    role: str
    signal: int = signal.SIGKILL
    point: int = 0
    hits: int = 1
    then: int = page.NOW
    number: int = 0
    after: float = 0.0
    pause: float = 0.0
    fell_on: int = 0
    fell_at: float = 0.0
    continued: bool = False

    @property
    def kind(self) -> str:
        if self.signal == signal.SIGSTOP:
            return "stop"
        return ("point", "call", "line")[self.then] if self.point else "outside"

    @property
    def stopped(self) -> bool:
        """Whether somebody was stopped by it, and is still."""
        return self.signal == signal.SIGSTOP and self.fell_on > 0 and not self.continued

    def __str__(self) -> str:
        where = f"at {points.POINTS[self.point - 1]}, hit {self.hits}" if self.point else "outside"
        more = f", {('', 'call', 'line')[self.then]} {self.number}" if self.then else ""
        return f"{signal.Signals(self.signal).name} of the {self.role} {where}{more}"


@dataclass
class Tally:
    """Counts of a run."""

    crashes: dict[tuple[str, str], int] = field(default_factory=dict)
    points: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    starts: int = 0
    checks: int = 0
    opens: int = 0
    reboots: int = 0
    answers: dict[str, int] = field(default_factory=dict)

    def crash(self, role: str, kind: str) -> None:
        self.crashes[role, kind] = self.crashes.get((role, kind), 0) + 1

    @property
    def crashed(self) -> int:
        return sum(self.crashes.values())
