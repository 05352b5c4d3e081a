"""Join: a process moves into its job's cgroup, and who may have that done."""

from __future__ import annotations

import os

from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.errors import BadCgroup, NotPermitted
from xce_nodeagent.model.binding import Binding


async def join(
    executor: Executor, binding: Binding, pid: int, *, peer_uid: int, may_prepare: bool
) -> None:
    """Move a process, with all its threads, into a binding's cgroup.

    Who may prepare may move any process; the job's user may move processes of its own. The kernel
    waits for RCU in such a move (8 ms and more, measured), so a worker on cgroup v2 had better
    start the job inside, with clone3 and CLONE_INTO_CGROUP.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        raise BadCgroup(f"process {pid}: {error.strerror}", pid=pid) from None
    try:
        if not (may_prepare or _is_own(pid, peer_uid, binding.uid)):
            raise NotPermitted(
                f"uid {peer_uid} may not put process {pid} into job {binding.job!r}: only the"
                " job's user, with processes of its own, and who may prepare"
            )
        await executor.join(binding, pid, pidfd)
    finally:
        os.close(pidfd)


def _is_own(pid: int, peer_uid: int, job_uid: int | None) -> bool:
    # The owner of /proc/PID is the process's effective user (proc(5)). The pidfd was opened
    # before: if that process has ended meanwhile and its number is another's, the binder sees it.
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return False
    return job_uid is not None and peer_uid == job_uid == owner
