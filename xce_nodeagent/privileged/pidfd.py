"""Moving a process into a cgroup, by its pidfd: the descriptor proves which process is meant.

The kernel takes a number alone, and a number can pass to another process. What is left of that:

    we        the descriptor's process has this number, and lives      (`check`, and `enter` again)
    others    it ends, and its parent waits for it: the number is free
    others    so many forks that the kernel comes round to it again, or nearly every other number
              is taken: a process Q gets it
    the kernel  looks the number up, in the middle of our write(2): Q is moved
    we        the descriptor's process has ended: the Join is refused, and Q is named if it is there

Q is not moved back. By then nobody can tell it from a process that the one behind the descriptor
left in the job, and to take that out of its cgroup would open the fence; Q only lost something.
"""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path

from xce_nodeagent.errors import BadCgroup, BadRequest, exhausted
from xce_nodeagent.host.cgroup import hierarchies
from xce_nodeagent.privileged.cgroup import Cgroup
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.ops import Join
from xce_nodeagent.privileged.roots import Roots, cgroups_of

_PF_KTHREAD = 0x0020_0000  # linux/sched.h


def check(pidfd: int, pid: int, proc: Path, *, agent: int = 0) -> None:
    """See that the descriptor is the process's, and that it is one that may be moved.

    Raise Violation where the descriptor is not the process's, and BadRequest when it has ended, or
    is one that a job must never have: init, a kernel thread, the agent (its pid; 0 where nobody
    told it), this binder, its supervisor and their other helpers.
    """
    found = _pid(pidfd, proc)
    if found == -1:
        raise _ended(pid)
    # 0 is a process of a pid namespace that we cannot see; written to cgroup.procs, it is us.
    if found != pid or pid < 1:
        raise Violation(f"a Join of process {pid} with the descriptor of process {found}")
    if what := kept_back(pid, proc, agent):
        raise BadRequest(
            f"process {pid} is {what}, which no job may have: name a process of the job", pid=pid
        )


def check_free(request: Join, roots: Roots, proc: Path) -> None:
    """Raise BadRequest for a process in another binding's cgroup: it may hold what that one has."""
    try:
        text = (proc / str(request.pid) / "cgroup").read_text("utf-8", "replace")
    except OSError as error:
        if exhausted(error):
            raise
        return  # it is ending; or /proc is mounted with hidepid=
    for ref in cgroups_of(text, hierarchies((proc / "self/mountinfo").read_text("utf-8"))):
        if ref.backend != request.cgroup.backend:
            continue
        found = roots.bearer(ref)
        if found is not None and found[1] != request.mark:
            raise BadRequest(
                f"process {request.pid} is in cgroup {found[0]}, which is bound to another job:"
                " name a process that has no job yet",
                pid=request.pid,
            )


def kept_back(pid: int, proc: Path, agent: int) -> str:
    """Say what a process is that is never moved; "" when it is any other."""
    supervisor = os.getppid()
    named = {1: "init", agent: "the agent", supervisor: "the helpers' supervisor"}
    if (what := named.get(pid)) is not None:
        return what
    if pid == os.getpid():
        return "the binder itself"
    try:
        text = (proc / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError as error:
        if exhausted(error):
            raise
        # It is ending, which `enter` sees; or /proc is mounted with hidepid=, and then a job's
        # process must not be refused because it cannot be looked at.
        return ""
    # State, parent, ..., flags are the third, fourth and ninth field (proc_pid_stat(5)); the second
    # may hold spaces and brackets, so the count starts after its last one.
    fields = text.rpartition(")")[2].split()
    if int(fields[9 - 3]) & _PF_KTHREAD:
        return "a thread of the kernel"
    return "a helper of the agent" if int(fields[4 - 3]) == supervisor else ""


def _pid(pidfd: int, proc: Path) -> int:
    """Read whose it is (proc(5), /proc/PID/fdinfo): -1 when the process is gone.

    One of a thread (pidfd_open(2), PIDFD_THREAD) is a Violation: for a thread's number the kernel
    moves the whole process, whose own number nobody has checked then.
    """
    text = (proc / "self/fdinfo" / str(pidfd)).read_text("utf-8")
    found = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    if "Pid" not in found:
        raise Violation("a Join with a descriptor that is no pidfd")
    if int(found["flags"], 8) & os.O_EXCL:  # what PIDFD_THREAD is, and fdinfo writes octal
        raise Violation("a Join with the descriptor of a thread")
    return int(found["Pid"])


def enter(cgroup: Cgroup, pidfd: int, pid: int) -> None:
    """Move the process, with all its threads, into the cgroup.

    The descriptor is asked right before and right after: nothing but the write is in between.
    """
    try:
        if _has_ended(pidfd):
            raise _ended(pid)
        cgroup.add(pid)
        if _has_ended(pidfd):
            raise _ended(pid, cgroup.ref.path if pid in cgroup.pids() else "")
    except ProcessLookupError:
        raise _ended(pid) from None
    except OSError as error:
        why = {
            errno.EBUSY: "its sub-cgroups have controllers, so processes can be in these only",
            errno.EOPNOTSUPP: "it is threaded, and takes no processes",
        }.get(error.errno or 0, error.strerror)
        raise BadCgroup(
            f"process {pid} cannot enter cgroup {cgroup.ref.path}: {why}", cgroup=cgroup.ref.path
        ) from error


def _has_ended(pidfd: int) -> bool:
    """Say whether the process behind it has ended: then it is readable (pidfd_open(2)).

    A signal 0 would ask the same, and would need CAP_KILL for another user's process.
    """
    look = select.poll()
    look.register(pidfd, select.POLLIN)
    return bool(look.poll(0))


def _ended(pid: int, inside: str = "") -> BadRequest:
    """`inside` is the cgroup in which there is a process of that number all the same."""
    if not inside:
        return BadRequest(f"process {pid} has ended", pid=pid)
    return BadRequest(
        f"process {pid} has ended, and in cgroup {inside} is one with its number: it is of the job,"
        " or another that was moved by mistake, which stays there; see whose it is",
        pid=pid,
        cgroup=inside,
    )
