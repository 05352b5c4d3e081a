"""Losses: a binding whose cgroup is gone is closed, and what somebody still has is kept back.

Who took the cgroup away may have moved the job's processes out of it before, and an agent that died
in the middle of a release finds it in the same way.
"""

from __future__ import annotations

from collections.abc import Callable

from xce_nodeagent.binding import leftover
from xce_nodeagent.binding.outcome import Outcomes
from xce_nodeagent.binding.parts import Parts
from xce_nodeagent.binding.vigil import Vigil
from xce_nodeagent.model.binding import Binding, Lost, Released, ReleaseIntended
from xce_nodeagent.privileged.ops import Unbound

VANISHED = "cgroup-vanished"


class Losses:
    """Closes bindings that were lost. `listening` gives those of a binding's ports in use now."""

    def __init__(
        self,
        *,
        outcomes: Outcomes,
        parts: Parts,
        vigil: Vigil,
        listening: Callable[[Binding], list[int]],
        withheld: Callable[[], None],
    ) -> None:
        self._outcomes = outcomes
        self._parts = parts
        self._vigil = vigil
        self._listening = listening
        self._withheld = withheld

    async def close(self, binding: Binding) -> None:
        """Close a binding that has lost its cgroup. For whoever has its turn.

        It may be asked for again, unless a port of it is still in use: then it waits, as after a
        release. Raise NotReady where that cannot be seen.
        """
        job, attempt = binding.key
        ports = self._listening(binding)
        if not ports:
            self._outcomes.note(Lost(job=job, attempt=attempt, reason=VANISHED))
            self._vigil.left(binding, binding.instances)
            return
        left = await self._parts.who(tuple(ports))
        kept = leftover.quarantined(binding, Unbound(gone=True), ports)
        self._outcomes.note(ReleaseIntended(job=job, attempt=attempt))
        self._outcomes.note(Released(job=job, attempt=attempt, left=left, quarantined=kept))
        self._vigil.left(binding, tuple(one for one in binding.instances if one not in kept))
        self._withheld()
