"""Join: whose process moves into a bound cgroup, and whose never does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from xce_nodeagent.errors import BadRequest
from xce_nodeagent.model.rule import READ_WRITE
from xce_nodeagent.privileged import pidfd as pidfd_module
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.ops import Done, Failed, Join, Manage, Take


def join(world, pid, pidfds, *, mark="mark", cgroup=None):
    return world.binder.handle(Join(mark, cgroup or world.job(), pid), pidfds)


def inside(cgroup):
    return Path(cgroup.path, "cgroup.procs").read_text("ascii").split()


@pytest.fixture
def pidfd(prisoner):
    fd = os.pidfd_open(prisoner.pid)
    yield fd
    os.close(fd)


def test_join_moves_the_process_behind_the_pidfd(world, nodes, prisoner, pidfd):
    device = min(nodes)
    world.start(*nodes)
    world.bind(world.job())
    assert join(world, prisoner.pid, [pidfd]) == Done()
    assert inside(world.job()) == [str(prisoner.pid)]
    assert not prisoner.may(nodes[device], device, READ_WRITE)
    prisoner.join(str(world.base))


def test_join_without_the_right_pidfd_is_a_violation(world, nodes, prisoner, pidfd, tmp_path):
    world.start(*nodes)
    world.bind(world.job())
    plain = os.open(tmp_path, os.O_RDONLY)
    try:
        for pid, fds in (
            (prisoner.pid, []),
            (prisoner.pid, [pidfd, pidfd]),
            (prisoner.pid, [plain]),
            (prisoner.pid + 1, [pidfd]),
            (1, [pidfd]),
            (0, [pidfd]),
        ):
            with pytest.raises(Violation, match="Join"):
                join(world, pid, fds)
    finally:
        os.close(plain)
    assert inside(world.job()) == []


def test_join_to_a_cgroup_of_another_mark_is_refused(world, nodes, prisoner, pidfd):
    world.start(*nodes)
    world.bind(world.job(), mark="one")
    request = Join("two", world.job(), prisoner.pid)
    assert world.refusal(request, (pidfd,)) == "conflict"
    named = world.named("unbound")
    assert world.refusal(Join("two", named, prisoner.pid), (pidfd,)) == "conflict"
    gone = world.job("job-2")
    assert world.refusal(Join("two", gone, prisoner.pid), (pidfd,)) == "bad_cgroup"
    assert inside(world.job()) == inside(named) == []


def test_join_of_a_process_that_ended_is_refused(world, nodes):
    world.start(*nodes)
    world.bind(world.job())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        fd = os.pidfd_open(child.pid)
        child.send_signal(signal.SIGKILL)
    try:
        assert world.refusal(Join("mark", world.job(), child.pid), (fd,)) == "bad_request"
    finally:
        os.close(fd)


KTHREADD = 2


def is_kernel_thread(pid):
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return bool(int(fields[6]) & 0x200000)


@pytest.mark.parametrize(
    ("whose", "says"),
    [
        (lambda: 1, "is init"),
        (lambda: KTHREADD, "is a thread of the kernel"),
        (os.getpid, "is the binder itself"),
        (os.getppid, "is the helpers' supervisor"),
    ],
)
def test_join_of_what_no_job_may_have_is_refused(world, nodes, whose, says):
    pid = whose()
    if pid == KTHREADD and not (os.path.exists("/proc/2") and is_kernel_thread(2)):
        pytest.skip("needs a pid namespace in which the kernel's threads are seen")
    world.start(*nodes)
    world.bind(world.job())
    before = Path(f"/proc/{pid}/cgroup").read_text("ascii")
    fd = os.pidfd_open(pid)
    try:
        answer = join(world, pid, [fd])
    finally:
        os.close(fd)
    assert isinstance(answer, Failed)
    assert (answer.code, answer.details) == ("bad_request", {"pid": pid})
    assert says in answer.message
    assert inside(world.job()) == []
    assert Path(f"/proc/{pid}/cgroup").read_text("ascii") == before


def test_join_of_the_agent_is_refused_once_it_has_said_who_it_is(world, nodes, prisoner, pidfd):
    world.binder.handle(Take(agent=prisoner.pid))
    world.pretend(*nodes)
    world.ask(Manage(tuple(nodes)))
    world.bind(world.job())
    answer = join(world, prisoner.pid, [pidfd])
    assert isinstance(answer, Failed)
    assert (answer.code, "is the agent" in answer.message) == ("bad_request", True)
    assert inside(world.job()) == []


# The supervisor's place is taken by the test: both are its children.
SIBLING = """
import os, sys
from pathlib import Path
from xce_nodeagent.errors import BadRequest
from xce_nodeagent.privileged import pidfd
pid, parent = int(sys.argv[1]), int(sys.argv[2])
assert os.getppid() == parent
fd = os.pidfd_open(pid)
try:
    pidfd.check(fd, pid, Path("/proc"))
except BadRequest as error:
    print(error.message)
"""


def test_join_of_another_helper_is_refused(prisoner):
    done = subprocess.run(
        [sys.executable, "-c", SIBLING, str(prisoner.pid), str(os.getpid())],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert done.stdout == (
        f"process {prisoner.pid} is a helper of the agent, which no job may have:"
        " name a process of the job\n"
    )


def ended():
    """Give a descriptor of a process that was waited for: its number is free."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    fd = os.pidfd_open(child.pid)
    child.wait(30)
    return fd


def test_who_has_the_number_of_one_that_ended_is_not_moved(world, nodes, prisoner):
    world.start(*nodes)
    world.bind(world.job())
    fd = ended()
    try:
        with (
            world.binder._roots.open(world.job()) as cgroup,
            pytest.raises(BadRequest, match="has ended"),
        ):
            pidfd_module.enter(cgroup, fd, prisoner.pid)
    finally:
        os.close(fd)
    assert inside(world.job()) == []


def test_who_got_the_number_while_it_was_written_is_named_and_stays(
    world, nodes, prisoner, monkeypatch
):
    world.start(*nodes)
    world.bind(world.job())
    fd = ended()
    answers = iter([False, True])
    monkeypatch.setattr(pidfd_module, "_has_ended", lambda _: next(answers))
    try:
        with (
            world.binder._roots.open(world.job()) as cgroup,
            pytest.raises(BadRequest, match="one with its number"),
        ):
            pidfd_module.enter(cgroup, fd, prisoner.pid)
    finally:
        os.close(fd)
    assert inside(world.job()) == [str(prisoner.pid)]
    prisoner.join(str(world.base))
