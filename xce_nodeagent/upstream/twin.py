"""Another agent with this one's very id, known by what it writes. Pure.

A copy of a host that runs has the agent's id, its boot's, and maybe all of its memory: a claim of
the name is this agent's own, and no lease tells the two apart. What does is that the head of the
node is again and again another than the one that was left there. A restarted agent meets the head
of the one before it, once, when it has left none itself.
"""

from __future__ import annotations

from collections import deque

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.packing import Unreadable
from xce_nodeagent.upstream.report import Head

_TRIED = 16  # heads of which one may be carried out late

# A meeting counts for two looks at which all was as it had been left.
_MET, _CERTAIN, _MOST = 2, 3, 6


class Twin:
    """What is known of such an agent."""

    def __init__(self) -> None:
        self._tried: deque[bytes] = deque(maxlen=_TRIED)
        self._count = 0
        self._agent = ""

    @property
    def note(self) -> str:
        """What people should know, and do; empty where there is none."""
        if self._count < _CERTAIN:
            return ""
        return (
            f"another agent writes here with this one's id, {self._agent}, and each overwrites the"
            " other: was this host, or the agent's state folder, copied while it ran? On the copy"
            " stop the agent, remove agent-id from its state folder, give it a name of its own"
            " ([agent] node), and start it"
        )

    def tried(self, head: bytes) -> None:
        """This agent is about to write this head."""
        self._tried.append(head)

    def met(self, head: bytes, agent: str) -> None:
        """There is this head where this agent, whose id is given, had left another."""
        if head in self._tried:
            return
        try:
            told = packing.unpack(head, Head, packing.SMALL)
        except Unreadable:
            return
        if told.agent == agent:
            self._agent = agent
            self._count = min(self._count + _MET, _MOST)

    def quiet(self) -> None:
        """All was as this agent had left it."""
        self._count = max(self._count - 1, 0)
