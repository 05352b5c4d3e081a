"""What the witness sees as it runs: mapped devices, other network namespaces, sockets' queues."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged import mapping, ops
from xce_nodeagent.privileged.mapping import Maps
from xce_nodeagent.privileged.witness import File, Witness

ZERO = Device("c", 1, 5)
CONFINED = """
import sys
from xce_nodeagent.model.rule import Device
from xce_nodeagent.privileged import credential, ops, seccomp
from xce_nodeagent.privileged.capability import Capability as C
from xce_nodeagent.privileged.witness import Witness
witness = Witness()
keep = {C.SYS_PTRACE, C.DAC_READ_SEARCH, *([C.CHECKPOINT_RESTORE] if sys.argv[1] == 'with' else [])}
credential.assume(credential.Identity(61497, 61497), keep)
seccomp.install(seccomp.WITNESS)
answer = witness.handle(ops.Look((Device('c', 1, 5),)), ())
print(*[one.pid for one in answer.seen if one.how == 'mapped'])
"""


def mapped(answer):
    return [one.pid for one in answer.seen if one.how == "mapped"]


@pytest.mark.needs("root")
@pytest.mark.parametrize("how", ["with", "without"])
def test_a_device_that_is_only_mapped_is_seen_with_its_capabilities_alone(process, how, tmp_path):
    """Without CAP_CHECKPOINT_RESTORE, which is of Linux 5.9, a name below /dev is believed."""
    usual, elsewhere, other = process(uid=12345), process(), process()
    node = tmp_path / "zero"
    os.mknod(node, 0o020666, os.makedev(1, 5))
    usual.does("map", "/dev/zero")
    elsewhere.does("map", str(node))
    done = subprocess.run(
        [sys.executable, "-c", CONFINED, how],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    pids = [int(pid) for pid in done.stdout.split()]
    assert usual.pid in pids
    assert (elsewhere.pid in pids) is (how == "with")
    assert other.pid not in pids


def test_a_process_with_the_device_open_and_mapped_is_told_once(process):
    holder = process()
    holder.does("map", "/dev/zero")
    holder.does("open", "/dev/zero")
    seen = [one for one in Witness().handle(ops.Look((ZERO,)), ()).seen if one.pid == holder.pid]
    assert [one.how for one in seen] == ["open"]


def test_one_map_that_cannot_be_read_keeps_nobody_else_from_being_seen(process, monkeypatch):
    """A job can keep the memory map of a process of its own locked, and so whoever reads it."""
    monkeypatch.setattr(mapping, "PATIENCE", 0.3)
    locked, after = process(), process()
    after.does("map", "/dev/zero")
    wait, release = threading.Event(), threading.Event()
    real = File()

    def numbers(path):
        if path.startswith(f"/proc/{locked.pid}/"):
            wait.set()
            release.wait(60)
        return real.number(path)

    maps = Maps("/proc", numbers)
    wanted = [("c", 1, 5)]
    try:
        for _ in range(3):
            found, hidden = maps.look([locked.pid, after.pid], wanted, time.monotonic() + 20)
            assert found == {after.pid: {("c", 1, 5)}}
            assert hidden == {locked.pid}
        assert wait.is_set()
        stuck = [one for one in threading.enumerate() if one.name.startswith("maps")]
        assert len(stuck) == 1, "nobody waits for the same process again"
    finally:
        release.set()
    with contextlib.suppress(RuntimeError):
        for one in stuck:
            one.join(20)
    found, hidden = maps.look([locked.pid, after.pid], wanted, time.monotonic() + 20)
    assert hidden == set()


@pytest.mark.needs("netns")
def test_who_listens_in_another_network_namespace_is_told_with_it(process):
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", f"ip link set lo up; exec {sys.executable} -c '{SERVER}'"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        try:
            port = int(other.stdout.readline())
            with socket.socket() as here:
                here.bind(("127.0.0.1", 0))
                here.listen()
                mine = here.getsockname()[1]
                seen = Witness().handle(ops.Look((), (port, mine)), ()).seen
            namespace = os.stat(f"/proc/{other.pid}/ns/net").st_ino
            found = {(one.what, one.namespace) for one in seen}
            assert (f"tcp {port}", namespace) in found
            assert (f"tcp {mine}", 0) in found
        finally:
            other.stdin.close()
            other.wait(10)


SERVER = (
    'import socket, sys; s = socket.create_server(("127.0.0.1", 0));'
    " print(s.getsockname()[1], flush=True); sys.stdin.read()"
)


def test_descriptors_in_a_sockets_queue_are_counted(process, pair):
    """Of what they are, no kernel tells; since 5.10 it tells how many."""
    one, other = pair
    held = os.open("/dev/zero", os.O_RDONLY)
    child = subprocess.Popen(["sleep", "60"], pass_fds=(other.fileno(),))
    try:
        look = ops.Look((ZERO,), queues=True)
        before = Witness().handle(look, ()).queued
        socket.send_fds(one, [b"x"], [held, held])
        answer = Witness().handle(look, ())
        if not Path(f"/proc/self/fdinfo/{other.fileno()}").read_text("ascii").count("scm_fds"):
            pytest.skip("a kernel that does not tell")
        assert answer.queued >= before + 2
        assert child.pid not in [seen.pid for seen in answer.seen]
    finally:
        child.kill()
        child.wait()
        os.close(held)
