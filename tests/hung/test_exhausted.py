"""Out of descriptors or memory, in the agent and in each helper: nothing wrong, nothing lost."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PINNED = {"transient", "node"}

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


class Line:
    """A connection that was made while there was room."""

    def __init__(self, agent):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(str(agent.socket))

    def call(self, method, **parameters):
        message = {"method": f"io.xce.NodeAgent.{method}", "parameters": parameters}
        self.socket.sendall(json.dumps(message).encode() + b"\0")
        data = b""
        while not data.endswith(b"\0"):
            chunk = self.socket.recv(1 << 16)
            assert chunk, "the agent hung up"
            data += chunk
        return json.loads(data[:-1])


@pytest.fixture
def line(agent):
    made = Line(agent)
    yield made
    made.socket.close()


def _limit(pid, name):
    """Give the soft and the hard limit of a process."""
    for row in Path(f"/proc/{pid}/limits").read_text("ascii").splitlines():
        if row.startswith(name):
            return row.removeprefix(name).split()[:2]
    raise AssertionError(name)


def _set(pid, limit):
    """Set a limit as the user who the process is: root may lack the capability for others."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    uid, gid = (int(found) for found in re.findall(r"^[UG]id:\t(\d+)", status, re.MULTILINE))
    subprocess.run(
        ["prlimit", f"--pid={pid}", limit], check=True, user=uid, group=gid, extra_groups=[]
    )


@contextlib.contextmanager
def short_of_descriptors(pid, spare=0):
    """Leave a process no more than `spare` descriptors beside those that it has."""
    soft, hard = _limit(pid, "Max open files")
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = (number for number in range(1 << 20) if number not in taken)
    limit = [next(free) for _ in range(spare + 1)][-1]
    _set(pid, f"--nofile={limit}:{hard}")
    try:
        yield
    finally:
        if Path(f"/proc/{pid}").exists():
            _set(pid, f"--nofile={soft}:{hard}")


def right_or_pinned(answer):
    """Say whether it was done; what was not has an error that says whose fault it is not."""
    if "error" not in answer:
        return True
    assert answer["parameters"]["class"] in PINNED, answer
    return False


def hardware(agent):
    """What there is, as the digest has it."""
    return agent.call("GetInventory")["digest"]


@pytest.mark.parametrize("spare", [0, 1, 2, 4])
def test_an_agent_without_descriptors_answers_rightly_and_forgets_no_hardware(
    agent, line, until, spare, in_job
):
    digest = hardware(agent)
    held = agent.call("Prepare", job="held", request="rusage[gpu=1]")
    inside = in_job(held["cgroup"]["v2"])
    others = [one for one in agent.instances("gpu") if one["id"] not in held["instances"]]
    with short_of_descriptors(agent.process.pid, spare):
        agent.process.send_signal(signal.SIGHUP)
        done = [
            right_or_pinned(line.call("Prepare", job=f"j{n}", ports=[{"count": 1}]))
            for n in range(5)
        ]
        agent.process.send_signal(signal.SIGHUP)
        found = line.call("GetInventory")
        assert not right_or_pinned(found) or found["parameters"]["digest"] == digest
        right_or_pinned(line.call("Doctor"))
        gone = right_or_pinned(line.call("Release", job="j0"))
        # What nobody holds is fenced all the same.
        assert inside.opens(others[0]["devices"][0]["path"]) == "EPERM"
    inside.end()
    until(lambda: hardware(agent) == digest, "the hardware")
    states = {b["job"] for b in agent.call("ListBindings")["bindings"]}
    expected = {"held"} | {f"j{n}" for n in range(5) if done[n]}
    assert states - {"j0"} == expected - {"j0"}
    assert "j0" not in states or not (done[0] and gone)
    for job in states:
        agent.call("Release", job=job)
    assert agent.call("Prepare", job="new", request="rusage[gpu=8]")["enforcement"] == "cgroup2"


def test_clients_that_cannot_be_let_in_cost_no_processor_and_are_served_later(agent, cpu):
    pid = agent.process.pid
    with contextlib.ExitStack() as stack:
        with short_of_descriptors(pid):
            waiting = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(20)]
            for client in waiting:
                client.settimeout(20)
                client.connect(str(agent.socket))
                client.sendall(b'{"method":"io.xce.NodeAgent.ListBindings"}\0')
            before, began = cpu(pid), time.monotonic()
            time.sleep(1)
            assert (cpu(pid) - before) / (time.monotonic() - began) < 0.2
        for client in waiting:
            assert client.recv(1 << 16).startswith(b'{"parameters"')


def test_a_binder_that_is_lost_while_the_agent_has_no_descriptors_is_replaced_later(
    agent, line, until, family
):
    binder = family(agent).live("binder")
    with short_of_descriptors(agent.process.pid):
        # The dead one's socket is closed and its number free again: take that away as well.
        os.kill(binder, signal.SIGKILL)
        for n in range(3):
            right_or_pinned(line.call("Prepare", job=f"j{n}", request="rusage[gpu=1]"))

    def prepared():
        return right_or_pinned(line.call("Prepare", job="new", request="rusage[gpu=1]"))

    until(prepared, "a binder", 30)
    assert family(agent).live("binder") != binder


@pytest.mark.parametrize("spare", [0, 1, 2, 3])
def test_a_binder_without_descriptors_is_replaced_and_what_it_was_asked_is_done(
    agent, family, in_job, spare
):
    parts = family(agent)
    binder = parts.live("binder")
    gpu, other = (one["devices"][0]["path"] for one in agent.instances("gpu")[:2])
    first = agent.instances("gpu")[0]["id"]
    with short_of_descriptors(binder, spare):
        answer = agent.call("Prepare", job="1", instances=[first])
        inside = in_job(answer["cgroup"]["v2"])
        assert inside.opens(gpu) == "ENXIO"
        assert inside.opens(other) == "EPERM"
        inside.end()
        assert agent.call("Release", job="1")["clean"]
    assert not Path(answer["cgroup"]["v2"]).exists()
    if spare == 0:
        assert parts.live("binder") != binder


def test_a_process_joins_though_the_binder_has_no_room_for_its_pidfd(agent, family):
    where = Path(agent.call("Prepare", job="1")["cgroup"]["v2"])
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        with short_of_descriptors(family(agent).live("binder")):
            agent.call("Join", job="1", pid=sleeper.pid)
        assert (where / "cgroup.procs").read_text("ascii").split() == [str(sleeper.pid)]
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize("room", [0, 1 << 20], ids=["none", "1 MiB"])
def test_a_witness_without_memory_costs_no_job_and_gives_no_wrong_answer(
    agent, family, until, room
):
    pid = family(agent).live("witness")
    _starved(agent, until, pid, room)
    assert "out of descriptors or memory, ending: " in agent.log.read_text("utf-8")


def test_a_prober_without_memory_costs_no_job_and_gives_no_wrong_answer(
    agent, family, until, cards
):
    agent.stop()
    agent.keys = "library_seconds = 1"
    library = cards(agent)
    library.say(f"driver 1\n{CARD}")
    agent.start()
    until(library.seen, "the card")
    _starved(agent, until, family(agent).live("prober"), 0)
    library.say(f"driver 2\n{CARD}")

    def asked():
        library.anew()
        return library.seen()["GPU-one"]["attributes"]["driver_version"] == "2"

    until(asked, "another prober", 30)


CARD = "gpu bus=00000000:1B:00.0 uuid=GPU-one name=x minor=1 memory=1 cc=9.0 mig=0 serial=1\n"


def _starved(agent, until, pid, room):
    """Leave a helper no more than so many bytes, and work until it has ended of that.

    The binder is none of these: it has what it needs from its start on. See test_helpers.py.
    """
    digest = hardware(agent)
    _set(pid, f"--as={_size(pid) + room}:unlimited")
    agent.process.send_signal(signal.SIGHUP)
    for n in range(8):
        many = [f"j{n}-{'x' * 100}-{k}" for k in range(4)]
        for job in many:
            agent.call("Prepare", job=job, ports=[{"count": 16}])
        agent.call("Doctor")
        for job in many:
            assert agent.call("Release", job=job)["clean"]
    assert hardware(agent) == digest
    assert agent.call("ListBindings")["bindings"] == []
    assert [one.name for one in agent.home.iterdir() if one.is_dir()] == []
    until(lambda: not Path(f"/proc/{pid}").exists(), "it has ended of that", 30)
    assert re.search(f"(live|replaced) [a-z]+ {pid}: ", agent.log.read_text("utf-8"))
    assert hardware(agent) == digest


def _size(pid):
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[0]) * resource.getpagesize()


GIVEN = """
import asyncio, os, resource, socket
from xce_nodeagent.binding.supply import Supply
from xce_nodeagent.errors import NotReady
from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.channel import Channel, encode, pair

async def main():
    ours, theirs = pair()
    supply, supervisor = Supply(lambda: ours), Channel(theirs)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def give(limit):
        asked = asyncio.create_task(supply.next("binder"))
        await asyncio.sleep(0.05)
        assert supervisor.receive() is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        supervisor.send(encode(ops.Given(7, "binder")), [theirs.fileno()])
        return await asked

    try:
        await give(3)
    except NotReady as error:
        print("descriptor" in error.message)
    print((await give(soft))[1])

asyncio.run(main())
"""


def test_a_helper_that_there_is_no_room_for_does_not_cost_the_supervisor():
    done = subprocess.run([sys.executable, "-c", GIVEN], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "7"]


SCANS = """
import os, resource, sys
from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.providers import nic, nvidia

providers = (nvidia.PROVIDER, nic.PROVIDER)
host = Host(sys.argv[1], probe=lambda _: ("found", "", {"devices": [
    {"pci_address": "0000:1b:00.0", "uuid": "GPU-a", "minor": 0, "mig_mode": 0}]}))
before = scan(host, providers)
everything = before.managed()
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
try:
    during = scan(host, providers, before)
except OSError as error:
    print("raised", error.errno)
else:
    print("managed", during.managed() == everything, [p.state for p in during.problems])
"""


def test_a_scan_without_descriptors_does_not_make_hardware_vanish(tmp_path):
    card = tmp_path / "sys/bus/pci/devices/0000:1b:00.0"
    (card / "drm/card1").mkdir(parents=True)
    (card / "drm/card1/dev").write_text("226:1\n", "ascii")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text("Character devices:\n195 nvidia\n237 nvidia-uvm\n")
    done = subprocess.run(
        [sys.executable, "-c", SCANS, tmp_path], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == f"raised {errno.EMFILE}"
