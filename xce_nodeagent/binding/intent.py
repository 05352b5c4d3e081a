"""The intent of a release: on the disk before anything is undone; who listens is seen meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from xce_nodeagent.errors import AgentError


class Intent:
    """`record` comes first; to be called while the binder works: it sees who still listens.

    `seconds` is how long it took to record.
    """

    def __init__(self, record: Callable[[], bool], listening: Callable[[], list[int]]) -> None:
        self._record = record
        self._listening = listening
        self.seconds = 0.0
        self._recorded: bool | None = None
        self._seen: list[int] | None = None
        self._error: AgentError | None = None

    def __call__(self) -> None:
        """Look. It raises nothing: the binder is at work, and must be heard first."""
        try:
            self._seen = self._listening()
        except AgentError as error:
            self._error = error

    def record(self) -> bool:
        """Record it, once; say whether it is on the disk."""
        if self._recorded is None:
            started = perf_counter()
            self._recorded = self._record()
            self.seconds = perf_counter() - started
        return self._recorded

    def told(self) -> tuple[bool, list[int]]:
        """Say whether it is recorded, and on which ports somebody listened meanwhile.

        Nobody did: then nobody can later, for the job's processes are gone or told of. Somebody
        did: that may be over by now. Raise what kept it from being seen.
        """
        if self._seen is None and self._error is None:
            self()
        if self._error is not None:
            raise self._error
        return self.record(), self._seen or []
