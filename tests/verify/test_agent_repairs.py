"""A real agent: what it finds wrong, what it puts right, and how it tells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agent.running import serving

from xce_nodeagent.privileged import bpf

pytestmark = [pytest.mark.needs("root", "cgroup1", "cgroup2", "bpf"), pytest.mark.timeout(120)]


@pytest.fixture
def agent(cgroup2_mount):
    with serving(cgroup2_mount) as running:
        yield running


@pytest.fixture
def job(agent, in_job):
    """A job with one card, and a process in it."""
    answer = agent.call("Prepare", job="1", request="rusage[gpu=1]")
    path = answer["cgroup"]["v2"]
    nodes = {i["id"]: i["devices"][0]["path"] for i in agent.instances("gpu")}
    mine = nodes[answer["instances"][0]]
    other = next(p for i, p in nodes.items() if i not in answer["instances"])
    return path, in_job(path), mine, other


def checks(agent, **asked):
    return {check["name"]: check for check in agent.call("Doctor", **asked)["checks"]}


def view(agent):
    (binding,) = agent.call("ListBindings")["bindings"]
    return binding["healthy"], binding["fault"]


def program(agent, *words):
    """Run the program as a person does."""
    return subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", *words],
        env=agent.env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_doctor_finds_it_and_the_repair_puts_it_back_and_says_so(agent, job, hand):
    path, inside, mine, other = job
    hand.detach(path)
    found = checks(agent)["binding.1"]
    assert (found["state"], found["text"]) == ("fault", "its device program is not attached")
    assert "doctor --repair" in found["remedy"]
    assert inside.opens(other) == "ENXIO"  # to look changes nothing
    done = program(agent, "doctor", "--repair", "--json")
    told = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert told["repair.1"]["text"] == "put back: its device program is not attached"
    assert told["repair"]["text"] == "1 repaired"
    assert "binding.1" not in told
    assert (inside.opens(mine), inside.opens(other)) == ("ENXIO", "EPERM")
    assert done.returncode == 0
    again = program(agent, "doctor", "--repair")
    assert "repair: 1 whole" in again.stdout
    assert "1 put back" in again.stdout


def test_unhealthy_binding_is_shown_with_its_reason_until_it_is_whole(agent, job, hand):
    path, inside, mine, other = job
    assert view(agent) == (True, "")
    hand.detach(path)
    for number in range(64):
        hand.attach(path, bpf.anchor(), f"tool{number}")
    done = program(agent, "doctor", "--repair")
    assert done.returncode == 69
    assert "cannot be put back: cgroup" in done.stdout
    healthy, fault = view(agent)
    assert not healthy
    assert "64 device programs" in fault
    table = program(agent, "jobs").stdout
    assert "unhealthy" in table
    assert "1: unhealthy: cgroup" in table
    assert "64 device programs" in program(agent, "job", "1").stdout
    hand.detach(path)
    checks(agent, repair=True)
    assert view(agent) == (True, "")
    assert (inside.opens(mine), inside.opens(other)) == ("ENXIO", "EPERM")


def test_repair_is_for_who_may_prepare(agent, job):
    code = (
        "import json, os, socket, sys\n"
        "os.setgroups([]); os.setgid(54321); os.setuid(54321)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "s.sendall(sys.argv[2].encode() + b'\\0')\n"
        "print(s.recv(1 << 20)[:-1].decode())\n"
    )
    answers = []
    for asked in ({"repair": True}, {"repair": False}, {}):
        message = json.dumps({"method": "io.xce.NodeAgent.Doctor", "parameters": asked})
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, str(agent.socket), message],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        answers.append(json.loads(done.stdout))
    assert answers[0]["error"] == "io.xce.NodeAgent.NotPermitted"
    assert "parameters" in answers[1]
    assert "checks" in answers[2]["parameters"]


def test_start_puts_back_what_was_taken_while_there_was_no_agent(agent, job, hand):
    path, inside, mine, other = job
    agent.stop()  # with its last words in the ledger, so that it knows the binding as bound
    hand.detach(path)
    assert inside.opens(other) == "ENXIO"
    agent.start()
    assert (inside.opens(mine), inside.opens(other)) == ("ENXIO", "EPERM")
    assert "1 repaired" in agent.log.read_text("utf-8")
    assert "1 put back" in checks(agent)["verification"]["text"]


def test_repeated_prepare_puts_it_back(agent, job, hand):
    path, inside, mine, other = job
    hand.detach(path)
    agent.call("Prepare", job="1", request="rusage[gpu=1]")
    assert (inside.opens(mine), inside.opens(other)) == ("ENXIO", "EPERM")


def test_repair_goes_on_with_another_binder(agent, job, hand):
    path, inside, mine, other = job
    for _ in range(3):
        hand.detach(path)
        hand.detach(str(agent.home))
        os.kill(_binder(agent), signal.SIGKILL)
        assert checks(agent, repair=True)["repair"]["text"] == "1 repaired"
        assert (inside.opens(mine), inside.opens(other)) == ("ENXIO", "EPERM")
        assert len(hand.ids(path)) == 1
        assert len(hand.ids(str(agent.home))) == 1


def test_binder_keeps_no_descriptor_of_what_it_looked_at(agent, job, hand):
    path, *_ = job
    checks(agent, repair=True)
    before = _open_files(_binder(agent))
    for _ in range(20):
        hand.detach(path)
        hand.attach(path, bpf.anchor(), "theirs")
        checks(agent, repair=True)
        hand.detach(path)
    checks(agent, repair=True)
    assert _open_files(_binder(agent)) == before


def _binder(agent):
    """The live binder: the one that holds the lock."""
    lock = str(agent.folder / "run-helpers" / "binder.lock")
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and lock in _open_files(int(process.name)):
                return int(process.name)
        time.sleep(0.02)
    raise AssertionError("there is no binder")


def _open_files(pid):
    try:
        return sorted(os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has ended, or is ending
        return []
