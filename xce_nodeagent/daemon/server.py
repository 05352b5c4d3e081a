"""The socket: Varlink (varlink.org) over a unix stream socket, interface `io.xce.NodeAgent`.

A message is one JSON object and a NUL. Calls of one connection are answered in order; calls of
different connections do not wait for each other. Whatever a client sends or fails to read, the
others are served.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import stat
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from types import coroutine
from typing import Any, Final

from msgspec import Struct

from xce_nodeagent.daemon import message, rights
from xce_nodeagent.daemon.connection import CHUNK, Connection, Peer
from xce_nodeagent.daemon.line import Line
from xce_nodeagent.daemon.meter import Meter
from xce_nodeagent.daemon.method import METHODS, STREAMED, Introspection, Method
from xce_nodeagent.daemon.service import Service
from xce_nodeagent.errors import (
    AgentError,
    BadConfig,
    Conflict,
    Internal,
    NotPermitted,
    NotReady,
    exhausted,
)
from xce_nodeagent.model.inventory import Inventory

__all__ = ["Limits", "Peer", "Server", "Service", "listen"]

log = logging.getLogger(__name__)

_SPARE_DESCRIPTORS: Final = 128  # for all that is not a client: helpers, the ledger, the log
_AT_ONCE: Final = 64  # clients let in before those who are in get their turn
_OUT_OF_DESCRIPTORS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Limits(Struct, frozen=True, kw_only=True):
    """What clients may take. Those who may prepare are bound by `connections` alone.

    All the others together get half of it, so that the worker is always let in.
    """

    connections: int = 1024
    per_uid: int = 64
    stall_seconds: float = 30.0


def listen(path: str, *, backlog: int = 1024) -> socket.socket:
    """Make the socket at `path`, open to every user: who may do what is judged by credentials.

    A socket that a dead agent left is replaced; raise Conflict where a living one answers, and
    BadConfig where no socket can be made.
    """
    try:
        _make_room(path)
        return _bound(path, backlog)
    except OSError as error:
        # A path of more than 107 bytes has no error number, only words.
        raise BadConfig(
            f"socket {path}: cannot be made: {error.strerror or error}; set"
            " XCE_NODEAGENT_SOCKET or XCE_NODEAGENT_RUNTIME_DIR to a place in a folder that is"
            f" there and that uid {os.geteuid()} can write in",
            socket=path,
        ) from None


def _make_room(path: str) -> None:
    """Take away the socket that a dead agent left, and nothing else."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise BadConfig(
                f"socket {path}: something that is no socket has this name; move it away, or set"
                " XCE_NODEAGENT_SOCKET to another place",
                socket=path,
            )
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            with contextlib.suppress(TimeoutError, BlockingIOError):  # it lives, and is busy
                probe.connect(path)
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        os.unlink(path)
        return
    raise Conflict(
        f"socket {path}: another agent answers on it; stop that one first, or give this one a"
        " runtime folder of its own",
        socket=path,
    )


def _bound(path: str, backlog: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(0)
        sock.bind(path)
        # Before listen(): until then every connect is refused, so there is no moment in between.
        os.chmod(path, 0o666)  # noqa: S103  # anybody may connect; credentials decide
        rights.refuse(sock)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


class Server:
    """The server of one listening socket. It serves from `start` to `close`."""

    def __init__(
        self,
        service: Service,
        listener: socket.socket,
        *,
        version: str,
        limits: Limits,
        meter: Meter | None = None,
    ) -> None:
        self._service = service
        self._meter = meter or Meter()
        self._listener = listener
        self._limits = limits
        self._introspection = Introspection(version)
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = min(limits.connections, max(descriptors - _SPARE_DESCRIPTORS, 1))
        self._connections: set[Connection] = set()
        self._others: Counter[int] = Counter()  # connections of each uid that may not prepare
        self._streams: set[Connection] = set()
        self._unsubscribe: Callable[[], None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._scratch = bytearray(CHUNK)
        self._wary = rights.may_come(listener)

    # ---- connections --------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def start(self) -> None:
        """Accept clients, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._line = Line(self._loop)
        self._listener.settimeout(0)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def close(self, grace_seconds: float = 5.0) -> None:
        """Accept nobody any more, let running calls end, and part from all clients."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            if self._wary:
                # Who was not let in yet may have sent some already.
                rights.close_aside(self._loop, self._listener, lambda: None)
            else:
                self._listener.close()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=grace_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        for connection in tuple(self._connections):
            connection.close()

    def _accept(self) -> None:
        # Not one for each turn of the loop: whoever knocks often would keep the others outside.
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                log.warning("no client can be let in for a second: %s", error)
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(1, self._accept_again)
                return
            self._let_in(sock)

    def _let_in(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        peer = Peer.of(sock)
        plain = not self._service.may_prepare(peer.uid)
        if why := self._no_room(peer.uid, plain=plain):
            self._meter.turned_away += 1
            with contextlib.suppress(OSError):  # they may have gone already
                sock.send(message.failure(NotReady(why)))
            if self._wary:
                rights.part(self._loop, sock, lambda: None)
            else:
                sock.close()
            return
        if plain:
            self._others[peer.uid] += 1
        connection = Connection(
            self._loop,
            sock,
            peer,
            stall_seconds=self._limits.stall_seconds,
            received=self._queued if plain else self._received,
            closed=self._closed,
            scratch=self._scratch,
            wary=self._wary,
        )
        self._connections.add(connection)

    def _accept_again(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _no_room(self, uid: int, *, plain: bool) -> str:
        if len(self._connections) >= self._most:
            return f"all {self._most} connections are taken; try again"
        if plain and self._others[uid] >= self._limits.per_uid:
            return f"user {uid} has {self._limits.per_uid} connections already; close some"
        if plain and self._others.total() >= max(self._most // 2, 1):
            return "all connections for users who may not prepare are taken; try again"
        return ""

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._others -= Counter([connection.peer.uid])  # keeps what is above zero
        self._streams.discard(connection)
        if not self._streams and self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    # ---- calls --------------------------------------------------------------------------------

    def _queued(self, connection: Connection, data: bytes) -> None:
        """Answer a call of a user who may not prepare when it is their turn."""

        def take() -> None:
            # A connection that broke meanwhile is counted no more; its call must not be kept.
            if connection.open:
                self._received(connection, data)

        self._line.wait(connection.peer.uid, take)

    def _received(self, connection: Connection, data: bytes) -> None:
        """Answer a call: at once when its method needs to wait for nothing, else from a task."""
        call = None
        connection.since = perf_counter()
        try:
            call = message.call(data)
            method = METHODS.get(call.method)
            if method is None or call.upgrade:
                answer = self._introspection.answer(call)
                self._count(connection, call, None)
                connection.answer(None if call.oneway else answer)
                return
            running = method.call(
                self._service, connection.peer, self._asked(connection.peer, call, method)
            )
            waits_for = running.send(None)
        except StopIteration as done:
            self._done(connection, call, done.value)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer
            self._failed(connection, call, error)
        else:
            task = self._loop.create_task(self._finish(connection, call, running, waits_for))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _asked(self, peer: Peer, call: message.Call, method: Method) -> Any:
        if method.needs_prepare and not self._service.may_prepare(peer.uid):
            raise NotPermitted(
                f"{call.method}: user {peer.uid} may not; an admin can list the user in"
                " [access] prepare_uids",
                uid=peer.uid,
            )
        return message.decoded(method.ask, message.parameters(call), "parameters")

    async def _finish(
        self,
        connection: Connection,
        call: message.Call,
        running: Coroutine[Any, Any, Any],
        waits_for: Any,
    ) -> None:
        try:
            result = await _rest(running, waits_for)
        except asyncio.CancelledError:
            self._failed(connection, call, NotReady("the agent is stopping; ask again"))
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the answer
            self._failed(connection, call, error)
        else:
            self._done(connection, call, result)

    def _done(self, connection: Connection, call: message.Call | None, result: Any) -> None:
        try:
            if call is None or call.oneway:
                connection.answer(None)
            elif call.more and call.method == STREAMED:
                self._stream(connection, message.success(result, continues=True))
            else:
                connection.answer(message.success(result))
            self._count(connection, call, None)
        except Exception as error:  # noqa: BLE001  # an answer that is no JSON is our fault
            self._failed(connection, call, error)

    def _failed(self, connection: Connection, call: message.Call | None, error: Exception) -> None:
        if exhausted(error):
            log.error(
                "%s: the agent is out of descriptors or memory: %s", call and call.method, error
            )
            error = NotReady(f"the agent is out of descriptors or memory ({error}): try again")
        elif not isinstance(error, AgentError):
            log.error("%s failed by a fault of ours", call and call.method, exc_info=error)
            error = Internal(
                f"a fault of the agent ({type(error).__name__}); its log has the traceback"
            )
        connection.answer(None if call is not None and call.oneway else message.failure(error))
        self._count(connection, call, error)

    def _count(
        self, connection: Connection, call: message.Call | None, error: AgentError | None
    ) -> None:
        seconds = perf_counter() - connection.since
        self._meter.called(call.method if call is not None else "", seconds, error)

    # ---- streams ------------------------------------------------------------------------------

    def _stream(self, connection: Connection, first: bytes) -> None:
        if not connection.open:
            return
        if self._unsubscribe is None:
            self._unsubscribe = self._service.subscribe(self._changed)
        self._streams.add(connection)
        connection.start_stream(first)

    def _changed(self, inventory: Inventory) -> None:
        data = message.success(inventory, continues=True)
        for connection in tuple(self._streams):
            connection.push(data)


async def _rest(running: Coroutine[Any, Any, Any], waits_for: Any) -> Any:
    return await _go_on(running, waits_for)


@coroutine
def _go_on(running: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Carry on, inside a task, with a coroutine that was stepped once outside.

    The task is handed the very future that the coroutine waits for, as if the task had taken
    the first step, too.
    """
    while True:
        try:
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001  # a cancellation goes in as well
                waits_for = running.throw(error)
            else:
                waits_for = running.send(sent)
        except StopIteration as done:
            return done.value
