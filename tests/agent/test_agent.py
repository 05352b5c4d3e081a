"""The whole agent, for real: its processes, its fence, its answers, its death and its return."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.needs("root", "cgroup1", "cgroup2", "bpf"), pytest.mark.timeout(120)]


def cgroup_of(answer):
    return next(iter(answer["cgroup"].values()))


def nodes(agent):
    return {i["id"]: i["devices"][0]["path"] for i in agent.instances("gpu")}


def test_a_job_opens_what_it_was_given_and_nothing_else(agent, in_job, backend):
    answer = agent.call("Prepare", job="1", request="rusage[gpu=2]", ports=[{"count": 2}])
    assert answer["enforcement"] == backend
    inside = in_job(cgroup_of(answer))
    for instance, path in nodes(agent).items():
        expected = "ENXIO" if instance in answer["instances"] else "EPERM"
        assert inside.opens(path) == expected, instance
    assert inside.opens("/dev/null") == "open"


def test_a_job_without_cards_opens_none_and_a_process_outside_is_not_touched(agent, in_job, mount):
    inside = in_job(cgroup_of(agent.call("Prepare", job="1")))
    outside = in_job(str(agent.other))
    for path in nodes(agent).values():
        assert inside.opens(path) == "EPERM"
        assert outside.opens(path) == "ENXIO"


def test_the_fence_holds_over_a_kill_and_the_binding_is_known_afterwards(agent, in_job):
    answer = agent.call("Prepare", job="1", attempt="a", request="rusage[gpu=1]")
    inside = in_job(cgroup_of(answer))
    given = nodes(agent)[answer["instances"][0]]
    other = next(p for i, p in nodes(agent).items() if i not in answer["instances"])
    agent.kill()
    assert (inside.opens(given), inside.opens(other)) == ("ENXIO", "EPERM")
    agent.start()
    assert (inside.opens(given), inside.opens(other)) == ("ENXIO", "EPERM")
    again = agent.call("Prepare", job="1", attempt="a", request="rusage[gpu=1]")
    assert again == answer
    inside.end()
    released = agent.call("Release", job="1", attempt="a")
    assert (released["released"], released["clean"]) == (True, True)
    assert not Path(cgroup_of(answer)).exists()


def test_nothing_is_left_behind(agent):
    agent.call("Prepare", job="1", request="rusage[gpu=1]")
    agent.call("Release", job="1")
    assert agent.stop() == 0
    assert not agent.home.exists()
    assert not agent.devices.exists()
    assert not agent.socket.exists()


def test_what_outlives_its_job_is_quarantined_and_freed_when_it_has_gone(agent, in_job, refused):
    answer = agent.call("Prepare", job="1", attempt="a", request="rusage[gpu=1]")
    inside = in_job(cgroup_of(answer))
    given = nodes(agent)[answer["instances"][0]]
    assert inside.opens(given) == "ENXIO"
    released = agent.call("Release", job="1", attempt="a")
    assert released["clean"] is False
    assert released["quarantined"] == answer["instances"]
    assert [h["pid"] for h in released["holders"]] == [inside.process.pid]
    assert inside.opens(given) == "EPERM"
    with pytest.raises(refused, match="Busy"):
        agent.call("Prepare", job="2", instances=answer["instances"])
    inside.end()
    until = time.monotonic() + 15
    while time.monotonic() < until:
        with contextlib.suppress(refused):
            agent.call("Prepare", job="2", instances=answer["instances"])
            break
        time.sleep(0.1)  # the agent looks by itself, every two seconds
    assert [b["job"] for b in agent.call("ListBindings")["bindings"]] == ["2"]


def test_growing_opens_and_shrinking_closes(agent, in_job):
    first, second = list(nodes(agent).items())[:2]
    answer = agent.call("Prepare", job="1", attempt="a", instances=[first[0]])
    inside = in_job(cgroup_of(answer))
    assert (inside.opens(first[1]), inside.opens(second[1])) == ("ENXIO", "EPERM")
    agent.call("Prepare", job="1", attempt="a", instances=[second[0]], add=True)
    assert (inside.opens(first[1]), inside.opens(second[1])) == ("ENXIO", "ENXIO")
    agent.call("Release", job="1", attempt="a", instances=[first[0]])
    assert (inside.opens(first[1]), inside.opens(second[1])) == ("EPERM", "ENXIO")


def test_a_cgroup_of_the_callers_is_bound_and_left_to_it(agent, in_job):
    own = agent.other / "mine"
    own.mkdir()
    answer = agent.call("Prepare", job="1", request="rusage[gpu=1]", cgroup=str(own))
    inside = in_job(str(own))
    given = nodes(agent)[answer["instances"][0]]
    assert inside.opens(given) == "ENXIO"
    inside.end()
    assert agent.call("Release", job="1")["clean"] is True
    assert own.exists()
    assert in_job(str(own)).opens(given) == "EPERM"


AS_USER = """
import os, sys
os.setgroups([]); os.setgid({uid}); os.setuid({uid})
import socket
s = socket.socket(socket.AF_UNIX); s.connect({path!r})
s.sendall({message!r})
data = b""
while not data.endswith(b"\\0"):
    data += s.recv(1 << 16)
sys.stdout.buffer.write(data[:-1])
"""


def as_user(agent, user, method, **parameters):
    message = {"method": f"io.xce.NodeAgent.{method}", "parameters": parameters}
    code = AS_USER.format(
        uid=user, path=str(agent.socket), message=json.dumps(message).encode() + b"\0"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_who_may_do_what(agent):
    """Anyone reads; only who is configured prepares; a job's user sees its environment."""
    assert "parameters" in as_user(agent, 54321, "GetInventory")
    refused = as_user(agent, 54321, "Prepare", job="1")
    assert refused["error"] == "io.xce.NodeAgent.NotPermitted"
    assert refused["parameters"]["class"] == "denied"
    for method, ask in (
        ("Release", {"job": "1"}),
        ("Reconcile", {"jobs": []}),
        ("Drain", {"id": "ports", "reason": "x"}),
    ):
        assert as_user(agent, 54321, method, **ask)["error"].endswith("NotPermitted")
    assert "error" not in as_user(agent, 12345, "Prepare", job="1", uid=54321)
    seen = as_user(agent, 54321, "GetBinding", job="1")["parameters"]["binding"]
    assert seen["env"]["XCE_JOB_ID"] == "1"
    stranger = as_user(agent, 54322, "GetBinding", job="1")["parameters"]["binding"]
    assert stranger["env"] == {}
    assert as_user(agent, 54321, "Join", job="1", pid=1)["error"].endswith("NotPermitted")


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_client_that_stalls_or_leaves_hinders_nobody(agent):
    with socket.socket(socket.AF_UNIX) as stalled, socket.socket(socket.AF_UNIX) as leaver:
        stalled.connect(str(agent.socket))
        stalled.sendall(b'{"method":"io.xce.NodeAgent.Prep')
        leaver.connect(str(agent.socket))
        leaver.sendall(b'{"method":"io.xce.NodeAgent.Prepare","parameters":{"job":"9"')
        leaver.close()
        assert agent.call("Prepare", job="1")["job"] == "1"
    assert [b["job"] for b in agent.call("ListBindings")["bindings"]] == ["1"]


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_client_that_leaves_after_the_commit_leaves_a_binding(agent):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(agent.socket))
        ask = {"method": "io.xce.NodeAgent.Prepare", "parameters": {"job": "1", "attempt": "a"}}
        client.sendall(json.dumps(ask).encode() + b"\0")
    # It may have left before its message was read; asking again is right in either case.
    assert agent.call("Prepare", job="1", attempt="a")["attempt"] == "a"
    assert len(agent.call("ListBindings")["bindings"]) == 1


def _status(pid: str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_the_agent_has_no_privilege_and_its_helpers_only_theirs(agent):
    """What /proc says: uids, capabilities, no_new_privs, a filter, for every process."""
    assert agent.process is not None
    found: dict[str, dict[str, str]] = {}
    children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children")
    supervisor = children.read_text("ascii").split()[0]
    below = Path(f"/proc/{supervisor}/task/{supervisor}/children")
    # The agent serves before the spares are there, which is as it should be.
    until = time.monotonic() + 30
    while len(helpers := below.read_text("ascii").split()) < 6 and time.monotonic() < until:
        time.sleep(0.01)
    for pid in (str(agent.process.pid), *helpers):
        status = _status(pid)
        # A spare that starts at this moment gives up what it has, one after another.
        until = time.monotonic() + 10
        while status["CapBnd"].strip("0") and time.monotonic() < until:
            time.sleep(0.01)
            status = _status(pid)
        found[status["Name"]] = status
    assert {"xce-binder", "xce-prober", "xce-witness"} <= set(found)
    assert len(helpers) >= 6  # of each role the one that works, and a spare
    for name, status in found.items():
        assert status["NoNewPrivs"] == "1", name
        assert status["Seccomp"] == "2", name
        assert status["CapBnd"].strip("0") == "", name
        uid = int(status["Uid"].split()[0])
        assert (uid == 0) == (name == "xce-binder"), name
    agent_status = next(s for n, s in found.items() if not n.startswith("xce-"))
    assert agent_status["CapEff"].strip("0") == ""
    assert agent_status["CapPrm"].strip("0") == ""


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_binder_that_is_stopped_is_replaced_and_the_prepare_succeeds(agent, in_job):
    agent.call("Prepare", job="1", request="rusage[gpu=1]")
    binder = next(
        int(p.name)
        for p in Path("/proc").iterdir()
        if p.name.isdigit() and _holds_lock(p, agent.folder)
    )
    os.kill(binder, signal.SIGSTOP)
    answer = agent.call("Prepare", job="2", request="rusage[gpu=1]")
    inside = in_job(cgroup_of(answer))
    for instance, path in nodes(agent).items():
        expected = "ENXIO" if instance in answer["instances"] else "EPERM"
        assert inside.opens(path) == expected
    assert not Path(f"/proc/{binder}").exists()
    checks = {check["name"]: check for check in agent.call("Doctor")["checks"]}
    assert "binder replaced 1 times" in checks["helpers"]["text"]


def _holds_lock(process: Path, folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(
            os.readlink(fd) == str(folder / "run-helpers" / "binder.lock")
            for fd in (process / "fd").iterdir()
        )
    return False


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_foreign_listener_makes_its_port_unhealthy(agent, refused):
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 20_001))
        foreign.listen()
        with pytest.raises(refused, match="Unhealthy"):
            agent.call("Prepare", job="1", ports=[{"port": 20_001}])
        answer = agent.call("Prepare", job="1", ports=[{"count": 4, "name": "http"}])
        assert 20_001 not in [port["port"] for port in answer["ports"]]


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_drained_instance_is_not_given_and_is_known_as_drained_after_a_restart(agent, refused):
    first = next(iter(nodes(agent)))
    before = agent.call("GetInventory")
    agent.call("Drain", id=first, reason="fan fault")
    agent.kill()
    agent.start()
    after = agent.call("GetInventory")
    drained = next(i for i in after["instances"] if i["id"] == first)
    assert (drained["drained"], drained["reason"]) == (True, "fan fault")
    assert after["generation"] != before["generation"]
    with pytest.raises(refused, match="Drained"):
        agent.call("Prepare", job="1", instances=[first])
    agent.call("Undrain", id=first)
    agent.call("Prepare", job="1", instances=[first])


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_generation_and_digest_do_not_change_by_a_prepare(agent):
    before = agent.call("GetInventory")
    agent.call("Prepare", job="1", request="rusage[gpu=3:nic=1]")
    after = agent.call("GetInventory")
    assert (after["generation"], after["digest"]) == (before["generation"], before["digest"])
    held = [i["id"] for i in after["instances"] if i["held_by"]]
    assert len(held) == 4


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_join_moves_the_caller_and_exec_runs_bound(agent):
    path = nodes(agent)
    script = (
        "import os,sys\n"
        "for p in sys.argv[1:]:\n"
        "    try: os.open(p, os.O_RDWR)\n"
        "    except OSError as e: print(e.errno)\n"
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "xce_nodeagent", "exec", "--request", "rusage[gpu=1]", "--",
            sys.executable, "-I", "-S", "-c", script, *path.values(),
        ],
        env=agent.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["1"] * 7 + ["6"]  # EPERM, and one ENXIO
    assert agent.call("ListBindings")["bindings"] == []


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_port_that_still_listens_is_told_with_its_process(agent):
    answer = agent.call("Prepare", job="1", ports=[{"count": 1, "name": "http"}])
    port = answer["ports"][0]["port"]
    with socket.socket() as late:
        late.bind(("127.0.0.1", port))
        late.listen()
        released = agent.call("Release", job="1")
        assert released["quarantined"] == ["ports"]
        assert [h["pid"] for h in released["holders"]] == [os.getpid()]
        assert agent.call("Prepare", job="2", ports=[{"count": 1}])["ports"][0]["port"] != port


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_the_inventory_is_reported_to_a_file_and_again_when_it_changes(agent):
    agent.stop()
    reports = agent.folder / "reports"
    reports.mkdir()
    reports.chmod(0o777)
    path = reports / "inventory.json"
    agent.extra = f'[upstream.file]\npath = "{path}"'
    agent.start()
    first = _eventually(lambda: json.loads(path.read_text("utf-8")))
    assert first["generation"] == agent.call("GetInventory")["generation"]
    agent.call("Drain", id=next(iter(nodes(agent))), reason="x")
    now = agent.call("GetInventory")["generation"]
    assert now != first["generation"]
    _eventually(lambda: json.loads(path.read_text("utf-8"))["generation"] == now or None)
    assert [p.name for p in reports.iterdir()] == ["inventory.json"]


def _eventually(look):
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            if (found := look()) is not None:
                return found
        time.sleep(0.02)
    pytest.fail("it did not come to pass")


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_drain_counts_for_the_ports_too(agent, refused):
    agent.call("Drain", id="ports", reason="moving")
    with pytest.raises(refused, match="Drained"):
        agent.call("Prepare", job="1", ports=[{"count": 1}])


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_drained_card_gives_none_of_its_slices(agent, refused):
    agent.stop()
    agent.start("dgx-a100-mig")
    slices = agent.instances("mig")
    card = slices[0]["parent"]
    of_card = [s["id"] for s in slices if s["parent"] == card]
    agent.call("Drain", id=card, reason="fan fault")
    shown = {i["id"]: i for i in agent.call("GetInventory")["instances"]}
    assert all(shown[one]["drained"] for one in of_card)
    assert not all(shown[s["id"]]["drained"] for s in slices)
    with pytest.raises(refused, match="Drained"):
        agent.call("Prepare", job="1", instances=[of_card[0]])
    rest = len(slices) - len(of_card)
    assert len(agent.call("Prepare", job="2", request=f"rusage[mig={rest}]")["instances"]) == rest


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_stranger_on_a_port_is_seen_in_the_inventory(agent):
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 20_500))
        stranger.listen()

        def seen():
            found = agent.call("GetInventory")
            ports = next(i for i in found["instances"] if i["type"] == "ports")
            if ports["attributes"].get("foreign_listeners") == "20500":
                return found
            return None

        assert _eventually(seen)["counters"]["ports"] == {"total": 1000, "healthy": 999}
