"""The supervisor: keeps one spare helper of each role, and hands them to the agent.

It does nothing else. It is small and has one thread, so that a fork costs it little; and it forks
only after it has answered, never while a job waits. The one thing that it understands is `Next`.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from xce_nodeagent.privileged import capability, ops, seccomp
from xce_nodeagent.privileged.capability import Capability
from xce_nodeagent.privileged.channel import Channel, Violation, decode, encode
from xce_nodeagent.privileged.nursery import Child, Nursery
from xce_nodeagent.privileged.role import Role
from xce_nodeagent.privileged.serve import EXIT_CLOSED, EXIT_VIOLATION, Log

_KEEP = frozenset({Capability.SETUID, Capability.SETGID, Capability.SETPCAP, Capability.KILL})
"""What the supervisor needs itself: to make its helpers somebody else, and to end them. Beside
these it keeps what one of them keeps."""

GRACE = 5.0
"""Seconds that helpers have to end by themselves when the agent has gone, and again when they
were killed."""

REPLACED_GRACE = 0.2
"""Seconds that a helper which was replaced has to end by itself, so that its exit tells why."""

SIGNALLED_GRACE = 1.0
"""Seconds that helpers have to end by themselves after the supervisor was told to end."""

SETTLED = 10.0
"""Seconds after which a spare that dies was not ill from the start."""

WAITING_LIMIT = 16
"""Requests of an agent that wait. One agent of ours has at most a few."""

GIVE_UP_AFTER = 4
"""So many deaths at once in a row, and the agent is told instead of kept waiting."""


class Door(Protocol):
    """How the agent comes in."""

    lasting: bool
    """Whether another agent may come when this one has gone."""

    def fileno(self) -> int:
        """Give the descriptor to wait on for an agent; -1 when it is here already."""
        ...

    def enter(self) -> socket.socket | None:
        """Let the agent in; None when whoever knocks is not the agent."""
        ...

    def close(self) -> None:
        """Close the door."""
        ...


class Supervisor:
    """The loop. `now` is seconds of a clock that only rises; `notify` tells systemd."""

    def __init__(
        self,
        roles: Mapping[ops.Role, Role],
        door: Door,
        log: Log,
        *,
        notify: Callable[[str], None] = lambda _: None,
        watchdog: float = 0.0,
        grace: float = GRACE,
    ) -> None:
        self._roles = roles
        self._door = door
        self._log = log
        self._notify = notify
        self._watchdog = watchdog
        self._grace = grace
        self._selector = selectors.DefaultSelector()
        self._nursery = Nursery(roles, log, self._release)
        self._agent: Channel | None = None
        self._decoder = msgspec.msgpack.Decoder(ops.Next)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._failures: dict[ops.Role, list[str]] = {role: [] for role in roles}
        self._resting: set[ops.Role] = set()
        self._waiting: list[ops.Role] = []
        self._wake_in, self._wake_out = socket.socketpair()
        self._closing = False
        self._told_ready = False
        self._status = EXIT_CLOSED

    def run(self) -> int:
        """Serve until the agent's end is closed, or a signal says so; give the exit status."""
        # What exists now is shared with every child for good: the collector never writes to it.
        # msgspec keeps what it learns of a type, so it learns all types here.
        for known in self._roles.values():
            msgspec.msgpack.Decoder(known.requests)
        gc.collect()
        gc.freeze()
        self._catch_signals()
        self._confine()
        if self._door.fileno() >= 0:
            self._watch(self._door.fileno(), self._knock)
        else:
            self._knock()
        for role in self._roles:
            self._refill(role)
        if self._watchdog:
            self._alive()
        while not (self._closing and not len(self._nursery)):
            for key, _ in self._selector.select(self._until_next_timer()):
                # An earlier event of the round may have closed it and given its number away.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()
            self._run_timers()
        self._release()
        return self._status

    def _confine(self) -> None:
        """Give up what neither we nor a helper needs: to start programs, where none is to do so."""
        kept = _KEEP.union(*(role.keep for role in self._roles.values()))
        capability.limit(kept)
        capability.keep(kept)
        allowed = seccomp.PROGRAMS if any(r.programs for r in self._roles.values()) else set()
        seccomp.install(seccomp.SUPERVISOR - allowed, forks=True)

    # ---- the agent ----------------------------------------------------------------------

    def _knock(self) -> None:
        try:
            end = self._door.enter()
        except OSError as error:  # too many open files, no memory: who knocks waits a second
            self._log(f"the agent cannot be let in: {error.strerror}")
            self._selector.unregister(self._door.fileno())
            self._later(1.0, self._open_door)
            return
        if end is None:
            return
        if self._agent is not None:
            self._log("a second agent wants in while the first is here: refused")
            end.close()
            return
        end.settimeout(0)
        self._agent = Channel(end)
        self._watch(self._agent.fileno(), self._hear)

    def _open_door(self) -> None:
        if not self._closing:
            self._watch(self._door.fileno(), self._knock)

    def _hear(self) -> None:
        assert self._agent is not None  # noqa: S101  # only watched while it is here
        try:
            packet = self._agent.receive()
            if packet is None:
                self._farewell()
                return
            packet.close()
            request = decode(self._decoder, packet.data)
            flood = len(self._waiting) >= WAITING_LIMIT
            if packet.descriptors or packet.cut or flood or request.role not in self._roles:
                why = "a descriptor, a flood, or a role that there is not"
                raise Violation(why)  # noqa: TRY301  # one place to end
        except BlockingIOError:
            return
        except OSError:  # it was reset, or there is no memory for what it says
            self._farewell()
            return
        except Violation as violation:
            self._log(f"violation by the agent, closing its connection: {violation}")
            self._status = EXIT_VIOLATION
            self._farewell()
            return
        self._waiting.append(request.role)
        self._hand_out()

    def _hand_out(self) -> None:
        """Answer those that wait, as far as there is something to say to them."""
        for role in tuple(self._waiting):
            if self._agent is None:
                return
            spares = self._nursery.of(role, "spare")
            if spares:
                self._waiting.remove(role)
                self._say(ops.Given(spares[0].pid, role), spares[0])
                self._refill(role)
            elif trouble := self._trouble(role):
                self._waiting.remove(role)
                self._say(ops.Failed("not_ready", trouble, {"role": role}))

    def _say(self, answer: ops.SupervisorAnswer, spare: Child | None = None) -> None:
        assert self._agent is not None  # noqa: S101  # the caller looked
        try:
            if spare is None or spare.end is None:
                self._agent.send(encode(answer))
                return
            self._agent.send(encode(answer), [spare.end.fileno()])
            self._replace(spare)
        except OSError as error:  # it has gone, or does not read what it asked for
            self._log(f"the agent does not take its answer: {error}")
            self._farewell()

    def _replace(self, spare: Child) -> None:
        """Note that a spare is live now. Nobody needs the one before, and it may hang."""
        for before in self._nursery.of(spare.role, "replaced"):
            before.kill()
        self._end_by(self._nursery.replace(spare.role), REPLACED_GRACE)
        self._nursery.give(spare, time.monotonic())

    def _trouble(self, role: ops.Role) -> str:
        """Say why there will be no spare of this role soon; "" when there will."""
        if trouble := self._nursery.trouble(role, time.monotonic()):
            return trouble
        failures = self._failures[role]
        if len(failures) >= GIVE_UP_AFTER:
            return (
                f"no {role}: the last {len(failures)} ended at once, the last of them with"
                f" {failures[-1]}; the log of the helpers says more"
            )
        return ""

    def _farewell(self) -> None:
        """The agent has gone: its helpers end by themselves, or are made to."""
        if self._agent is not None:
            self._selector.unregister(self._agent.fileno())
            self._agent.close()
            self._agent = None
        self._waiting.clear()
        if not self._door.lasting:
            self._close()
            return
        for role in self._roles:
            self._end_by(self._nursery.of(role, "live", "replaced"), self._grace)

    # ---- the helpers --------------------------------------------------------------------

    def _refill(self, role: ops.Role) -> None:
        if (
            self._closing
            or role in self._resting
            or self._nursery.full(role)
            or self._nursery.of(role, "starting", "spare")
        ):
            return
        if (rest := self._nursery.rest(role, time.monotonic())) > 0:
            self._log(self._nursery.trouble(role, time.monotonic()))
            self._resting.add(role)
            self._later(rest, lambda: self._rested(role))
            return
        try:
            child = self._nursery.fork(role, time.monotonic())
        except OSError as error:  # no memory, no process slots
            self._ill(role, f"fork: {error.strerror}")
            return
        self._watch(child.pidfd, lambda: self._gone(child))
        self._watch(child.ready, lambda: self._ready(child))

    def _ready(self, child: Child) -> None:
        told = os.read(child.ready, 1)
        self._selector.unregister(child.ready)
        os.close(child.ready)
        child.ready = -1
        if not told:
            return  # it died first; its pidfd tells
        child.state = "spare"
        self._hand_out()
        if not self._told_ready and all(self._nursery.of(role, "spare") for role in self._roles):
            self._told_ready = True
            self._notify("READY=1")

    def _gone(self, child: Child) -> None:
        self._selector.unregister(child.pidfd)
        if child.ready >= 0:
            self._selector.unregister(child.ready)
        how = self._nursery.reap(child)
        if how and (child.state != "killed" or "SIGKILL" not in how):
            self._log(f"{child.state} {child.role} {child.pid}: {how}")
        if child.state in ("starting", "spare") and not self._closing:
            if time.monotonic() - child.born >= SETTLED:
                self._failures[child.role].clear()
            self._ill(child.role, how or "exit status 0")
        elif child.state == "live":
            self._failures[child.role].clear()
        self._refill(child.role)
        self._hand_out()

    def _ill(self, role: ops.Role, how: str) -> None:
        """Note that a spare died; after the first time wait longer and longer."""
        failures = self._failures[role]
        failures.append(how)
        del failures[:-20]
        if len(failures) == 1:
            return
        self._resting.add(role)
        self._later(min(30.0, 0.05 * 2 ** len(failures)), lambda: self._rested(role))
        self._hand_out()

    def _rested(self, role: ops.Role) -> None:
        self._resting.discard(role)
        self._refill(role)

    # ---- the end ------------------------------------------------------------------------

    def _close(self) -> None:
        """End everything, and then `run`."""
        if self._closing:
            return
        self._closing = True
        self._notify("STOPPING=1")
        knock = self._door.fileno()
        if knock >= 0 and knock in self._selector.get_map():  # it may rest
            self._selector.unregister(knock)
        self._door.close()
        if self._agent is not None:
            self._farewell()
        everybody = list(self._nursery)
        for child in everybody:
            if child.ready >= 0:
                self._selector.unregister(child.ready)
            child.let_go()
        self._end_by(everybody, self._grace)
        self._later(2 * self._grace, self._give_up)

    def _end_by(self, children: list[Child], seconds: float) -> None:
        """Kill those that are still there after so many seconds."""

        def kill() -> None:
            for child in children:
                if child.state != "killed" and any(child is other for other in self._nursery):
                    self._log(f"{child.role} {child.pid} does not end by itself: killed")
                    child.kill()

        if children:
            self._later(seconds, kill)

    def _give_up(self) -> None:
        """End with children that cannot be ended: they hang in the kernel."""
        for child in self._nursery:
            self._log(f"{child.role} {child.pid} hangs in the kernel: left behind")
        os._exit(1)

    def _release(self) -> None:
        """Close what is ours; also called in each child, which must not keep it."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()
        self._door.close()
        if self._agent is not None:
            self._agent.close()

    # ---- waiting ------------------------------------------------------------------------

    def _watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def _catch_signals(self) -> None:
        for end in (self._wake_in, self._wake_out):
            end.settimeout(0)
        signal.set_wakeup_fd(self._wake_in.fileno(), warn_on_full_buffer=False)
        self._watch(self._wake_out.fileno(), self._signalled)
        signal.signal(signal.SIGTERM, lambda *_: None)
        # Ctrl-C goes to the agent as well, and it decides: by closing its end.
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _signalled(self) -> None:
        if signal.SIGTERM in self._wake_out.recv(64):
            self._close()
            # The live ones are the agent's, and may not hear of it. Where it ends as well (a group
            # was signalled), the binder has a moment to tidy up; what it was about otherwise is
            # asked of the next one.
            self._end_by(list(self._nursery), SIGNALLED_GRACE)

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), callback))

    def _until_next_timer(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _alive(self) -> None:
        self._notify("WATCHDOG=1")
        self._later(self._watchdog / 2, self._alive)
