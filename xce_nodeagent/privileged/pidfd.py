"""Moving a process into a cgroup, by its pidfd: the descriptor proves which process is meant."""

from __future__ import annotations

import errno
import os
import select
from pathlib import Path

from xce_nodeagent.errors import BadCgroup, BadRequest
from xce_nodeagent.privileged.cgroup import Cgroup
from xce_nodeagent.privileged.channel import Violation


def check(pidfd: int, pid: int, proc: Path) -> None:
    """See that the descriptor is the process's; raise Violation if not, BadRequest if it ended."""
    found = _pid(pidfd, proc)
    if found == -1:
        raise _ended(pid)
    if found != pid or pid in (1, os.getpid()):
        raise Violation(f"a Join of process {pid} with the descriptor of process {found}")


def _pid(pidfd: int, proc: Path) -> int:
    """Read whose it is (proc(5), /proc/PID/fdinfo): -1 when the process is gone."""
    text = (proc / "self/fdinfo" / str(pidfd)).read_text("utf-8")
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "Pid":
            return int(value)
    raise Violation("a Join with a descriptor that is no pidfd")


def enter(cgroup: Cgroup, pidfd: int, pid: int) -> None:
    """Move the process, with all its threads, into the cgroup."""
    try:
        cgroup.add(pid)
        # The kernel takes a number, and a number can pass to another process between the check
        # and the write. Had it passed, the one behind the pidfd would be gone now.
        if _has_ended(pidfd):
            raise _ended(pid)
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


def _ended(pid: int) -> BadRequest:
    return BadRequest(f"process {pid} has ended", pid=pid)
