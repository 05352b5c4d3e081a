"""Clients that knock and are not let in, say nothing, say half of it, or never listen."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time

import pytest

CALL = b'{"method":"io.xce.NodeAgent.ListBindings","parameters":{}}\0'
STRANGER = 61000
# A process of another user: connects so often, says so much each time, and waits.
CROWD = """
import socket, sys
path, count, words = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode().replace(b"~", b"\\0")
kept = []
for _ in range(count):
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(20)
    one.connect(path)
    if words:
        try:
            one.sendall(words)
        except OSError:
            pass
    kept.append(one)
print("here", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


@pytest.fixture(autouse=True)
def _room():
    """Let this process and its children have more than a thousand sockets."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, before[1]), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def crowd(agent, count, words="", user=STRANGER):
    crowd = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", CROWD, str(agent.socket), str(count), words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=user, group=user, extra_groups=[],
    )  # fmt: skip
    try:
        assert crowd.stdout.readline() == b"here\n"
        yield crowd
    finally:
        crowd.kill()
        crowd.communicate()


def works(agent, count=20):
    """Prepare and release; give the median of the seconds of a prepare."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        assert agent.call("Prepare", job="1", request="rusage[gpu=2]")["enforcement"] == "cgroup2"
        took.append(time.perf_counter() - began)
        assert agent.call("Release", job="1")["clean"]
    return statistics.median(took)


@pytest.mark.parametrize("user", [STRANGER, 0, 12345], ids=["stranger", "root", "worker"])
@pytest.mark.parametrize("words", ["", '{"method":"io.xce.NodeAgent.Pre'], ids=["nothing", "half"])
def test_a_thousand_clients_that_say_nothing_or_half_of_it_do_not_keep_the_worker_out(
    agent, user, words
):
    with crowd(agent, 1000, words, user):
        works(agent)
    works(agent)


def test_a_thousand_clients_that_never_read_their_answers_cost_no_other_anything(agent):
    call = CALL.decode().replace("ListBindings", "GetInventory")
    with crowd(agent, 1000, call.replace("\0", "~")):
        works(agent)
    listens_not = []
    try:
        for _ in range(200):
            one = socket.socket(socket.AF_UNIX)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(5)
            one.connect(str(agent.socket))
            one.sendall(call.encode() * 5)
            listens_not.append(one)
        works(agent)
    finally:
        for one in listens_not:
            one.close()
    works(agent)


def test_who_knocks_while_the_agent_is_stopped_is_told_or_served_when_it_goes_on(
    agent, refused, until
):
    knocked, waiting = [], []
    agent.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(2000):
            one = socket.socket(socket.AF_UNIX)
            knocked.append(one)
            one.settimeout(0)
            try:
                one.connect(str(agent.socket))
            except BlockingIOError:
                break  # the queue is full
            one.sendall(CALL)
            waiting.append(one)
        else:
            pytest.fail("the queue takes more than any client knows of")
        # The command says so, and does not wait for ever.
        told = subprocess.run(
            [sys.executable, "-m", "xce_nodeagent", "jobs"],
            env=agent.env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert told.returncode == 75, told.stderr
    finally:
        agent.process.send_signal(signal.SIGCONT)
    # As many as may be in at once are served; the others are told that there is no room.
    for one in waiting:
        one.settimeout(30)
        answer = json.loads(one.recv(1 << 16).rstrip(b"\0"))
        assert "error" not in answer or answer["parameters"]["code"] == "not_ready"
    for one in knocked:
        one.close()

    def there_is_room():
        try:
            return agent.call("ListBindings")
        except refused:
            return None

    until(there_is_room, "that those who left are counted no more")
    works(agent)
