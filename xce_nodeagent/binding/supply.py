"""Where helpers come from: the agent's end of the supervisor (privileged/supervisor.py)."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

import msgspec

from xce_nodeagent.errors import BY_CODE, AgentError, NotReady
from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.channel import Channel, Violation, decode, encode

PATIENCE = 15.0
"""Seconds to wait for a helper: for the supervisor to come back, and for a spare."""

PAUSE = 0.05
"""Seconds before the supervisor is dialled again; twice as long each time, up to a second."""

Dial = Callable[[], socket.socket]


def inherited(end: socket.socket) -> Dial:
    """Dial a supervisor that we started ourselves. There is no second one when it is gone."""
    ends = [end]

    def dial() -> socket.socket:
        if not ends:
            raise NotReady("the helpers' supervisor has ended: restart the agent")
        return ends.pop()

    return dial


def listening(path: str) -> Dial:
    """Dial a supervisor that runs by itself. It may be restarted, and is dialled again then."""

    def dial() -> socket.socket:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            end.settimeout(0)
            end.connect(path)
        except BaseException:
            end.close()
            raise
        return end

    return dial


class Supply:
    """The supervisor: `next` gives a helper of a role."""

    def __init__(self, dial: Dial, *, patience: float = PATIENCE) -> None:
        self._dial = dial
        self._patience = patience
        self._channel: Channel | None = None
        self._asked: dict[ops.Role, deque[asyncio.Future[tuple[socket.socket, int]]]] = {}
        self._decoder = msgspec.msgpack.Decoder(ops.SupervisorAnswer)

    async def next(self, role: ops.Role) -> tuple[socket.socket, int]:
        """Give a fresh helper's socket and pid.

        The helper of this role before it is killed. Raise NotReady when there is none, with the
        supervisor's reason.
        """
        try:
            async with asyncio.timeout(self._patience):
                while True:
                    channel = await self._connected()
                    answer: asyncio.Future[tuple[socket.socket, int]]
                    answer = asyncio.get_running_loop().create_future()
                    self._asked.setdefault(role, deque()).append(answer)
                    try:
                        self._send(channel, encode(ops.Next(role)))
                        return await answer
                    except asyncio.CancelledError:
                        # It may have been given in the same moment.
                        if answer.done() and not answer.cancelled() and not answer.exception():
                            answer.result()[0].close()
                        raise
                    except ConnectionError:
                        await asyncio.sleep(PAUSE)  # one that refuses us would do so at once again
        except TimeoutError:
            raise NotReady(
                f"the supervisor gave no {role} within {self._patience:g} seconds:"
                " look at its log (xce-nodeagent-helpers.service)"
            ) from None

    def close(self) -> None:
        """Leave the supervisor. One that came with us ends, and every helper with it."""
        self._drop("the agent is closing")

    def _send(self, channel: Channel, data: bytes) -> None:
        """Send. A connection that fails fails for everybody who waits, the caller among them."""
        try:
            channel.send(data)
        except (ConnectionError, BlockingIOError) as error:
            self._drop(f"the supervisor takes no request: {error}")

    async def _connected(self) -> Channel:
        pause = PAUSE
        while self._channel is None:
            try:
                end = self._dial()
            except OSError as error:
                refused = error
            else:
                end.settimeout(0)
                self._channel = Channel(end)
                asyncio.get_running_loop().add_reader(end.fileno(), self._hear)
                break
            if isinstance(refused, PermissionError):
                raise NotReady(f"the supervisor cannot be reached: {refused}") from None
            await asyncio.sleep(pause)
            pause = min(1.0, 2 * pause)
        return self._channel

    def _hear(self) -> None:
        if self._channel is None:
            return
        try:
            packet = self._channel.receive()
            if packet is None:
                self._drop("the supervisor has ended")
                return
        except BlockingIOError:
            return
        except ConnectionResetError:
            self._drop("the supervisor has ended")
            return
        except Violation as violation:
            self._drop(f"the supervisor broke the protocol: {violation}")
            return
        try:
            answer = decode(self._decoder, packet.data)
        except Violation as error:
            packet.close()
            self._drop(f"the supervisor broke the protocol: {error}")
            return
        if isinstance(answer, ops.Failed):
            packet.close()
            self._settle(answer.details.get("role", ""), None, _error(answer))
        elif packet.cut:
            reason = "the agent has no descriptor left for it: raise its limit (LimitNOFILE)"
            self._settle(answer.role, None, NotReady(f"no {answer.role}: {reason}"))
        elif len(packet.descriptors) == 1:
            end = socket.socket(fileno=packet.descriptors[0])
            self._settle(answer.role, (end, answer.pid), None)
        else:
            packet.close()
            self._drop("the supervisor gave no helper where it said so")

    def _settle(
        self, role: ops.Role, given: tuple[socket.socket, int] | None, error: AgentError | None
    ) -> None:
        """Answer the one who asked first. Who has stopped waiting gave its helper up."""
        waiting = self._asked.get(role)
        asked = waiting.popleft() if waiting else None
        if asked is None or asked.done():
            if given is not None:
                given[0].close()
        elif error is not None:
            asked.set_exception(error)
        elif given is not None:
            asked.set_result(given)

    def _drop(self, why: str) -> None:
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._channel.close()
            self._channel = None
        asked, self._asked = self._asked, {}
        for waiting in asked.values():
            for answer in waiting:
                if not answer.done():
                    answer.set_exception(ConnectionResetError(why))


def _error(failed: ops.Failed) -> AgentError:
    return BY_CODE.get(failed.code, NotReady)(failed.message, **failed.details)
