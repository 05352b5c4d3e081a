"""A supervisor with helpers for the tests: the real processes, and work that fails on demand.

stage.py LOCK JOURNAL (--fd N | --socket PATH) [--plain] [--broken ROLE [--late]]

The binder's requests are those of the closed table; what it does is told by the mark of a Verify.
"""

import argparse
import ctypes
import os
import select
import signal
import sys

from xce_nodeagent.errors import Conflict
from xce_nodeagent.privileged import lock, ops, seccomp
from xce_nodeagent.privileged.capability import Capability
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.credential import Identity
from xce_nodeagent.privileged.door import Inherited, Listening
from xce_nodeagent.privileged.notify import Notify
from xce_nodeagent.privileged.nursery import Nursery
from xce_nodeagent.privileged.prober import Prober
from xce_nodeagent.privileged.role import Role
from xce_nodeagent.privileged.serve import log_to_stderr
from xce_nodeagent.privileged.supervisor import Supervisor
from xce_nodeagent.privileged.witness import Witness

PLAIN = 65534


class Journal:
    """A file that several processes append lines to."""

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def write(self, line):
        os.write(self._file, f"{line}\n".encode())


class Actor:
    """The binder of the tests."""

    def __init__(self, path, journal):
        self._path = path
        self._journal = journal
        self._lock = None

    def handle(self, request, fds):
        match request:
            case ops.Take():
                if self._lock is None:
                    self._lock = lock.take(self._path, 4)
                self._journal.write(f"take {os.getpid()}")
                return ops.Taken(os.getpid(), None, (), "", recovered=False)
            case _ if self._lock is None:
                raise Violation("before Take")
            case ops.Verify():
                return self._act(request.mark)
            case ops.Join():
                if len(fds) != 1:
                    raise Violation("Join without its pidfd")
                with open(f"/proc/self/fdinfo/{fds[0]}", encoding="ascii") as info:
                    return ops.Verified("ok", info.read())
            case _:
                self._journal.write(f"{type(request).__name__} {os.getpid()}")
                return ops.Done()

    def _act(self, mark):
        what, _, where = mark.partition(" ")
        if what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif what == "stop-once" and not os.path.exists(where):
            with open(where, "w", encoding="ascii"):
                pass
            os.kill(os.getpid(), signal.SIGSTOP)
        elif what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "fault":
            raise RuntimeError("a fault of ours")
        elif what == "conflict":
            raise Conflict("it is taken", job="7")
        elif what == "violation":
            raise Violation("out of the roots")
        elif what == "long":
            return ops.Verified("ok", "x" * ops.MESSAGE_LIMIT)
        self._journal.write(f"{mark} {os.getpid()}")
        return ops.Verified("ok", mark)

    def close(self):
        self._journal.write(f"close {os.getpid()}")


def probe(skip, started, _only):
    """A vendor's library: it may block for ever, with every signal blocked."""
    started("0000:01:00.0")
    if "hang" in skip or "hold" in skip:
        started("0000:02:00.0")
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        # What is called through PyDLL lets none of Python's threads run meanwhile.
        libc = ctypes.PyDLL(None) if "hold" in skip else ctypes.CDLL(None)
        while True:
            libc.pause()
    if "raise" in skip:
        raise Conflict("the library is in use")
    for name in skip:
        if name.startswith("/"):  # until somebody has written to this FIFO
            with open(name, "rb") as gate:
                gate.read()
    return "found", "", {"uid": os.getuid(), "groups": os.getgroups()}


def late(broken):
    """Let a fork of the broken role be over before the supervisor looks at what it forked."""
    fork = Nursery.fork

    def forked(nursery, role, now):
        child = fork(nursery, role, now)
        if role == broken:
            select.select([child.pidfd], [], [], 10)
        return child

    Nursery.fork = forked


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lock")
    parser.add_argument("journal")
    parser.add_argument("--fd", type=int)
    parser.add_argument("--socket")
    parser.add_argument("--agent-uid", type=int, default=os.getuid())
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--broken", default="")
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--grace", type=float, default=5.0)
    options = parser.parse_args()
    if options.plain:
        os.setgroups([])
        os.setresgid(PLAIN, PLAIN, PLAIN)
        os.setresuid(PLAIN, PLAIN, PLAIN)
    root = os.geteuid() == 0
    if options.late:
        late(options.broken)

    def actor():
        return Actor(options.lock, Journal(options.journal))

    def work(name, make):
        def opened(log):
            if options.broken == name:
                raise RuntimeError("this role is broken")
            return make()

        return opened

    roles = (
        Role(
            "binder", ops.BinderRequest, work("binder", actor), seccomp.BINDER, None,
            frozenset({Capability.SYS_ADMIN, Capability.NET_ADMIN}), descriptors=True,
        ),
        Role(
            "prober", ops.ProberRequest, work("prober", lambda: Prober(probe, patience=0.5)),
            seccomp.PROBER, Identity(61498, 61498, (44,)) if root else None,
        ),
        Role(
            "witness", ops.WitnessRequest, work("witness", Witness),
            seccomp.WITNESS, Identity(61497, 61497) if root else None,
            frozenset({Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH}),
        ),
    )  # fmt: skip
    log = log_to_stderr("xce-helpers")
    if options.socket:
        door = Listening(options.socket, options.agent_uid, log)
    else:
        door = Inherited(options.fd)
    notify = Notify(os.environ)
    supervisor = Supervisor(
        {role.name: role for role in roles}, door, log,
        notify=notify, watchdog=notify.watchdog, grace=options.grace,
    )  # fmt: skip
    return supervisor.run()


sys.exit(main())
