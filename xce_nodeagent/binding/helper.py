"""The agent's end of a helper: requests go out in order, and answers come back in order.

A helper may die or hang at any instruction. Then the supervisor gives the next one, which is
greeted (a binder ends its predecessor first), and what was not answered is asked again: every
request can be repeated. Only the request whose turn it was can be to blame, so only that one is
given up, after some helpers; those behind it go on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from xce_nodeagent.binding.supply import Supply
from xce_nodeagent.errors import BY_CODE, AgentError, Internal, NotReady
from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.channel import Channel, Violation, decode, encode, make_room

log = logging.getLogger(__name__)

GENERATIONS = 3
"""Helpers that a request may cost before it is given up."""

DEADLINE = 5.0
"""Seconds that a helper has for a request once its turn has come."""

SETTLED = 1.0
"""Seconds after which a helper that dies idle is replaced at once, and not at the next request:
one that cannot live must not be started again and again."""


class _Asked:
    """A request on its way, and the future that its caller awaits."""

    __slots__ = ("answer", "data", "deadline", "descriptors", "lost", "name", "unread")

    def __init__(
        self, request: msgspec.Struct, fds: Sequence[int], deadline: float, loop: Any
    ) -> None:
        self.name = type(request).__name__
        self.data = encode(request)
        # Copies, because the caller may close its own before the request is asked again.
        self.descriptors = [os.dup(fd) for fd in fds]
        self.deadline = deadline
        self.lost = 0
        self.unread = False
        self.answer: asyncio.Future[Any] = loop.create_future()

    def settle(self, answer: Any, error: AgentError | None = None) -> None:
        """Give the caller the answer, if it still waits."""
        while self.descriptors:
            os.close(self.descriptors.pop())
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(answer)
        else:
            # One exception for each: a traceback grows in every task that raises it.
            self.answer.set_exception(type(error)(error.message, **error.details))


class _Line:
    """The connection to one helper: what was asked of it and is not answered yet, in order."""

    def __init__(
        self,
        channel: Channel,
        decoder: Any,
        lost: Callable[[_Line, str], None],
        pid: int,
        *,
        linger: int,
    ) -> None:
        self.pid = pid
        self._linger = linger
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)
        self.waiting: deque[_Asked] = deque()
        self.since = time.monotonic()
        self._unsent = 0
        self._reset = False
        self._channel = channel
        self._decoder = decoder
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(channel.fileno(), self._readable)

    def ask(self, asked: _Asked, meanwhile: Callable[[], None] | None = None) -> None:
        """Send a request, or keep it until the socket has room; then call `meanwhile`."""
        self.waiting.append(asked)
        self._unsent += 1
        if self._unsent == 1:
            self._send()
        if meanwhile is not None:
            meanwhile()
        if len(self.waiting) == 1 and not self._answered_at_once():
            self._arm()

    def _answered_at_once(self) -> bool:
        """Wait in place for an answer that is due any moment; False where it is still to come.

        A round trip through the event loop costs as much again as the operation: a timer set and
        cancelled, a wake-up, a callback. Nobody is kept waiting who could be served: the helper
        does one thing at a time, and a slow one is left to the loop after the linger.
        """
        if not self._linger or self._unsent or not self._poll.poll(self._linger):
            return False
        self._readable()
        # Or the helper was lost, and what waits is asked of the next one.
        return not self.waiting or self._channel.fileno() < 0

    def blame(self) -> _Asked | None:
        """Give the request over which the helper may have been lost: the one whose turn it was.

        A helper may have ended before it read it. Once that is believed of a request.
        """
        if not self.waiting:
            return None
        head = self.waiting[0]
        unread = self._unsent == len(self.waiting) or (self._reset and len(self.waiting) == 1)
        if unread and not head.unread:
            head.unread = True
            return None
        return head

    def close(self) -> None:
        """Close the connection; the helper ends by that, if it can."""
        if self._timer is not None:
            self._timer.cancel()
        descriptor = self._channel.fileno()
        if descriptor >= 0:
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
            self._channel.close()

    def _send(self) -> None:
        while self._unsent:
            asked = self.waiting[-self._unsent]
            try:
                self._channel.send(asked.data, asked.descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._channel.fileno(), self._writable)
                return
            except ConnectionError:
                return  # its end is seen where it is read, after what it has answered
            self._unsent -= 1

    def _writable(self) -> None:
        self._loop.remove_writer(self._channel.fileno())
        self._send()

    def _readable(self) -> None:
        try:
            packet = self._channel.receive()
            if packet is None:
                self._lost(self, "it has ended")
                return
            if packet.descriptors or packet.cut:
                packet.close()
                raise Violation("a descriptor came with its answer")  # noqa: TRY301  # one end
            answer = decode(self._decoder, packet.data)
        except BlockingIOError:
            return
        except ConnectionResetError:
            self._reset = True  # what it has answered is still to come, and then its end
            return
        except Violation as violation:
            self._lost(self, f"it broke the protocol: {violation}")
            return
        if len(self.waiting) <= self._unsent:
            self._lost(self, "it broke the protocol: it answered what was not asked")
            return
        if isinstance(answer, ops.Failed) and answer.details.get(ops.EXHAUSTED):
            self._lost(self, f"it ran out of what it needs: {answer.message}")
            return
        asked = self.waiting.popleft()
        if self._timer is not None or self.waiting:
            self._arm()
        if isinstance(answer, ops.Failed):
            known = BY_CODE.get(answer.code, Internal)
            asked.settle(None, known(answer.message, **answer.details))
        else:
            asked.settle(answer)

    def _arm(self) -> None:
        """Start the time of the request whose turn it is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.waiting:
            self._timer = self._loop.call_later(self.waiting[0].deadline, self._overdue)

    def _overdue(self) -> None:
        head = self.waiting[0]
        self._lost(self, f"it did not answer {head.name} within {head.deadline:g} seconds")


class Helper:
    """A helper of one role, whichever process that is at the time.

    `greeting` gives the requests that a new helper is asked before any other, each time anew;
    `greeted` holds what it answered. `unavailable` is the error when there is no helper to be
    had. `linger` is for how many milliseconds an answer is waited for in place, which is for a
    helper whose operations take less than that. `restarts` counts the helpers that were lost,
    and `loss` says how the last one was; `missing` says why there is none, "" while there is.
    """

    def __init__(
        self,
        role: ops.Role,
        supply: Supply,
        answers: Any,
        *,
        greeting: Callable[[], Sequence[msgspec.Struct]] = tuple,
        unavailable: type[AgentError] = NotReady,
        deadline: float = DEADLINE,
        generations: int = GENERATIONS,
        linger: int = 0,
    ) -> None:
        self.role = role
        self.greeted: tuple[Any, ...] = ()
        self.restarts = 0
        self.loss = ""
        self.missing = ""
        self._supply = supply
        self._decoder = msgspec.msgpack.Decoder(answers)
        self._greeting = greeting
        self._unavailable = unavailable
        self._deadline = deadline
        self._generations = generations
        self._linger = linger
        self._line: _Line | None = None
        self._backlog: deque[_Asked] = deque()
        self._starting: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def pid(self) -> int:
        """The pid of the helper that serves now; 0 when there is none."""
        return self._line.pid if self._line is not None else 0

    async def start(self) -> None:
        """Get the first helper and greet it; raise why there is none."""
        if self._line is None:
            await asyncio.shield(self._begin())

    async def call(
        self,
        request: msgspec.Struct,
        fds: Sequence[int] = (),
        deadline: float | None = None,
        *,
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        """Ask, and give the answer.

        `deadline` is in seconds, for each helper that is tried, from its turn on. Descriptors are
        copied. `meanwhile` is called once, when the request is on its way: what it does costs no
        time as long as the helper works. Raise the pinned error of a failure; ValueError when
        the request is too long.
        """
        if self._closed:
            raise self._unavailable(f"the {self.role} is closed: the agent is ending")
        seconds = self._deadline if deadline is None else deadline
        asked = _Asked(request, fds, seconds, asyncio.get_running_loop())
        if self._line is not None:
            self._line.ask(asked, meanwhile)
        else:
            self._backlog.append(asked)
            self._begin()
            if meanwhile is not None:
                meanwhile()
        return await asked.answer

    def drop(self, why: str) -> None:
        """Let this one go, which ends by that; the next call gets another."""
        line, self._line = self._line, None
        if line is not None:
            line.close()
            for asked in line.waiting:
                asked.settle(None, self._unavailable(why))

    def close(self) -> None:
        """Let the helper go; what is not answered fails."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
        if self._line is not None:
            self._backlog.extendleft(reversed(self._line.waiting))
            self._line.close()
            self._line = None
        self._fail(self._unavailable(f"the {self.role} was closed: the agent is ending"))

    def _begin(self) -> asyncio.Task[None]:
        if self._starting is None:
            self._starting = asyncio.create_task(self._replace())
            self._starting.add_done_callback(self._begun)
        return self._starting

    def _begun(self, task: asyncio.Task[None]) -> None:
        self._starting = None
        if not task.cancelled():
            # Whoever waits has been told; `start` awaits the task itself.
            task.exception()
        if self._backlog and self._line is None and not self._closed:
            self._begin()

    async def _replace(self) -> None:
        """Get a helper, greet it, and ask it what the one before has not answered."""
        try:
            for _ in range(self._generations):
                line = await self._next()
                if await self._greet(line):
                    self._line, self.missing = line, ""
                    # It may be lost over the first of them already; then `_begun` gets the next.
                    while self._backlog and self._line is line:
                        line.ask(self._backlog.popleft())
                    return
            raise self._unavailable(
                f"no {self.role}: {self._generations} in a row were lost while they started;"
                f" the last one: {self.loss}"
            )
        except AgentError as error:
            self.missing = error.message
            self._fail(error)
            raise

    async def _next(self) -> _Line:
        try:
            end, pid = await self._supply.next(self.role)
        except AgentError as error:
            raise self._unavailable(error.message, **error.details) from None
        end.settimeout(0)
        make_room(end)
        return _Line(Channel(end), self._decoder, self._lose, pid, linger=self._linger)

    async def _greet(self, line: _Line) -> bool:
        """Ask what comes first; False when the helper was lost over it."""
        loop = asyncio.get_running_loop()
        answers = []
        try:
            for request in self._greeting():
                asked = _Asked(request, (), self._deadline, loop)
                line.ask(asked)
                answers.append(await asked.answer)
        except _Lost:
            return False
        except BaseException:
            line.close()
            raise
        self.greeted = tuple(answers)
        return True

    def _lose(self, line: _Line, why: str) -> None:
        line.close()
        self.restarts += 1
        self.loss = why
        log.warning("the %s %d was lost: %s", self.role, line.pid, why)
        if line is not self._line:  # it was still being greeted
            for asked in line.waiting:
                asked.settle(None, _Lost(why))
            return
        self._line = None
        head = line.blame()
        if head is not None:
            head.lost += 1
            if head.lost >= self._generations:
                line.waiting.popleft()
                head.settle(
                    None,
                    self._unavailable(
                        f"{head.name}: {head.lost} {self.role}s in a row were lost over it;"
                        f" the last one: {why}"
                    ),
                )
        self._backlog.extendleft(reversed(line.waiting))
        if self._backlog or time.monotonic() - line.since >= SETTLED:
            self._begin()

    def _fail(self, error: AgentError) -> None:
        while self._backlog:
            self._backlog.popleft().settle(None, error)


class _Lost(NotReady):
    """The helper was lost while it was greeted; never seen outside."""
