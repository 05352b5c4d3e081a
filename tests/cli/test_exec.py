"""`exec` and `join`: a command runs bound, and its end is the end of the binding."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from xce_nodeagent.daemon import client

EXEC = [sys.executable, "-m", "xce_nodeagent", "exec"]


def held(path: str) -> list[Any]:
    return list(client.call("ListBindings", {}, path)["bindings"])


def run(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EXEC, "--socket", path, *arguments], text=True, capture_output=True, timeout=30,
        check=False,
    )  # fmt: skip


def test_a_command_runs_bound_and_is_released(agent: str) -> None:
    script = 'echo "$CUDA_VISIBLE_DEVICES $XCE_JOB_ID $JOINED $$"'
    done = run(agent, "--instance", "GPU-1", "--", "sh", "-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    devices, job, joined, pid = done.stdout.split()
    assert devices == "GPU-1"
    assert job.startswith("exec-")
    assert joined == pid  # the command's own process asked to be moved
    assert held(agent) == []


def test_it_is_held_while_the_command_runs(agent: str) -> None:
    show = f"{sys.executable} -m xce_nodeagent jobs --json --socket {agent}"
    done = run(agent, "--job", "17", "--instance", "GPU-1", "--", "sh", "-c", show)
    (binding,) = json.loads(done.stdout)["bindings"]
    assert (binding["job"], binding["uid"]) == ("17", os.getuid())
    assert binding["instances"] == ["GPU-1"]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -9 $$"], 128 + 9),
        (["no-such-command"], 127),
        (["/"], 126),
    ],
)
def test_it_ends_as_the_command_did(agent: str, command: list[str], status: int) -> None:
    assert run(agent, "--instance", "GPU-1", "--", *command).returncode == status
    assert held(agent) == []


def test_nothing_runs_when_prepare_is_refused(agent: str) -> None:
    client.call("Prepare", {"job": "1", "instances": ["GPU-1"]}, agent)
    done = run(agent, "--instance", "GPU-1", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (75, "")
    assert "held by job 1" in done.stderr
    assert [binding["job"] for binding in held(agent)] == ["1"]


def test_another_run_of_the_job_is_left_alone(agent: str) -> None:
    client.call("Prepare", {"job": "1", "attempt": "first", "instances": ["GPU-1"]}, agent)
    assert run(agent, "--job", "1", "--instance", "GPU-2", "true").returncode == 0
    assert [binding["attempt"] for binding in held(agent)] == ["first"]


def test_a_command_is_a_plain_process(agent: str) -> None:
    """No signal is blocked or ignored that was not before, and no descriptor leaks."""
    script = "grep -E 'SigBlk|SigIgn' /proc/self/status; ls /proc/self/fd"
    plain = subprocess.run(
        ["sh", "-c", script], text=True, capture_output=True, check=True, stdin=subprocess.DEVNULL
    )
    bound = subprocess.run(
        [*EXEC, "--socket", agent, "--", "sh", "-c", script], text=True, capture_output=True,
        check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert bound.stdout == plain.stdout


@contextmanager
def waiting(path: str) -> Iterator[tuple[subprocess.Popen[str], Callable[[], str]]]:
    """An `exec` whose command says that it is ready, and then what signal it got."""
    script = (
        "import signal, sys\n"
        "def told(number, frame):\n"
        "    print(signal.Signals(number).name, flush=True); sys.exit(42)\n"
        "for name in ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1'):\n"
        "    signal.signal(getattr(signal, name), told)\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [*EXEC, "--socket", path, "--instance", "GPU-1", "--", sys.executable, "-c", script],
        text=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process, process.stdout.readline
        finally:
            if process.poll() is None:
                process.terminate()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_is_passed_on(agent: str, name: str) -> None:
    with waiting(agent) as (process, line):
        process.send_signal(getattr(signal, name))
        assert line() == f"{name}\n"
        assert process.wait(10) == 42
    assert held(agent) == []


def test_a_signal_of_the_terminal_reaches_the_command_once(agent: str) -> None:
    """^C goes to the whole foreground group; passed on as well, it would come twice."""
    script = (
        "import signal, sys, time\n"
        "got = []\n"
        "signal.signal(signal.SIGINT, lambda number, frame: got.append(number))\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(len(got)))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(60)\n"
    )
    pid, terminal = pty.fork()
    if not pid:
        try:
            words = [*EXEC, "--socket", agent, sys.executable, "-c", script]
            os.execv(sys.executable, words)  # noqa: S606  # a terminal of its own needs a fork
        finally:
            os._exit(99)
    with os.fdopen(terminal, "r+b", buffering=0) as keyboard:
        assert b"ready" in keyboard.read(100)
        keyboard.write(b"\x03")
        echoed = b""
        while b"^C" not in echoed:  # the terminal has taken it, and told the whole group
            echoed += keyboard.read(100)
        os.kill(pid, signal.SIGTERM)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert held(agent) == []


def test_join_becomes_a_command(agent: str) -> None:
    client.call("Prepare", {"job": "17", "instances": ["GPU-1"]}, agent)
    done = subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", "join", "--socket", agent, "--job", "17", "--",
         "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES $JOINED $$"'],
        text=True, capture_output=True, check=True, timeout=30,
    )  # fmt: skip
    devices, joined, pid = done.stdout.split()
    assert (devices, joined) == ("GPU-1", pid)


def test_join_of_an_unknown_job_runs_nothing(agent: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", "join", "--socket", agent, "--job", "9", "echo"],
        text=True, capture_output=True, check=False, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (64, "")
    assert "job '9'" in done.stderr


def test_a_command_that_cannot_be_moved_is_not_run(agent: str, tmp_path: object) -> None:
    """The binding vanishes between prepare and join: a reconcile says that nothing is held."""
    began = time.monotonic()
    script = (
        "import os, sys\n"
        "from xce_nodeagent.cli import program, invocation\n"
        "call = invocation.Invocation.call\n"
        "def lose(self, method, parameters, timeout=None):\n"
        "    if method == 'Join':\n"
        "        call(self, 'Reconcile', {'jobs': []})\n"
        "    return call(self, method, parameters, timeout)\n"
        "invocation.Invocation.call = lose\n"
        "from xce_nodeagent.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "exec", "--socket", agent, "--instance", "GPU-1", "--",
         "echo", "ran"],
        text=True, capture_output=True, check=False, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (64, "")
    assert "the command was not run" in done.stderr
    assert time.monotonic() - began < 20


def test_without_an_agent_one_message_is_told(tmp_path: Path) -> None:
    done = run(str(tmp_path / "none"), "--instance", "GPU-1", "echo", "ran")
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.count("xce-nodeagent: ") == 1


@contextmanager
def a_socket(path: Path) -> Iterator[tuple[str, socket.socket]]:
    """A socket, to be accepted from by the test."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(20)
        yield str(path), listener


def asked(listener: socket.socket) -> tuple[socket.socket, str]:
    """Take the next call; give its connection and its method."""
    peer, _ = listener.accept()
    peer.settimeout(20)
    data = b""
    while not data.endswith(b"\0"):
        data += peer.recv(65536)
    return peer, json.loads(data[:-1])["method"].rpartition(".")[2]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("hangs", ["Prepare", "Join"])
def test_a_signal_before_the_command_ends_the_wait(tmp_path: Path, name: str, hangs: str) -> None:
    """The agent hangs for ever, in a prepare or a join and in the release after it."""
    with a_socket(tmp_path / "hangs") as (path, listener):
        words = [*EXEC, "--socket", path, "--job", "17", "echo", "ran"]
        with subprocess.Popen(
            words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            peers = []
            if hangs == "Join":
                peer, method = asked(listener)
                assert method == "Prepare"
                peer.sendall(b'{"parameters": {"env": {}}}\0')
                peers.append(peer)
            peer, method = asked(listener)
            assert method == hangs
            peers.append(peer)
            began = time.monotonic()
            process.send_signal(getattr(signal, name))
            peer, method = asked(listener)
            assert method == "Release"
            out, err = process.communicate(timeout=20)
            took = time.monotonic() - began
            for one in (*peers, peer):
                one.close()
    assert process.returncode == 128 + getattr(signal, name)
    assert out == ""
    assert "job 17:" in err
    assert "is not released" in err
    assert took < 5


def test_a_signal_while_it_is_prepared_leaves_nothing_held(agent: str) -> None:
    words = [*EXEC, "--socket", agent, "--job", "waits-1", "echo", "ran"]
    with subprocess.Popen(words, text=True, stdout=subprocess.PIPE) as process:
        until = time.monotonic() + 20
        while not handles(process.pid, signal.SIGTERM):
            assert time.monotonic() < until
            time.sleep(0.01)
        process.terminate()
        out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (128 + signal.SIGTERM, "")
    assert held(agent) == []


def handles(pid: int, number: int) -> bool:
    """Whether a process catches a signal, and does not block it: proc(5), SigCgt and SigBlk."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught, blocked = (
        int(status.split(f"{name}:\t")[1].split("\n")[0], 16) for name in ("SigCgt", "SigBlk")
    )
    return bool(caught >> number - 1 & 1 and not blocked >> number - 1 & 1)
