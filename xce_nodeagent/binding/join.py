"""Join: a process moves into its job's cgroup, and who may have that done."""

from __future__ import annotations

import os

from xce_nodeagent.binding.executor import Executor
from xce_nodeagent.errors import BadCgroup, BadRequest, NotPermitted, exhausted
from xce_nodeagent.model.binding import Binding


async def join(
    executor: Executor, binding: Binding, pid: int, *, peer_uid: int, may_prepare: bool
) -> None:
    """Move a process, with all its threads, into a binding's cgroup.

    Root may move any process. Who else may prepare, and the job's user, may move processes of the
    job's user and no others: whoever owns a cgroup can kill and starve what is in it.

    The kernel waits for RCU in such a move (8 ms and more, measured), so a worker on cgroup v2
    had better start the job inside, with clone3 and CLONE_INTO_CGROUP.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if exhausted(error):
            raise
        raise BadCgroup(f"process {pid}: {error.strerror}", pid=pid) from None
    try:
        if not _may(pid, binding.uid, peer_uid=peer_uid, may_prepare=may_prepare):
            raise NotPermitted(
                f"uid {peer_uid} may not put process {pid} into job {binding.job!r}: only root may,"
                " and for processes of the job's user that user and who may prepare"
            )
        if pid in (1, os.getpid()):
            raise BadRequest(f"process {pid} is no job's: name a process of the job", pid=pid)
        await executor.join(binding, pid, pidfd)
    finally:
        os.close(pidfd)


def _may(pid: int, job_uid: int | None, *, peer_uid: int, may_prepare: bool) -> bool:
    if peer_uid == 0:
        return True
    # The owner of /proc/PID is the process's effective user (proc(5)). The pidfd was opened
    # before: if that process has ended meanwhile and its number is another's, the binder sees it.
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return False
    if job_uid is None:
        return may_prepare and owner == peer_uid
    return owner == job_uid and (may_prepare or peer_uid == job_uid)
