"""The supervisor's children: forking them, waiting for them, ending them.

At any time a role has at most one spare, which waits for its turn, and one live helper, which
serves the agent; beside them, for a moment, those that were killed and have not gone yet.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.channel import pair, take_no_descriptors
from xce_nodeagent.privileged.role import Role, become
from xce_nodeagent.privileged.serve import EXIT_FAULT, Log

LIMIT = 4
"""Children of one role, with those that were killed and do not go: they hang in the kernel."""


GIVEN_LIMIT, GIVEN_WITHIN = 10, 10.0
"""So many helpers of a role are handed out in so many seconds, not counting those in the place of
one that was killed. An agent that asks for more is in a loop, or wants us to fork without end."""

_PF_EXITING = 0x4  # linux/sched.h


@dataclass(eq=False)
class Child:
    """A helper. `end` is the agent's end of its socket, until the agent has it."""

    role: ops.Role
    pid: int
    pidfd: int
    ready: int
    born: float
    end: socket.socket | None
    state: Literal["starting", "spare", "live", "replaced", "killed"] = "starting"

    def kill(self) -> None:
        """End it; it goes when the kernel lets it."""
        self.state = "killed"
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.let_go()

    def let_go(self) -> None:
        """Close what ties it to us, but the pidfd; a spare ends by that."""
        if self.end is not None:
            self.end.close()
            self.end = None
        if self.ready >= 0:
            os.close(self.ready)
            self.ready = -1


class Nursery:
    """The children, by pid. `release` is called in each child first: it closes what is ours."""

    def __init__(
        self, roles: Mapping[ops.Role, Role], log: Log, release: Callable[[], None]
    ) -> None:
        self._roles = roles
        self._log = log
        self._release = release
        self._children: dict[int, Child] = {}
        self._given: dict[ops.Role, deque[float]] = {
            role: deque(maxlen=GIVEN_LIMIT) for role in roles
        }

    def __iter__(self) -> Iterator[Child]:
        return iter(tuple(self._children.values()))

    def __len__(self) -> int:
        return len(self._children)

    def of(self, role: ops.Role, *states: str) -> list[Child]:
        """Give the children of a role that are in one of these states, oldest first."""
        return [c for c in self._children.values() if c.role == role and c.state in states]

    def full(self, role: ops.Role) -> bool:
        """Say whether this role may not get another child now."""
        return sum(child.role == role for child in self._children.values()) >= LIMIT

    def give(self, child: Child, now: float) -> None:
        """Note that the agent has it."""
        child.state = "live"
        child.let_go()
        self._given[child.role].append(now)

    def replace(self, role: ops.Role) -> list[Child]:
        """Note that another one takes the place of those that are live; give them.

        One that is ending already was not replaced: it is why the other was asked for.
        """
        found = [child for child in self.of(role, "live") if not _is_ending(child.pid)]
        for child in found:
            child.state = "replaced"
        return found

    def rest(self, role: ops.Role, now: float) -> float:
        """Give the seconds for which no more of this role are made: too many were handed out."""
        given = self._given[role]
        return max(0.0, given[0] + GIVEN_WITHIN - now) if len(given) == GIVEN_LIMIT else 0.0

    def trouble(self, role: ops.Role, now: float) -> str:
        """Say why no more of this role are made now; "" when they are."""
        if self.full(role):
            pids = ", ".join(str(child.pid) for child in self.of(role, "killed"))
            return (
                f"no {role}: those before do not end when they are killed (pid {pids});"
                " they hang in the kernel: reboot this node"
            )
        if (rest := self.rest(role, now)) > 0:
            return (
                f"no {role} for {rest:.0f} s: {GIVEN_LIMIT} were asked for within"
                f" {GIVEN_WITHIN:g} s; the agent's log says why it lost them"
            )
        return ""

    def fork(self, role: ops.Role, now: float) -> Child:
        """Make a helper. It becomes a spare when its `ready` says so."""
        with ExitStack() as unless_made, ExitStack() as always:
            ours, theirs = pair()
            unless_made.callback(ours.close)
            always.callback(theirs.close)
            take_no_descriptors(ours)
            if not self._roles[role].descriptors:
                take_no_descriptors(theirs)
            ready, told = os.pipe2(os.O_CLOEXEC)
            unless_made.callback(os.close, ready)
            always.callback(os.close, told)
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                ours.close()
                os.close(ready)
                self._child(role, theirs, told, parent)
            # It may have ended, but its number is its own until it is reaped.
            unless_made.callback(os.waitpid, pid, 0)
            unless_made.callback(os.kill, pid, signal.SIGKILL)
            child = Child(role, pid, os.pidfd_open(pid), ready, now, ours)
            unless_made.pop_all()
        self._children[pid] = child
        return child

    def reap(self, child: Child) -> str:
        """Take a child that has ended off the list; say how it ended, "" when it was in peace."""
        _, status = os.waitpid(child.pid, 0)
        del self._children[child.pid]
        child.let_go()
        os.close(child.pidfd)
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            # The agent cannot send signals: it needs another. But it can have a binder ended by
            # the next one, so one that was replaced first counts.
            if child.state == "live" and self._given[child.role]:
                self._given[child.role].pop()
            return f"killed by signal {-code} ({signal.Signals(-code).name})"
        return f"exit status {code}" if code else ""

    def _child(self, role: ops.Role, theirs: socket.socket, told: int, parent: int) -> None:
        status = EXIT_FAULT
        try:
            for other in self:
                other.let_go()
                os.close(other.pidfd)
            self._release()
            _close_all_but(theirs.fileno(), told)
            status = become(self._roles[role], theirs, told, parent)
        except BaseException:  # noqa: BLE001  # nothing may return into the supervisor's loop
            for line in traceback.format_exc().splitlines():
                self._log(line)
        finally:
            os._exit(status)


def _is_ending(pid: int) -> bool:
    """Say whether a child is on its way out: its socket is closed before its pidfd tells."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return bool(int(fields[9 - 3]) & _PF_EXITING)  # the ninth field (proc_pid_stat(5))


def _close_all_but(*kept: int) -> None:
    """Close every descriptor but these and the standard ones: whatever else was inherited."""
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
