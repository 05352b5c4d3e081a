"""What fails, and what happens then: one test for each promise that the design makes of a failure.

Those of the hardware are in test_failure_of_hardware.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")

ASK = {"job": "1", "attempt": "a", "request": "rusage[gpu=2]"}


def nodes(agent):
    return {one["id"]: one["devices"][0]["path"] for one in agent.instances("gpu")}


def bindings(agent):
    return {(one["job"], one["attempt"]): one for one in agent.call("ListBindings")["bindings"]}


def opens_only(inside, paths, given):
    """ENXIO is what the kernel says when the fence lets pass: no driver is behind the node."""
    for instance, path in paths.items():
        assert inside.opens(path) == ("ENXIO" if instance in given else "EPERM"), instance
    return True


def test_the_agent_is_killed_at_any_instruction(agent, in_job):
    """What was acknowledged stands, what was on its way is whole or gone, and no fence opens."""
    seed = secrets.randbits(32)
    chance = random.Random(seed)  # noqa: S311  # it must be repeatable, and is no secret
    held = agent.call("Prepare", job="held", attempt="a", request="rusage[gpu=1]")["instances"]
    paths = nodes(agent)
    inside = in_job(str(agent.home / "job-held"))
    for round_ in range(8):
        what = f"seed {seed}, round {round_}"
        acknowledged: dict[str, list[str] | None] = {}
        stays = threading.Event()
        worker = threading.Thread(target=_work, args=(agent, round_, acknowledged, stays))
        worker.start()
        # Every second round has something to lose, however slow the machine is.
        assert round_ % 2 == 0 or stays.wait(20), what
        until = time.monotonic() + chance.uniform(0.0, 0.15)
        while time.monotonic() < until:
            assert opens_only(inside, paths, held), what
        agent.kill()
        assert opens_only(inside, paths, held), what
        worker.join()
        agent.start()
        assert opens_only(inside, paths, held), what
        found = bindings(agent)
        listed = {job: sorted(one["instances"]) for (job, _), one in found.items()}
        for job, given in {"held": held, **acknowledged}.items():
            expected = None if given is None else sorted(given)
            assert listed.get(job) == expected, f"{what}: {job} was acknowledged"
        assert round_ % 2 == 0 or any(acknowledged.values()), what
        # One call was on its way, and that was of one job.
        assert len(listed.keys() - acknowledged.keys() - {"held"}) <= 1, what
        assert {one["state"] for one in found.values()} == {"bound"}, what
        folders = {path.name for path in agent.home.iterdir() if path.is_dir()}
        assert folders == {f"job-{job}" for job, _ in found}, what
        cards = [card for one in found.values() for card in one["instances"]]
        assert len(cards) == len(set(cards)), what
        for (job, _), one in found.items():
            other = in_job(str(agent.home / f"job-{job}"))
            assert opens_only(other, paths, one["instances"]), what
            other.end()
            if job != "held":
                assert agent.call("Release", job=job)["known"] is True


STAYING = 4
"""Jobs that stay bound at most: with a card each, they leave three for those that do not stay."""


def _work(agent, round_, acknowledged, stays):
    """Prepare and release until the agent has gone; note what each job was last told that it has.

    Every second job stays bound, until there are too many of them. A job whose call is on its way
    is not in `acknowledged`: it was told nothing. `stays` is set when one is that stays.
    """
    staying: list[str] = []

    def prepare(job, cards):
        answer = agent.call("Prepare", job=job, attempt="a", request=f"rusage[gpu={cards}]")
        acknowledged[job] = answer["instances"]

    def release(job):
        del acknowledged[job]
        agent.call("Release", job=job, attempt="a")
        acknowledged[job] = None

    with contextlib.suppress(OSError):
        for number in range(10_000):
            job = f"{round_}-{number}"
            if number % 2 == 0:
                if len(staying) == STAYING:
                    release(staying.pop(0))
                prepare(job, 1)
                staying.append(job)
                stays.set()
            else:
                prepare(job, 3)
                release(job)


def test_the_host_reboots(agent, reboot, in_job):
    """All bindings are closed, and nothing else is touched: not what has their names now."""
    mine = agent.other / "mine"
    mine.mkdir()
    agent.call("Prepare", **ASK, cgroup=str(mine))
    agent.call("Prepare", **ASK | {"job": "2"})
    paths = nodes(agent)
    found: list[str] = []

    def start_again(profile="dgx-h100", start=agent.start):
        # Somebody makes cgroups of the same names before the agent starts, and uses them.
        for path in (mine, agent.home / "job-2"):
            path.mkdir(parents=True, exist_ok=True)
            strangers.append(in_job(str(path)))
            assert strangers[-1].opens("/dev/null") == "open"
        start(profile)

    strangers: list = []
    agent.start = start_again
    reboot(agent)
    assert bindings(agent) == {}
    assert all(one["held_by"] == [] for one in agent.call("GetInventory")["instances"])
    for stranger in strangers:
        assert opens_only(stranger, paths, paths)
    for path in (mine, agent.home / "job-2"):
        found += [name for name in os.listxattr(path) if name.startswith("trusted.xce")]
    assert found == []


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["hangs", "dies"])
def test_a_binder_hangs_or_dies(agent, in_job, binder_of, how):
    """The spare takes over after its exit, and repeats the operation."""
    held = agent.call("Prepare", **ASK)["instances"]
    paths = nodes(agent)
    inside = in_job(str(agent.home / "job-1"))
    for number in range(3):
        binder = binder_of(agent)
        os.kill(binder, how)
        answer = agent.call("Prepare", **ASK | {"job": f"more-{number}"})
        assert binder_of(agent) != binder
        assert not os.path.exists(f"/proc/{binder}")
        other = in_job(answer["cgroup"]["v2"])
        assert opens_only(other, paths, answer["instances"])
        other.end()
        assert opens_only(inside, paths, held)
        assert agent.call("Release", job=f"more-{number}")["clean"] is True


def test_the_worker_dies_or_forgets(agent):
    """Its binding stays as it is; the agent shows it, and releases when it is told to."""
    code = (
        "import json, socket, sys, time\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "s.sendall(sys.argv[2].encode() + b'\\0'); s.recv(1 << 16)\n"
        "print('prepared', flush=True); time.sleep(60)\n"
    )
    ask = json.dumps({"method": "io.xce.NodeAgent.Prepare", "parameters": ASK})
    begun = time.time()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, str(agent.socket), ask], stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout.readline() == b"prepared\n"
        worker.kill()
    shown = bindings(agent)["1", "a"]
    assert (shown["state"], shown["populated"]) == ("bound", False)
    assert begun <= shown["last_seen"] <= time.time()
    told = agent.call("Reconcile", jobs=[{"job": "1", "attempt": "a"}])
    assert told["kept"] == [{"job": "1", "attempt": "a"}]
    assert bindings(agent)["1", "a"]["last_seen"] > shown["last_seen"]
    assert agent.call("Reconcile", jobs=[])["released"] == [{"job": "1", "attempt": "a"}]
    assert bindings(agent) == {}


@pytest.mark.parametrize("named", [True, False], ids=["a caller's", "its own"])
def test_a_jobs_cgroup_vanishes(agent, named):
    """The binding is closed by the replay, with that reason; what it held is free."""
    mine = agent.other / "mine"
    if named:
        mine.mkdir()
    answer = agent.call("Prepare", **ASK, **({"cgroup": str(mine)} if named else {}))
    assert bindings(agent)["1", "a"]["state"] == "bound"
    agent.call("Prepare", job="other")  # its commit takes along what was noted of the first
    os.rmdir(answer["cgroup"]["v2"])
    agent.kill()
    agent.start()
    assert list(bindings(agent)) == [("other", "")]
    assert "cgroup-vanished" in agent.log.read_text("utf-8")
    assert agent.call("Prepare", job="2", instances=answer["instances"])


def test_the_upstream_is_away(agent, eventually):
    """The report is kept and the newest one wins; nothing on a job's path waits for it."""
    agent.stop()
    reports = agent.folder / "reports"
    path = reports / "inventory.json"
    agent.extra = f'[upstream.file]\npath = "{path}"'
    agent.start()
    card = next(iter(nodes(agent)))
    for number in range(5):
        agent.call("Drain", id=card, reason=f"reason {number}")
    assert agent.call("Prepare", **ASK)["instances"]
    told = {check["name"]: check for check in agent.call("Doctor")["checks"]}
    assert any("inventory.json" in check["text"] for check in told.values())
    reports.mkdir()
    reports.chmod(0o777)
    # Nothing changes any more, and it comes all the same.
    report = json.loads(eventually(lambda: path.read_text("utf-8")))
    shown = next(one for one in report["instances"] if one["id"] == card)
    assert shown["reason"] == "reason 4"
    assert report["generation"] == agent.call("GetInventory")["generation"]


@pytest.mark.parametrize("how", ["corrupt", "lost"])
def test_the_ledger_is_corrupt_or_lost(agent, in_job, refused, how):
    """It is moved aside, and made again of what each bound cgroup bears; nothing is given twice."""
    answer = agent.call("Prepare", **ASK)
    paths = nodes(agent)
    inside = in_job(answer["cgroup"]["v2"])
    agent.stop()
    state = agent.folder / "state"
    path = state / "ledger.db"
    if how == "lost":
        for part in state.glob("ledger.db*"):
            part.unlink()
    else:
        path.write_bytes(b"\xff" * path.stat().st_size)
    agent.start()
    assert opens_only(inside, paths, answer["instances"])
    assert list(bindings(agent)) == [("1", "a")]
    if how == "corrupt":
        assert any(b"\xff" * 4096 in part.read_bytes() for part in state.iterdir() if part != path)
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="2", instances=answer["instances"])
    assert caught.value.code == "busy"
    inside.end()
    assert agent.call("Release", job="1", attempt="a")["clean"] is True
    assert agent.call("Prepare", job="2", instances=answer["instances"])


@pytest.mark.parametrize("attempt", [None, "a", "z"])
def test_release_of_something_unknown_or_twice(agent, attempt):
    """An answer, and not an error; also after a restart."""
    named = {} if attempt is None else {"attempt": attempt}
    expected = {"released": True, "clean": True, "known": False}
    assert expected.items() <= agent.call("Release", job="never", **named).items()
    agent.call("Prepare", **ASK)
    assert agent.call("Release", job="1", **named)["known"] is (attempt != "z")
    for _ in range(2):
        assert expected.items() <= agent.call("Release", job="1", attempt="z").items()
        agent.call("Release", job="1")
        assert expected.items() <= agent.call("Release", job="1", **named).items()
        agent.kill()
        agent.start()


def test_a_jobs_processes_outlive_it(agent, in_job, refused, eventually):
    """They are told of, what they held is nobody's, and it is free when they are gone."""
    answer = agent.call("Prepare", **ASK, ports=[{"count": 1}])
    inside = in_job(answer["cgroup"]["v2"])
    assert inside.opens("/dev/null") == "open"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", answer["ports"][0]["port"]))
        listener.listen()
        told = agent.call("Release", job="1", attempt="a")
        assert (told["released"], told["clean"]) == (True, False)
        assert {os.getpid(), inside.process.pid} <= {one["pid"] for one in told["holders"]}
        assert sorted(told["quarantined"]) == sorted(answer["instances"])
        cards = [one for one in answer["instances"] if one != "ports"]
        with pytest.raises(refused) as caught:
            agent.call("Prepare", job="2", instances=cards)
        assert caught.value.code == "busy"
        assert inside.process.poll() is None
    inside.end()
    assert eventually(lambda: agent.call("Prepare", job="2", instances=cards))
