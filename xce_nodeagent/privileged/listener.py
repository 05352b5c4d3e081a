"""The listener: waits for what cards tell by themselves, and holds them open for that.

It is a process of its own beside the prober, because it waits most of the time, and because a card
is let go by ending it: the kernel then closes whatever the vendor's library had open. With each
request comes the end of a pipe. When the other end is closed, by the agent that wants a card to be
let go or by an agent that ends, the listener ends at once, whatever the library is doing.

A call that does not come back in time ends it, too, with an answer that names what was asked (see
prober.py).
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from xce_nodeagent.model.health import Sample, Told
from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.prober import FUSE_AFTER, Fuse
from xce_nodeagent.privileged.serve import Last


class Session(Protocol):
    """What is open: host/telemetry.py has one."""

    deaf: dict[str, str]

    def wait(self, seconds: float) -> Told:
        """Wait for events for at most so long."""
        ...

    def measure(self) -> Mapping[str, Sample]:
        """Give what each card says of itself."""
        ...


Open = Callable[[Sequence[str], Callable[[str], None]], Session]
"""Opens cards, and says to the second what it asks next."""


class Listener:
    """Answers `Listen`. A call of the library may take `patience` seconds."""

    def __init__(self, open_session: Open, *, patience: float) -> None:
        self._open = open_session
        self._patience = patience
        self._fuse = Fuse()
        self._cards: tuple[str, ...] | None = None
        self._session: Session | None = None
        self._asked = ""

    def handle(self, request: ops.Listen, fds: Sequence[int]) -> ops.ListenerAnswer:
        """Ask the library; raise Last when it hangs."""
        if len(fds) != 1:
            raise Violation("Listen without the end of a pipe")
        if self._cards not in (None, request.cards):
            raise Violation("other cards than those that are open")
        self._cards = request.cards
        limit = request.seconds + self._patience
        result: list[ops.ListenerAnswer | BaseException] = []
        done, tell = os.pipe2(os.O_CLOEXEC)

        def ask() -> None:
            try:
                result.append(self._answer(request))
            except BaseException as error:  # noqa: BLE001  # it is raised again, below
                result.append(error)
            finally:
                os.close(tell)

        try:
            self._fuse.light(limit + FUSE_AFTER)
            threading.Thread(target=ask, daemon=True).start()
            closed = _wait(done, fds[0], limit)
            self._fuse.light(0 if result else self._patience + FUSE_AFTER)
        finally:
            os.close(done)
        if closed:
            # Nobody reads this: the other end of the socket is closed as well, and we end by that.
            return ops.Heard()
        if not result:
            raise Last(ops.Heard(hung=self._asked))
        if isinstance(result[0], BaseException):
            raise result[0]
        return result[0]

    def _answer(self, request: ops.Listen) -> ops.Heard:
        if self._session is None:
            try:
                self._session = self._open(request.cards, self._begin)
            except OSError as error:
                return ops.Heard(fault=str(error))
        deaf = self._session.deaf
        if not request.seconds:
            return ops.Heard(samples=dict(self._session.measure()), deaf=deaf)
        told = self._session.wait(request.seconds)
        return ops.Heard(told.events, cut=tuple(sorted(told.cut)), deaf=deaf, fault=told.fault)

    def _begin(self, what: str) -> None:
        self._asked = what

    def close(self) -> None:
        """Leave it to the kernel: the library may hang in its own closing."""


def _wait(done: int, pipe: int, seconds: float) -> bool:
    """Wait for the work to be done, and for as long at most; say whether the pipe was closed."""
    poll = select.poll()
    poll.register(done, 0)  # POLLHUP is always told
    poll.register(pipe, 0)
    told = dict(poll.poll(seconds * 1000))
    return pipe in told and done not in told
