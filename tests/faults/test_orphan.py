"""Orphans: a worker that vanishes, comes back, is one of two, or lies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from xce_nodeagent.binding.reconcile import reconcile
from xce_nodeagent.model import wire
from xce_nodeagent.privileged.ops import Unbind

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")

ASK = {"job": "1", "attempt": "a", "request": "rusage[gpu=1]", "ports": [{"count": 1}]}
WORKER = """
import json, socket, sys
with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    client.sendall(sys.argv[2].encode() + b"\\0")
    print("sent", flush=True)
    client.recv(1 << 16)
    print("answered", flush=True)
"""


def message(method, **parameters):
    return json.dumps({"method": f"io.xce.NodeAgent.{method}", "parameters": parameters})


def refs(*keys):
    return [{"job": job, "attempt": attempt} for job, attempt in keys]


def bindings(agent):
    return {(one["job"], one["attempt"]): one for one in agent.call("ListBindings")["bindings"]}


def is_whole(agent, in_job, answer):
    """A process in the job's cgroup opens the job's cards and no others."""
    inside = in_job(answer["cgroup"]["v2"])
    for one in agent.instances("gpu"):
        expected = "ENXIO" if one["id"] in answer["instances"] else "EPERM"
        assert inside.opens(one["devices"][0]["path"]) == expected
    inside.end()
    return True


# ---- a worker that vanishes -----------------------------------------------------------------


def test_a_worker_that_closes_its_connection_while_the_agent_works_leaves_a_binding(
    agent, in_job, binder_of
):
    os.kill(binder_of(agent), signal.SIGSTOP)  # the commit is done, and then it waits
    with socket.socket(socket.AF_UNIX) as worker:
        worker.connect(str(agent.socket))
        worker.sendall(message("Prepare", **ASK).encode() + b"\0")
        until = time.monotonic() + 10
        while ("1", "a") not in bindings(agent):
            assert time.monotonic() < until
    answer = agent.call("Prepare", **ASK)  # it waits for the first one's turn, and a new binder
    assert list(bindings(agent)) == [("1", "a")]
    assert is_whole(agent, in_job, answer)


def test_a_worker_that_is_killed_between_the_commit_and_the_answer_gets_it_later(
    agent, in_job, binder_of
):
    stopped = binder_of(agent)
    os.kill(stopped, signal.SIGSTOP)
    with subprocess.Popen(
        [sys.executable, "-I", "-c", WORKER, str(agent.socket), message("Prepare", **ASK)],
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout.readline() == "sent\n"
        until = time.monotonic() + 10
        while ("1", "a") not in bindings(agent):
            assert time.monotonic() < until
        worker.kill()
        assert worker.stdout.read() == ""
    answer = agent.call("Prepare", **ASK)
    assert is_whole(agent, in_job, answer)
    # The agent does not release by itself, and shows what an admin needs to decide.
    shown = bindings(agent)["1", "a"]
    assert (shown["state"], shown["populated"]) == ("bound", False)
    assert shown["last_seen"] >= shown["since"]


def test_worker_and_agent_that_die_together_after_the_commit_leave_a_whole_binding(
    agent, in_job, binder_of
):
    os.kill(binder_of(agent), signal.SIGSTOP)
    with socket.socket(socket.AF_UNIX) as worker:
        worker.connect(str(agent.socket))
        worker.sendall(message("Prepare", **ASK).encode() + b"\0")
        until = time.monotonic() + 10
        while ("1", "a") not in bindings(agent):
            assert time.monotonic() < until
        agent.kill()
    agent.start()
    assert bindings(agent)["1", "a"]["state"] == "bound"
    assert is_whole(agent, in_job, agent.call("Prepare", **ASK))


def test_a_worker_that_comes_back_keeps_what_it_names_and_frees_the_rest_with_evidence(
    agent, in_job, refused
):
    kept = agent.call("Prepare", **ASK)
    agent.call("Prepare", **ASK | {"job": "2"})
    lost = agent.call("Prepare", **ASK | {"job": "3"})
    alive = in_job(lost["cgroup"]["v2"])
    assert alive.opens("/dev/null") == "open"
    agent.kill()
    agent.start()
    told = agent.call("Reconcile", jobs=refs(("1", "a"), ("9", "z")))
    assert told["kept"] == refs(("1", "a"))
    assert sorted(ref["job"] for ref in told["released"]) == ["2", "3"]
    assert told["unknown"] == refs(("9", "z"))
    assert told["unclean"] == refs(("3", "a"))  # its process is there: quarantined, not killed
    assert alive.process.poll() is None
    assert {key: one["state"] for key, one in bindings(agent).items()} == {
        ("1", "a"): "bound",
        ("3", "a"): "quarantined",
    }
    assert is_whole(agent, in_job, kept)
    with pytest.raises(refused) as caught:  # what was reconciled away was released
        agent.call("Prepare", **ASK | {"job": "2"})
    assert caught.value.code == "stale"


def test_a_reconcile_of_nothing_frees_everything_and_a_second_one_finds_nothing(agent):
    for job in ("1", "2", "3"):
        agent.call("Prepare", **ASK | {"job": job})
    assert len(agent.call("Reconcile", jobs=[])["released"]) == 3
    again = agent.call("Reconcile", jobs=[])
    assert again == {"kept": [], "released": [], "unknown": [], "unclean": []}
    assert not list(agent.home.glob("job-*"))


def test_a_job_that_is_named_without_its_attempt_keeps_every_attempt(agent):
    agent.call("Prepare", **ASK)
    assert agent.call("Reconcile", jobs=[{"job": "1"}])["kept"] == refs(("1", "a"))


def test_a_job_that_is_named_with_another_attempt_is_not_kept(agent):
    agent.call("Prepare", **ASK)
    told = agent.call("Reconcile", jobs=refs(("1", "b")))
    assert (told["released"], told["unknown"]) == (refs(("1", "a")), refs(("1", "b")))


def test_a_prepare_that_comes_while_it_reconciles_is_younger_than_the_list(node):
    """Also where the job has the name, and no attempt, of one that the list does not have."""

    async def scene():
        for job in ("1", "2"):
            await node.life.prepare(wire.Prepare(job=job, instances=(f"GPU-{job}",)))
        ask = node.books.call

        async def call(request, fds=(), *, meanwhile=None):
            if isinstance(request, Unbind) and request.cgroup.path.endswith("job-1"):
                node.books.call = ask
                await node.life.releases.release(wire.Release(job="2"))
                await node.life.prepare(wire.Prepare(job="2", instances=("GPU-3",)))
            return await ask(request, fds, meanwhile=meanwhile)

        node.books.call = call
        return await reconcile(node.life, wire.Reconcile(jobs=()), node.clock())

    told = asyncio.run(scene())
    assert [ref.job for ref in told.released] == ["1"]
    assert node.held() == {"GPU-3": [("2", "")]}


# ---- two workers ----------------------------------------------------------------------------


def test_two_workers_have_one_truth_and_the_last_to_reconcile_tells_it(agent):
    """A host has one worker: the agent cannot know that a second one has jobs of its own.

    Reconcile is the whole truth of whoever sends it, so the other's jobs are released, and said
    to be. Workers that share a host must share their list, or not reconcile.
    """
    agent.call("Prepare", **ASK | {"job": "of-one"})
    agent.call("Prepare", **ASK | {"job": "of-two"})
    told = agent.call("Reconcile", jobs=refs(("of-one", "a")))
    assert told["released"] == refs(("of-two", "a"))
    # The second one learns of it as soon as it says what it has.
    told = agent.call("Reconcile", jobs=refs(("of-one", "a"), ("of-two", "a")))
    assert told["unknown"] == refs(("of-two", "a"))


def test_two_workers_that_prepare_one_attempt_get_one_binding(agent):
    def both(*asks):
        with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
            answers = []
            for client, ask in zip((one, two), asks, strict=True):
                client.connect(str(agent.socket))
                client.sendall(message("Prepare", **ask).encode() + b"\0")
            for client in (one, two):
                client.settimeout(20)
                data = b""
                while not data.endswith(b"\0"):
                    data += client.recv(1 << 16)
                answers.append(json.loads(data[:-1]))
            return answers

    for number in range(20):
        ask = ASK | {"job": f"same-{number}"}
        one, two = both(ask, ask)
        assert one == two
        assert "error" not in one
        other = both(ASK | {"job": f"d-{number}"}, ASK | {"job": f"d-{number}", "uid": 1})
        assert [answer.get("error") for answer in other].count(None) == 1
        assert {"io.xce.NodeAgent.Conflict"} == {a["error"] for a in other if "error" in a}
        agent.call("Reconcile", jobs=[])
