"""Between the look into a cgroup and the signal, processes move and numbers pass to others."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.privileged import kill
from xce_nodeagent.privileged.cgroup import Cgroup

pytestmark = pytest.mark.needs("root", "cgroup1", "cgroup2")

SLEEPER = "import signal\nwhile True: signal.pause()"


def sleeper(cgroup=None):
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", SLEEPER])
    if cgroup is not None:
        (cgroup / "cgroup.procs").write_text(str(child.pid), "ascii")
    return child


@pytest.fixture
def ground(mount, backend):
    """A cgroup, opened as the binder has it, and one beside it; what is in them is killed."""
    top = mount / f"xce-test-kill-{os.getpid()}"
    inside, beside = top / "inside", top / "beside"
    for path in (top, inside, beside):
        path.mkdir()
    parent = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    fd = os.open(inside, os.O_RDONLY | os.O_DIRECTORY)
    with Cgroup(CgroupRef(backend, str(inside)), fd, parent, "inside") as cgroup:
        yield cgroup, inside, beside
    os.close(parent)
    until = time.monotonic() + 20
    for path in (inside, beside, top):
        for pid in (path / "cgroup.procs").read_text("ascii").split():
            os.kill(int(pid), signal.SIGKILL)
        while path.exists() and time.monotonic() < until:
            with contextlib.suppress(OSError):
                path.rmdir()


class Between(kill.Around):
    """Does something when a process was listed, and before it is looked at again."""

    def __init__(self, cgroup, happens):
        super().__init__(cgroup, Path("/proc"), 0)
        self.happens = happens

    def _pids(self):
        for pid in list(super()._pids()):
            self.happens(pid)
            yield pid


def test_who_is_moved_out_after_the_look_lives_on(ground):
    cgroup, inside, beside = ground
    moves, stays = sleeper(inside), sleeper(inside)

    def happens(pid):
        if pid == moves.pid:
            (beside / "cgroup.procs").write_text(str(pid), "ascii")

    signalled = set()
    assert Between(cgroup, happens).signal(signal.SIGKILL, signalled) == 1
    assert signalled == {stays.pid}
    assert stays.wait(20) == -signal.SIGKILL
    assert moves.poll() is None
    moves.kill()
    moves.wait()


def born_as(pid):
    """Make a process of this number, which must be free (clone3(2), set_tid); give whether."""
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = (ctypes.c_int * 1)(pid)
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls,
    # set_tid, set_tid_size, cgroup
    arguments = (ctypes.c_uint64 * 11)(
        *(0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0), ctypes.addressof(wanted), 1, 0
    )
    made = libc.syscall(435, arguments, 88)
    if made == 0:
        while True:
            libc.pause()
    return made == pid


def test_whoever_gets_the_number_of_one_that_ended_lives_on(ground):
    cgroup, inside, _ = ground
    ends = sleeper(inside)

    def happens(pid):
        assert pid == ends.pid
        ends.kill()
        ends.wait()
        assert born_as(pid)

    signalled = set()
    try:
        assert Between(cgroup, happens).signal(signal.SIGKILL, signalled) == 0
        assert not signalled
        state = Path(f"/proc/{ends.pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
        assert state in "SR"
    finally:
        os.kill(ends.pid, signal.SIGKILL)
        os.waitpid(ends.pid, 0)


def test_the_agent_is_spared_in_whatever_cgroup_it_is(ground):
    """Root can move it in; then nothing is killed at once, and it is left out and told of."""
    cgroup, inside, _ = ground
    agent, job = sleeper(inside), sleeper(inside)
    killed = kill.end(cgroup, "kill", Path("/proc"), agent=agent.pid)
    assert (killed.signalled, killed.left, killed.spared) == (1, True, (agent.pid,))
    assert job.wait(20) == -signal.SIGKILL
    assert agent.poll() is None
    agent.kill()
    agent.wait()
