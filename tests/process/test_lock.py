"""No stale hand on the fence: who takes the binder's lock has outlived the one before."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from xce_nodeagent.errors import Enforcement
from xce_nodeagent.privileged import lock

HOLDER = (
    "import os, sys, time\n"
    "from xce_nodeagent.privileged import lock\n"
    "held = lock.take(sys.argv[1], 5)\n"
    "os.write(1, b'held\\n')\n"
    "time.sleep(600)\n"
)


@contextmanager
def holder(path):
    """A process that holds the lock and does nothing."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "binder.lock")


def test_a_free_lock_is_taken_at_once_and_names_its_holder(path):
    with lock.take(path, 1):
        pass
    with open(path, encoding="ascii") as file:
        assert int(file.read()) == os.getpid()
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_stopped_holder_is_dead_before_its_successor_has_the_lock(path):
    with holder(path) as before:
        before.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, before.pid, os.WSTOPPED)
        with lock.take(path, 10):
            # Without waiting: it is a zombie already, or the lock was taken too early.
            ended = os.waitid(os.P_PID, before.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            assert ended is not None
            assert (ended.si_pid, ended.si_status) == (before.pid, signal.SIGKILL)


def test_the_kernel_says_who_holds_it_whatever_the_file_says(path):
    """The pid in the file is for people: one that was left there is never killed."""
    with (
        subprocess.Popen(["sleep", "600"]) as bystander,
        holder(path) as before,
    ):
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write(f"{bystander.pid}\n")
            with lock.take(path, 10):
                assert before.wait(5) == -signal.SIGKILL
                assert bystander.poll() is None
        finally:
            bystander.kill()


def test_a_lock_that_was_given_back_is_taken_without_killing_anybody(path):
    with holder(path) as one:
        one.kill()
        one.wait()
        taken = lock.take(path, 1)
        taken.close()
        taken.close()
        with lock.take(path, 1):
            pass


def test_of_many_successors_one_is_left_and_has_the_lock(path):
    processes = [
        subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE)
        for _ in range(5)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() in (b"held\n", b"")
        alive = [process.pid for process in processes if process.poll() is None]
        assert len(alive) == 1
        other = os.open(path, os.O_RDWR)
        assert lock.holder(other) == alive[0]
        os.close(other)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def test_it_does_not_write_through_a_link_or_to_a_strangers_file(path, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    victim.chmod(0o600)
    os.symlink(victim, path)
    with pytest.raises(Enforcement, match="cannot be opened"):
        lock.take(path, 1)
    os.unlink(path)
    os.link(victim, path)
    with pytest.raises(Enforcement, match="one name"):
        lock.take(path, 1)
    os.unlink(path)
    os.mkfifo(path, 0o600)
    with pytest.raises(Enforcement, match="plain file"):
        lock.take(path, 1)
    os.unlink(path)
    with open(path, "w", encoding="ascii"):
        os.chmod(path, 0o620)
    with pytest.raises(Enforcement, match="mode 0600"):
        lock.take(path, 1)
    assert victim.read_text() == "precious"


@pytest.mark.needs("root")
def test_it_does_not_take_a_file_of_another_user(path):
    with open(path, "w", encoding="ascii"):
        os.chmod(path, 0o600)
        os.chown(path, 65534, 65534)
    with pytest.raises(Enforcement, match="of uid 0"):
        lock.take(path, 1)


def test_no_descriptor_is_left_behind(path):
    before = os.listdir("/proc/self/fd")
    for _ in range(20):
        lock.take(path, 1).close()
    with holder(path), lock.take(path, 10):
        pass
    os.chmod(path, 0o644)
    with pytest.raises(Enforcement):
        lock.take(path, 1)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_child_does_not_inherit_it(path):
    """A child that is left behind must not keep the next binder from the lock."""
    with lock.take(path, 1) as held:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        os.close(reader)
        try:
            held.close()
            other = os.open(path, os.O_RDWR)
            assert lock.holder(other) == 0
            os.close(other)
        finally:
            os.close(writer)
            os.waitpid(pid, 0)
