"""Ends processes in one cgroup, and in no other. No other code of ours signals a job's process.

SIGKILL of a cgroup of v2 goes through `cgroup.kill`, where the kernel has it: the kernel kills all
that is in it and below it, also what forks meanwhile. Everything else goes pid by pid:

    time  we                                    the process             its number
    0     read cgroup.procs: 4711               in the cgroup           4711 is it
    1                                           may leave, may end      4711 may be another's now
    2     pidfd = pidfd_open(4711)                                      the pidfd is whoever has it
    3     read /proc/4711/cgroup: not ours?
          it is let go
    4     pidfd_send_signal(pidfd)              it, or ESRCH            another is never hit

If the pidfd is of the process that was listed, the text of time 3 is its own, as long as it lives;
and when it does not live any more, the signal meets nobody. If the pidfd is of another, which got
the number, the text is of that one, and it is in our cgroup or is let go. What is left is a process
that root moves out between 3 and 4, which is some microseconds.

Who is in the cgroup is never told by a user's id.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from xce_nodeagent.errors import NotPermitted, exhausted
from xce_nodeagent.host.cgroup import Mount, hierarchies
from xce_nodeagent.privileged import pidfd
from xce_nodeagent.privileged.cgroup import WALK_LIMIT, Cgroup
from xce_nodeagent.privileged.label import check_mark
from xce_nodeagent.privileged.ops import Kill, Killed
from xce_nodeagent.privileged.roots import Roots, cgroups_of

SECONDS = 0.25
"""For one request, pid by pid. Others wait for the binder meanwhile; the agent asks again."""

ROUND_LIMIT = 16_384
"""Processes that are signalled in one round."""


def answer(request: Kill, roots: Roots, proc: Path, *, agent: int, allowed: bool) -> Killed:
    """Carry a request out, if a cgroup below our roots bears its mark, and was released.

    `agent` is a pid. Raise NotPermitted unless the binder's own configuration has it `allowed`.
    """
    check_mark(request.mark)
    if not allowed:
        raise NotPermitted(
            "the binder's configuration lets no process be ended: set [release] kill, and restart"
            " the helpers, which read it by themselves",
            key="release.kill",
        )
    try:
        cgroup: Cgroup | None = roots.open(request.cgroup)
    except FileNotFoundError:
        cgroup = roots.find(request.cgroup, request.mark)
    if cgroup is None:
        return Killed(0, left=False)
    with cgroup:
        label = cgroup.label()
        if label is None or label.mark != request.mark or not label.released:
            # It is another's by now, or nobody's, or the next run's of the same job.
            return Killed(0, left=False)
        return end(cgroup, request.signal, proc, agent=agent)


def end(cgroup: Cgroup, what: str, proc: Path, *, agent: int) -> Killed:
    """Signal everybody in a cgroup and below it, `term` once or `kill` until nobody is left.

    `agent` is the agent's pid. A zombie is nobody; who waits in the kernel dies when it returns.
    """
    number = signal.SIGKILL if what == "kill" else signal.SIGTERM
    around = Around(cgroup, proc, agent)
    if number == signal.SIGKILL and not around.spared_inside() and _all_at_once(cgroup):
        return Killed(-1, left=cgroup.populated())
    until = time.monotonic() + SECONDS
    signalled: set[int] = set()
    while True:
        fresh = around.signal(number, signalled)
        # A fork bomb: whoever is signalled can fork no more, so each round leaves fewer that can.
        if number == signal.SIGTERM or not fresh or time.monotonic() >= until:
            break
    return Killed(len(signalled), left=cgroup.occupants()[0] is not False, spared=around.spared)


def _all_at_once(cgroup: Cgroup) -> bool:
    """Let the kernel do it (cgroup.kill, Linux 5.14); False where it cannot."""
    if cgroup.ref.backend != "cgroup2":
        return False
    try:
        fd = os.open("cgroup.kill", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup.fd)
        try:
            os.write(fd, b"1")
        finally:
            os.close(fd)
    except OSError as error:
        # A kernel without it; a threaded cgroup; or the cgroup has just been removed.
        if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
            return False
        raise
    return True


class Around:
    """One cgroup with all below it, and who is spared there."""

    def __init__(self, cgroup: Cgroup, proc: Path, agent: int) -> None:
        self._cgroup = cgroup
        self._proc = proc
        self._agent = agent
        self._mounted: tuple[Mount, ...] = hierarchies((proc / "self/mountinfo").read_text("utf-8"))
        self._inside = f"{cgroup.ref.path}/"
        self._spared: set[int] = set()

    @property
    def spared(self) -> tuple[int, ...]:
        """Give who was found in it and not signalled."""
        return tuple(sorted(self._spared))

    def spared_inside(self) -> bool:
        """Say whether one is in it that must never be killed: then nothing is done at once."""
        supervisor = os.getppid()
        helpers = _children(supervisor, self._proc)
        kept = {1, self._agent, supervisor, os.getpid(), *helpers} - {0}
        return any(self._is_in(pid) for pid in kept)

    def signal(self, number: int, signalled: set[int]) -> int:
        """Signal everybody once; give how many were met for the first time."""
        fresh = 0
        for pid in itertools.islice(self._pids(), ROUND_LIMIT):
            if pid in self._spared or pid < 1:
                continue
            try:
                descriptor = os.pidfd_open(pid)
            except OSError as error:
                if exhausted(error):
                    raise
                continue  # it has ended, or is a thread
            try:
                if not self._is_in(pid):
                    continue
                if pidfd.kept_back(pid, self._proc, self._agent):
                    self._spared.add(pid)
                    continue
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, number)
                    if pid not in signalled:
                        signalled.add(pid)
                        fresh += 1
            finally:
                os.close(descriptor)
        return fresh

    def _pids(self) -> Iterator[int]:
        yield from _procs(self._cgroup)
        for below in self._cgroup.descendants(WALK_LIMIT):
            yield from _procs(below)

    def _is_in(self, pid: int) -> bool:
        try:
            text = (self._proc / str(pid) / "cgroup").read_text("utf-8", "replace")
        except OSError as error:
            if exhausted(error):
                raise
            return False  # it has ended
        return any(
            ref.backend == self._cgroup.ref.backend and (ref.path + "/").startswith(self._inside)
            for ref in cgroups_of(text, self._mounted)
        )


def _procs(cgroup: Cgroup) -> list[int]:
    try:
        return [int(line) for line in cgroup.read("cgroup.procs").split()]
    except OSError as error:
        # Threaded, or just removed; see Cgroup._procs.
        if error.errno in (errno.EOPNOTSUPP, errno.ENODEV, errno.ENOENT):
            return []
        raise


def _children(pid: int, proc: Path) -> list[int]:
    try:
        text = (proc / str(pid) / "task" / str(pid) / "children").read_text("ascii")
    except OSError as error:
        if exhausted(error):
            raise
        return []  # a kernel without CONFIG_PROC_CHILDREN: each is looked at by itself
    return [int(child) for child in text.split()]
