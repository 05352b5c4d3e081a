"""A compromised agent at the helpers' supervisor, which knows one sentence: a helper of role R."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import msgspec
import pytest

from xce_nodeagent.privileged import ops

pytestmark = [
    pytest.mark.needs("root", "cgroup2", "bpf"),
    pytest.mark.timeout(120),
    pytest.mark.parametrize("backend", ["cgroup2"], indirect=True),
]

NEXT = msgspec.msgpack.encode({"type": "next", "role": "witness"})
PACKETS = {
    "a role that is none": msgspec.msgpack.encode({"type": "next", "role": "runner"}),
    "a role with a path": msgspec.msgpack.encode({"type": "next", "role": "../bin/sh"}),
    "a role of another type": msgspec.msgpack.encode({"type": "next", "role": ["binder"]}),
    "the request of a helper": msgspec.msgpack.encode(ops.Take()),
    "nested without end": b"\x82\xa4type\xa4next\xa1x" + b"\x91" * 100_000 + b"\x90",
    "no msgpack": b"\xc1\xc1",
    "too long": b"\x90" * (ops.MESSAGE_LIMIT + 1),
}


@pytest.mark.parametrize("name", PACKETS)
def test_what_is_no_request_for_a_helper_ends_the_connection_in_good_order(captured, name):
    """The supervisor ends as if its agent had gone: with its helpers, and with a word in the log.

    As a unit (`--socket`) it goes on and waits for the next agent: tests/process has that.
    """
    captured.end.send(PACKETS[name])
    assert captured.process.wait(20) == 76  # EX_PROTOCOL
    assert "violation by the agent" in captured.logged()
    assert "Traceback" not in captured.logged()


def test_ten_thousand_requests_make_no_ten_thousand_processes(captured):
    """Asked one after another, as fast as they are answered, and each is let go at once."""
    before = captured.surroundings()
    most = refusals = 0
    for _ in range(10_000):
        captured.end.send(NEXT)
        data, fds, _, _ = socket.recv_fds(captured.end, 4096, 1)
        for fd in fds:
            os.close(fd)
        refusals += not fds
        if len(fds) or refusals % 1000 == 0:
            most = max(most, len(captured.children()))
    assert refusals > 9_000, data
    assert most <= 3 * 4  # nursery.LIMIT of each role
    assert captured.process.poll() is None
    assert captured.surroundings() == before
    assert captured.binder().ask(ops.Manage(captured.cards())) == {"type": "done"}


def test_a_flood_that_reads_no_answer_is_a_violation_and_no_helper_outlives_it(captured):
    binder = captured.binder()
    sent = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for sent in range(10_000):  # noqa: B007  # it is looked at below
            captured.end.send(NEXT)
    assert sent < 9_999
    assert captured.process.wait(20) == 76
    assert "a flood" in captured.logged()
    assert binder.receive() is None


def test_binders_that_end_each_other_are_rationed_as_well(captured):
    """A new binder kills the one before. That must not count as a death that the agent suffered."""
    given = 0
    for _ in range(60):
        captured.end.send(msgspec.msgpack.encode({"type": "next", "role": "binder"}))
        data, fds, _, _ = socket.recv_fds(captured.end, 4096, 1)
        if not fds:
            break
        given += 1
        with socket.socket(fileno=fds[0]) as end:
            end.settimeout(20)
            end.send(msgspec.msgpack.encode(ops.Take()))
            end.recv(65536)
            captured.given.append(end.dup())  # it stays the live one
    else:
        pytest.fail("there is no end of binders")
    assert given <= 20
    assert b"not_ready" in data


AS_AGENT = """
import os, socket, sys
done = {}
def tried(what, function):
    try:
        function()
        done[what] = "worked"
    except OSError as error:
        done[what] = type(error).__name__
pid = int(sys.argv[1])
import signal
tried("kill", lambda: os.kill(pid, signal.SIGTERM))
tried("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL))
tried("memory", lambda: open(f"/proc/{pid}/mem", "r+b"))
tried("descriptors", lambda: os.listdir(f"/proc/{pid}/fd"))
tried("lock", lambda: open(sys.argv[2] + "/binder.lock", "r+b"))
tried("unlink", lambda: os.unlink(sys.argv[2] + "/binder.lock"))
tried("plant", lambda: os.symlink("/etc/passwd", sys.argv[2] + "/helpers.sock"))
tried("cgroup", lambda: os.mkdir(sys.argv[3] + "/mine"))
tried("mark", lambda: os.setxattr(sys.argv[3], "trusted.xce.binding", b"x"))
tried("node", lambda: os.mknod("/tmp/xce-node", 0o20666, os.makedev(1, 1)))
print(done)
"""


@pytest.mark.parametrize("uid", [61499, 61498, 61497])
def test_no_uid_of_ours_reaches_another_process_of_ours_or_roots_files(captured, uid):
    """The agent's, the prober's and the witness's uid, with no more than the uid."""
    binder = captured.binder()
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", AS_AGENT, str(binder.pid),
         str(captured.folder / "run-helpers"), str(captured.home)],
        user=uid, group=uid, extra_groups=[], capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    assert set(eval(done.stdout).values()) == {"PermissionError"}, done.stdout  # noqa: S307  # ours
