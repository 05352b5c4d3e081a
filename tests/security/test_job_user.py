"""The user of a job, at the socket: what belongs to others is not theirs to prepare or release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PREPARER, ALICE, BOB = 12345, 54321, 54322

pytestmark = [pytest.mark.needs("root", "cgroup2", "bpf"), pytest.mark.timeout(120)]

CALL = """
import json, os, socket, sys
path, calls = sys.argv[1], json.loads(sys.argv[2])
answers = []
for method, parameters in calls:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(path)
        message = {"method": "io.xce.NodeAgent." + method, "parameters": parameters}
        client.sendall(json.dumps(message).encode() + b"\\0")
        data = b""
        while not data.endswith(b"\\0"):
            data += client.recv(65536)
    answers.append(json.loads(data[:-1]))
print(json.dumps(answers))
"""


def as_user(agent, uid, *calls):
    """Call methods as a user, over connections of their own; give the answers."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", CALL, agent.socket, json.dumps(calls)],
        user=uid, group=uid, extra_groups=[], capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


def code(answer):
    return answer.get("parameters", {}).get("code")


@pytest.fixture(scope="module")
def jobs(steady):
    """A job of Alice's and one of Bob's, and a process of each that has no job yet."""
    for job, uid in (("alice", ALICE), ("bob", BOB)):
        steady.call("Prepare", job=job, attempt="1", uid=uid, request="rusage[gpu=1]")
    sleepers = {uid: subprocess.Popen(["sleep", "600"], user=uid) for uid in (ALICE, BOB)}
    yield {uid: process.pid for uid, process in sleepers.items()}
    for process in sleepers.values():
        process.kill()
        process.wait()
    for job in ("alice", "bob"):
        steady.call("Release", job=job)


def state(agent):
    bindings = agent.call("ListBindings")["bindings"]
    for binding in bindings:
        del binding["last_seen"]
    inventory = agent.call("GetInventory")
    return bindings, inventory["instances"], inventory["digest"], sorted(os.listdir(agent.home))


CARD = {"job": "new", "attempt": "1", "request": "rusage[gpu=1]"}
DENIED = {
    "prepare": ("Prepare", CARD),
    "prepare for oneself": ("Prepare", {**CARD, "uid": ALICE}),
    "prepare again, the same": (
        "Prepare", {"job": "alice", "attempt": "1", "uid": ALICE, "request": "rusage[gpu=1]"},
    ),
    "prepare more": ("Prepare", {"job": "alice", "attempt": "1", "add": True, "request": "gpu=1"}),
    "prepare another's": ("Prepare", {"job": "bob", "attempt": "1", "uid": BOB}),
    "prepare, adopting init's cgroup": ("Prepare", {"job": "x", "pid": 1, "adopt": True}),
    "release one's own": ("Release", {"job": "alice", "attempt": "1"}),
    "release another's": ("Release", {"job": "bob", "attempt": "1"}),
    "release a part of another's": ("Release", {"job": "bob", "instances": ["GPU-x"]}),
    "reconcile to nothing": ("Reconcile", {"jobs": []}),
    "reconcile to one's own": ("Reconcile", {"jobs": [{"job": "alice", "attempt": "1"}]}),
    "drain": ("Drain", {"id": "ports", "reason": "x"}),
    "undrain": ("Undrain", {"id": "ports"}),
}  # fmt: skip


@pytest.mark.parametrize("what", DENIED)
def test_a_jobs_user_is_refused_and_nothing_changes(steady, jobs, what):
    before = state(steady)
    (answer,) = as_user(steady, ALICE, DENIED[what])
    assert answer["error"] == "io.xce.NodeAgent.NotPermitted"
    assert (code(answer), answer["parameters"]["class"]) == ("not_permitted", "denied")
    assert state(steady) == before


def test_credentials_are_judged_before_a_single_parameter_is_read(steady, jobs):
    """Whoever may not call learns nothing by how the call is wrong."""
    for parameters in ({}, {"job": 7}, {"job": "a/b"}, {"job": "nobody"}, {"colour": "red"}):
        for method in ("Prepare", "Release", "Reconcile", "Drain"):
            (answer,) = as_user(steady, ALICE, (method, parameters))
            assert code(answer) == "not_permitted", (method, parameters)


def test_join_is_for_ones_own_processes_into_ones_own_job(steady, jobs):
    before = Path(f"/proc/{jobs[BOB]}/cgroup").read_text("ascii")
    calls = [
        ("Join", {"job": "bob", "attempt": "1"}),  # oneself into another's job
        ("Join", {"job": "bob", "attempt": "1", "pid": jobs[ALICE]}),
        ("Join", {"job": "alice", "attempt": "1", "pid": jobs[BOB]}),  # another's process
        ("Join", {"job": "bob", "attempt": "1", "pid": jobs[BOB]}),
        ("Join", {"job": "alice", "attempt": "1", "pid": 1}),
        ("Join", {"job": "alice", "attempt": "1", "pid": 2}),
        ("Join", {"job": "alice", "attempt": "1", "pid": steady.process.pid}),
    ]
    for call, answer in zip(calls, as_user(steady, ALICE, *calls), strict=True):
        assert code(answer) == "not_permitted", call
    assert Path(f"/proc/{jobs[BOB]}/cgroup").read_text("ascii") == before
    (answer,) = as_user(
        steady, ALICE, ("Join", {"job": "alice", "attempt": "1", "pid": jobs[ALICE]})
    )
    assert "error" not in answer
    assert "/job-alice" in Path(f"/proc/{jobs[ALICE]}/cgroup").read_text("ascii")


def test_who_may_prepare_but_is_not_root_moves_only_the_jobs_users_processes(steady, jobs):
    """A worker that was taken over cannot draw root's or a third's processes into a job."""
    calls = [
        ("Join", {"job": "alice", "attempt": "1", "pid": pid})
        for pid in (jobs[BOB], os.getpid(), 1)
    ]
    for call, answer in zip(calls, as_user(steady, PREPARER, *calls), strict=True):
        assert code(answer) == "not_permitted", call


def test_the_environment_of_anothers_job_is_not_shown(steady, jobs):
    for uid, sees in ((ALICE, True), (BOB, False), (PREPARER, True), (0, True)):
        (one, listed) = as_user(
            steady, uid, ("GetBinding", {"job": "alice", "attempt": "1"}), ("ListBindings", {})
        )
        assert bool(one["parameters"]["binding"]["env"]) is sees, uid
        assert {bool(b["env"]) for b in listed["parameters"]["bindings"]} == {False}


def test_a_pid_that_passed_to_another_user_is_judged_by_who_has_it_now(steady, jobs):
    """SO_PEERCRED tells the pid of the connect; by the call it may be anybody's."""
    script = (
        "import json, os, socket, sys\n"
        "client = socket.socket(socket.AF_UNIX)\n"
        "client.connect(sys.argv[1])\n"
        "if os.fork(): os._exit(0)\n"  # the pid of the connect ends
        "import time\n"
        "while os.path.exists(f'/proc/{os.getppid()}') and os.getppid() != 1: time.sleep(0.01)\n"
        "ask = {'method': 'io.xce.NodeAgent.Join', 'parameters': {'job': 'alice'}}\n"
        "client.sendall(json.dumps(ask).encode() + b'\\0')\n"
        "print(client.recv(65536).rstrip(b'\\0').decode(), flush=True)\n"
    )
    done = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script, steady.socket],
        user=ALICE, group=ALICE, extra_groups=[], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    done.wait(20)
    answer = json.loads(done.stdout.read())
    done.stdout.close()
    assert code(answer) in ("bad_cgroup", "not_permitted", "bad_request"), answer


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\rb", "a\tb", "a\x9bb", "a\u202eb"])
def test_a_cgroup_whose_name_a_terminal_would_obey_is_refused(steady, refused, name):
    """It would be in the job's environment as XCE_CGROUP; whoever made it may be a user."""
    path = steady.other / name
    path.mkdir()
    try:
        with pytest.raises(refused) as caught:
            steady.call("Prepare", job="named", attempt="1", cgroup=str(path))
        assert caught.value.code == "bad_cgroup"
        assert str(caught.value).isprintable()
        assert "trusted.xce.binding" not in os.listxattr(path)
    finally:
        path.rmdir()


def test_a_flood_of_refused_calls_keeps_nobody_waiting(steady, jobs):
    flood = (
        "import json,socket,sys\n"
        "c=socket.socket(socket.AF_UNIX)\n"
        "c.connect(sys.argv[1])\n"
        "m=json.dumps({'method':'io.xce.NodeAgent.Prepare','parameters':{}}).encode()+b'\\0'\n"
        "while True:\n"
        " c.sendall(m*100)\n"
        " n=0\n"
        " while n<100: n+=c.recv(65536).count(0)\n"
    )
    flooders = [
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", flood, steady.socket],
            user=ALICE, group=ALICE, extra_groups=[],
        )
        for _ in range(3)
    ]  # fmt: skip
    try:
        for number in range(20):
            begun = time.monotonic()
            steady.call("Prepare", job="quick", attempt=str(number), request="rusage[gpu=1]")
            steady.call("Release", job="quick", attempt=str(number))
            assert time.monotonic() - begun < 5
        assert all(process.poll() is None for process in flooders)
    finally:
        for process in flooders:
            process.kill()
            process.wait()
