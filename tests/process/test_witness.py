"""Who holds what: real descriptors, sockets and threads, seen by another process."""

import contextlib
import ctypes
import errno
import os
import socket
import subprocess
import sys
import threading

import pytest

from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged import ops, witness
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.syscall import call
from xce_nodeagent.privileged.witness import TABLES_LIMIT, File, Witness

FULL = Device("c", 1, 7)
HOLDER = """
import ctypes, os, sys, threading
if sys.argv[1] == 'open':
    held = os.open('/dev/full', os.O_RDONLY)
if sys.argv[1] == 'path':
    held = os.open('/dev/full', os.O_PATH)
def own_table():
    # CLONE_FILES: from now on this thread has descriptors of its own
    assert ctypes.CDLL(None).unshare(0x400) == 0
    os.open('/dev/full', os.O_RDONLY)
    told.set()
    threading.Event().wait()
if sys.argv[1] == 'thread':
    told = threading.Event()
    threading.Thread(target=own_table, daemon=True).start()
    told.wait()
if sys.argv[1] == 'orphan':
    held = os.open('/dev/full', os.O_RDONLY)
    def tell():
        import time
        while open(f'/proc/{os.getpid()}/stat').read().split()[2] != 'Z':
            time.sleep(0.01)
        print('ready', flush=True)
        sys.stdin.read()
        os._exit(0)
    threading.Thread(target=tell).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)  # this thread only
print('ready', flush=True)
sys.stdin.read()
"""


class Holder:
    """A process that holds something until it is closed."""

    def __init__(self, how):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout.readline() == b"ready\n"

    def __enter__(self):
        return self.process.pid

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


def look(devices=(), ports=()):
    return Witness().handle(ops.Look(tuple(devices), tuple(ports)), ())


@pytest.mark.parametrize(
    "how",
    # What has lost its first thread belongs to root in /proc, so that others cannot look into it.
    ["open", "path", "thread", pytest.param("orphan", marks=pytest.mark.needs("root"))],
)
def test_whoever_has_a_device_open_is_seen(how):
    """Also in a thread with descriptors of its own, and when the first thread has ended."""
    with Holder(how) as pid, Holder("nothing") as other:
        seen = [one for one in look([FULL, Device("c", 60, 1)]).seen if one.pid == pid]
        assert [(one.what, one.uid) for one in seen] == [("c 1:7", os.getuid())]
        assert seen[0].comm.startswith("python")
        assert other not in [one.pid for one in look([FULL]).seen]


def test_a_device_of_another_number_or_type_is_not_meant():
    with Holder("open") as pid:
        answer = look([Device("b", 1, 7), Device("c", 1, 8), Device("c", 7, 1)])
        assert pid not in [one.pid for one in answer.seen]


def test_it_does_not_see_itself():
    held = os.open("/dev/full", os.O_RDONLY)
    try:
        assert os.getpid() not in [one.pid for one in look([FULL]).seen]
    finally:
        os.close(held)


LISTENER = """
import socket, sys
kind = getattr(socket, sys.argv[1]); family = getattr(socket, sys.argv[2])
s = socket.socket(family, kind)
s.bind(('::1' if family == socket.AF_INET6 else '127.0.0.1', 0))
if kind == socket.SOCK_STREAM and sys.argv[3] == 'listen': s.listen()
if sys.argv[3] == 'connect':
    peer = socket.socket(family, kind); peer.bind(('127.0.0.1', 0)); s.connect(peer.getsockname())
print(s.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("kind", "family", "how", "expected"),
    [
        ("SOCK_STREAM", "AF_INET", "listen", "tcp"),
        ("SOCK_STREAM", "AF_INET6", "listen", "tcp"),
        ("SOCK_DGRAM", "AF_INET", "bind", "udp"),
        ("SOCK_DGRAM", "AF_INET6", "bind", "udp"),
        ("SOCK_STREAM", "AF_INET", "bind", None),
    ],
)
def test_whoever_is_bound_to_a_port_is_seen(kind, family, how, expected):
    process = subprocess.Popen(
        [sys.executable, "-c", LISTENER, kind, family, how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        try:
            port = int(process.stdout.readline())
            seen = [one for one in look(ports=[port]).seen if one.pid == process.pid]
            what = [one.what for one in seen]
            assert what == ([f"{expected} {port}"] if expected else [])
            assert look(ports=[port + 1 if port < 65535 else 1]).seen == () or port == 65535
        finally:
            process.stdin.close()
            process.wait(10)


def test_a_port_that_nobody_visible_has_is_told_without_a_pid():
    """Its own listener stands for one that cannot be seen: it does not look at itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (seen,) = look(ports=[port]).seen
        assert (seen.pid, seen.what) == (0, f"tcp {port}")
        assert seen.uid == os.getuid()


TABLES = """
import ctypes, os, sys, threading
N = int(sys.argv[1])
threading.stack_size(65536)
barrier = threading.Barrier(N + 1)
def own_table(last):
    assert ctypes.CDLL(None).unshare(0x400) == 0  # CLONE_FILES
    if last: os.open('/dev/full', os.O_RDONLY)
    barrier.wait()
    threading.Event().wait()
for i in range(N): threading.Thread(target=own_table, args=(i == N - 1,), daemon=True).start()
barrier.wait()
print('ready', flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.needs("root")
@pytest.mark.parametrize(("tables", "sees"), [(TABLES_LIMIT - 1, True), (TABLES_LIMIT + 40, False)])
def test_tables_are_looked_at_up_to_a_limit_and_then_told_of(tables, sees, monkeypatch):
    """Each is compared with few others, not with all."""
    compared = 0

    def count(name, *arguments):
        nonlocal compared
        compared += name == "kcmp"
        return call(name, *arguments)

    monkeypatch.setattr(witness, "call", count)
    before = look([FULL]).hidden
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", TABLES, str(tables)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        try:
            assert process.stdout.readline() == b"ready\n"
            compared = 0
            held, whole = Witness()._held(process.pid, {("c", 1, 7): "c 1:7"}, {})
            assert (bool(held), whole) == (sees, sees)
            assert compared <= 9 * (TABLES_LIMIT + 1)
            assert (look([FULL]).hidden > before) is not sees
        finally:
            process.stdin.close()
            process.wait(10)


def test_a_descriptor_that_cannot_be_looked_at_hides_no_other():
    """FUSE answers EACCES to everybody but its own user, and an error once its daemon is gone."""

    class Refused(File):
        def look(self, path, folder=-100):
            if path == "0":
                raise PermissionError(errno.EACCES, "refused")
            return super().look(path, folder)

    looks = Witness()
    looks._file = Refused()
    with Holder("open") as pid:
        answer = looks.handle(ops.Look((FULL,)), ())
        assert pid in [one.pid for one in answer.seen]
        assert answer.hidden


def test_a_descriptor_with_it_is_a_violation():
    with pytest.raises(Violation):
        Witness().handle(ops.Look(), (0,))


@pytest.mark.needs("root")
def test_processes_that_come_and_go_do_not_disturb_it():
    stop = threading.Event()
    mine = set()

    def churn():
        while not stop.is_set():
            with subprocess.Popen(["true"]) as process:
                mine.add(process.pid)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        with Holder("open") as pid:
            for _ in range(10):
                answer = look([FULL])
                assert pid in [one.pid for one in answer.seen]
                # A container may have processes that not even root sees.
                assert mine.isdisjoint(answer.unread)
    finally:
        stop.set()
        thread.join()


@pytest.mark.needs("root")
def test_with_its_two_capabilities_alone_it_sees_other_users_processes():
    """As it runs: another uid, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, and its filter."""
    code = (
        "import sys\n"
        "from xce_nodeagent.model.rule import Device\n"
        "from xce_nodeagent.privileged import credential, ops, seccomp\n"
        "from xce_nodeagent.privileged.capability import Capability as C\n"
        "from xce_nodeagent.privileged.witness import Witness\n"
        "keep = {C.SYS_PTRACE, C.DAC_READ_SEARCH} if sys.argv[1] == 'with' else set()\n"
        "credential.assume(credential.Identity(61497, 61497), keep)\n"
        "seccomp.install(seccomp.WITNESS)\n"
        "answer = Witness().handle(ops.Look((Device('c', 1, 7),)), ())\n"
        "print(answer.hidden, *[one.pid for one in answer.seen])\n"
    )
    with Holder("open") as pid:
        for how, sees in (("with", True), ("without", False)):
            done = subprocess.run(
                [sys.executable, "-c", code, how],
                capture_output=True, text=True, check=True, timeout=30,
            )  # fmt: skip
            hidden, *pids = map(int, done.stdout.split())
            assert (pid in pids) is sees
            # A container may have processes that not even root sees.
            assert (hidden <= look([FULL]).hidden) is sees


def _stat(path):
    with contextlib.suppress(OSError):
        os.stat(path)


@pytest.mark.needs("root")
def test_a_file_system_that_does_not_answer_does_not_hold_it_up(tmp_path):
    """A job's own FUSE daemon may never answer: a plain stat(2) of its file would hang.

    The daemon here answers the opening of the root folder, and nothing after that.
    """
    if not os.path.exists("/dev/fuse"):
        pytest.skip("needs /dev/fuse")
    libc = ctypes.CDLL(None, use_errno=True)
    mount = tmp_path / "mount"
    mount.mkdir()
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"xce-test", os.fsencode(mount), b"fuse", 0, options):
        os.close(fuse)
        pytest.skip(f"FUSE cannot be mounted: errno {ctypes.get_errno()}")
    try:
        import struct  # noqa: PLC0415  # for the kernel's side of this test alone

        def reply(unique, body):
            os.write(fuse, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)

        def serve():
            for _ in range(8):
                request = os.read(fuse, 1 << 17)
                _, opcode, unique = struct.unpack_from("=IIQ", request)
                if opcode == 26:  # FUSE_INIT
                    reply(
                        unique, struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, 0)
                    )
                elif opcode == 27:  # FUSE_OPENDIR
                    reply(unique, struct.pack("=QII", 1, 0, 0))
                    return

        server = threading.Thread(target=serve)
        server.start()
        held = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
        server.join()
        child = subprocess.Popen(["sleep", "60"], pass_fds=(held,))
        try:
            done, hung = threading.Event(), threading.Event()
            control = threading.Thread(
                target=lambda: (_stat(f"/proc/{child.pid}/fd/{held}"), hung.set()), daemon=True
            )
            control.start()
            watcher = threading.Thread(target=lambda: (look([FULL]), done.set()), daemon=True)
            watcher.start()
            assert done.wait(20)
            assert not hung.is_set(), "the control: a plain stat(2) hangs"
        finally:
            child.kill()
            child.wait()
            os.close(held)
    finally:
        os.close(fuse)  # that aborts the connection, and frees whoever hangs at it
        libc.umount2(os.fsencode(mount), 2)  # MNT_DETACH
