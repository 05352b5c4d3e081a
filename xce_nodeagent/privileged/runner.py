"""The runner: starts the one program that the configuration names, and gives what it printed.

It is another user by then, and takes no command: the request has no argument. What the program does
is its own affair, so it has a time, a limit on what it prints, and no descriptor of ours; when it
has ended, or its time has, whatever it started is killed. Nothing that it prints is looked into
here.

It may start so many processes and no more, so that one that only multiplies comes to an end. The
kernel counts them by user (setrlimit(2), RLIMIT_NPROC), and none of root's: what that user has
already is added. All are stopped before the first is killed, because what is stopped starts
nothing, and keeps its place in the count.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Sequence

from xce_nodeagent.host import trust
from xce_nodeagent.model.declared import SIZE_LIMIT
from xce_nodeagent.model.name import printable
from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.credential import die_with_parent
from xce_nodeagent.privileged.syscall import prctl

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
"""All that the program has of an environment."""

KILL_SECONDS = 2.0
"""How long all are stopped, and then waited for; what hangs in the kernel is left to it."""

PROCESSES = 256
"""Processes and threads that the program may have at once."""

_ERRORS_LIMIT = 4096  # bytes of stderr, of which the first line is told
_SHOWN = 200
_PR_SET_CHILD_SUBREAPER = 36


class Runner:
    """Answers `Report`. `owners` may own the program: whoever can write it is what it runs as."""

    def __init__(self, program: Sequence[str], *, patience: float, owners: Collection[int]) -> None:
        self._program = tuple(program)
        self._patience = patience
        self._owners = frozenset(owners)

    def handle(self, request: ops.Report, fds: Sequence[int]) -> ops.RunnerAnswer:  # noqa: ARG002  # it says nothing but that
        """Run the program once, to its end."""
        if fds:
            raise Violation("Report came with a descriptor")
        if why := self._untrusted():
            return ops.Reported("error", why)
        # What the program leaves behind becomes a child of ours, and can be ended.
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            why, output = self._run()
        finally:
            _end_all()
        if why:
            return ops.Reported("error", f"{self._program[0]}: {why}")
        return ops.Reported("found", output=output)

    def close(self) -> None:
        """End whatever is left."""
        _end_all()

    def _untrusted(self) -> str:
        """Say why the program is not one that root alone could have put there; "" where it is."""
        path = self._program[0]
        try:
            path, found = trust.follow(path, self._owners, sticky=True)
        except trust.Shared as shared:
            path, found = shared.path, shared.found
        except OSError as error:
            return f"{path}: {error.strerror}"
        else:
            if found.st_uid in self._owners and not found.st_mode & trust.SHARED:
                return ""
        return (
            f"{path}: it belongs to uid {found.st_uid} with mode"
            f" {stat.S_IMODE(found.st_mode):04o}; expected root's, writable by nobody else"
        )

    def _run(self) -> tuple[str, bytes]:
        """Give what went wrong, and what it printed."""
        with contextlib.ExitStack() as stack:
            out, errors = (_pipe(stack) for _ in range(2))
            most = _tasks() + PROCESSES
            pid = os.fork()
            if pid == 0:
                _become(self._program, out[1], errors[1], most)
            for _, end in (out, errors):
                os.close(end)
            child = os.pidfd_open(pid)
            stack.callback(os.close, child)
            printed, complaint = _Reader(out[0], SIZE_LIMIT), _Reader(errors[0], _ERRORS_LIMIT)
            in_time = _follow(child, printed, complaint, self._patience)
            if not in_time:
                return f"it did not end within {self._patience:g} s, and was killed", b""
            if printed.cut:
                return f"it printed more than {SIZE_LIMIT} bytes, and was killed", b""
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 0:
            return "", bytes(printed.data)
        how = f"exit status {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
        line = complaint.data.decode("utf-8", "replace").strip().partition("\n")[0]
        return f"{how}: {printable(line)[:_SHOWN]}" if line else how, b""


class _Reader:
    """The end of a pipe that is read up to a limit; of more, it is enough to know that it came."""

    def __init__(self, fd: int, limit: int) -> None:
        self.fd = fd
        self.data = bytearray()
        self.cut = False
        self._limit = limit
        os.set_blocking(fd, False)  # the standard library's own

    def read(self) -> bool:
        """Take what is there; say whether more may come."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, 1 << 16):
                self.data += data
                if len(self.data) > self._limit:
                    self.cut = True
                    del self.data[self._limit :]
                    return True
            return False
        return True


def _follow(child: int, out: _Reader, errors: _Reader, patience: float) -> bool:
    """Read until the program has ended, or prints too much; say whether it was in time."""
    until = time.monotonic() + patience
    poll = select.poll()
    for fd in (child, out.fd, errors.fd):
        poll.register(fd, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        ready = {fd for fd, _ in poll.poll(1000 * left)}
        for reader in (out, errors):
            if reader.fd in ready and not reader.read():
                poll.unregister(reader.fd)
        if out.cut:
            return True
        if child in ready:  # what it printed last may have come after we looked
            out.read()
            errors.read()
            return True
    return False


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    reading, writing = os.pipe2(os.O_CLOEXEC)
    stack.callback(os.close, reading)
    return reading, writing


def _tasks() -> int:
    """Count what our user has: the kernel's limit is one for all of them."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # they come and go
            if os.stat(f"/proc/{name}").st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def _become(program: Sequence[str], out: int, errors: int, most: int) -> None:
    """Be the program, of a user that has so many processes at most; never return."""
    try:
        die_with_parent(os.getppid(), signal.SIGKILL)
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        allowed = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        os.chdir("/")
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(errors, 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.execve(program[0], tuple(program), ENVIRONMENT)  # noqa: S606  # what this is for
    except OSError as error:
        os.write(2, f"it cannot be started: {error.strerror}".encode())
    finally:
        os._exit(127)


def _end_all() -> None:
    """Kill every process below ours, and wait for it; new ones may come while we look."""
    until = time.monotonic() + KILL_SECONDS
    stopped: set[int] = set()
    while (more := set(_below("self")) - stopped) and time.monotonic() < until:
        _signal(more, signal.SIGSTOP)
        stopped |= more
    until = time.monotonic() + KILL_SECONDS
    while time.monotonic() < until:
        _signal(_below("self"), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)  # they are on their way


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _below(process: int | str) -> Iterator[int]:
    """Give the processes that one has started, and those that these have."""
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{task}/children", encoding="ascii") as file:
                for child in map(int, file.read().split()):
                    yield child
                    yield from _below(child)
