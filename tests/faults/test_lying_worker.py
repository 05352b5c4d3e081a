"""A worker that lies: what it says is checked, and what cannot be checked harms nobody else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")

ASK = {"job": "1", "attempt": "a", "request": "rusage[gpu=1]", "ports": [{"count": 1}]}
AS_OTHER = """
import os, sys; os.setgroups([]); os.setgid(54321); os.setuid(54321)
import socket
with socket.socket(socket.AF_UNIX) as client:
    client.connect(sys.argv[1])
    client.sendall(sys.argv[2].encode() + b"\\0")
    sys.stdout.write(client.recv(1 << 16)[:-1].decode())
"""


def message(method, **parameters):
    return json.dumps({"method": f"io.xce.NodeAgent.{method}", "parameters": parameters})


def refs(*keys):
    return [{"job": job, "attempt": attempt} for job, attempt in keys]


def bindings(agent):
    return {(one["job"], one["attempt"]): one for one in agent.call("ListBindings")["bindings"]}


def test_a_prepare_for_another_jobs_cgroup_is_refused(agent, refused, in_job):
    mine = agent.other / "mine"
    (mine / "below").mkdir(parents=True)
    answer = agent.call("Prepare", **ASK, cgroup=str(mine))
    own = agent.call("Prepare", **ASK | {"job": "2"})["cgroup"]["v2"]
    for path, code in (
        (mine, "conflict"),
        (mine / "below", "bad_cgroup"),
        (agent.other, "bad_cgroup"),
        (own, "bad_cgroup"),  # the agent's own are not among those that a caller may name
        (agent.home, "bad_cgroup"),
    ):
        with pytest.raises(refused) as caught:
            agent.call(
                "Prepare", job="thief", request="rusage[gpu=1]", cgroup=str(path), adopt=True
            )
        assert caught.value.code == code, path
        assert caught.value.error_class == "caller"
    assert sorted(bindings(agent)) == [("1", "a"), ("2", "a")]
    inside = in_job(str(mine))
    given = {one["id"]: one["devices"][0]["path"] for one in agent.instances("gpu")}
    for instance, path in given.items():
        assert inside.opens(path) == ("ENXIO" if instance in answer["instances"] else "EPERM")


def test_a_release_by_whoever_may_prepare_is_believed_and_by_others_is_not(agent):
    """Who may prepare is one trust: its releases are taken at their word, whichever job they name.

    Everybody else is refused before the job is even looked up.
    """
    agent.call("Prepare", **ASK)
    for ask in (
        message("Release", job="1", attempt="a"),
        message("Release", job="1"),
        message("Release", job="of-nobody"),
        message("Reconcile", jobs=[]),
        message("Prepare", **ASK | {"attempt": "b"}),
    ):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", AS_OTHER, str(agent.socket), ask],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(done.stdout)["parameters"]["code"] == "not_permitted"
    assert list(bindings(agent)) == [("1", "a")]
    assert agent.call("Release", job="1")["known"] is True  # root, which did not prepare it


@pytest.mark.parametrize("uid", [-1, 2**32 - 1, 2**32, 2**64, "root", 1.5, [0]])
def test_a_uid_that_no_user_can_have_is_refused(steady, refused, uid):
    with pytest.raises(refused) as caught:
        steady.call("Prepare", job="1", uid=uid)
    assert caught.value.code == "bad_request"
    assert bindings(steady) == {}


def test_thousands_of_names_are_read_and_do_not_harm(agent):
    agent.call("Prepare", **ASK)
    many = [{"job": f"never-{number}", "attempt": "x"} for number in range(5000)]
    told = agent.call("Reconcile", jobs=[*many, *refs(("1", "a")), *refs(("1", "a"))])
    assert told["kept"] == refs(("1", "a"))
    assert told["released"] == []
    assert len(told["unknown"]) == 5000


def test_a_list_that_is_too_long_is_refused_whole(agent, refused):
    agent.call("Prepare", **ASK)
    many = [{"job": "n" * 100, "attempt": str(number)} for number in range(3000)]
    with pytest.raises((refused, OSError)):
        agent.call("Reconcile", jobs=many)
    assert list(bindings(agent)) == [("1", "a")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"job": "a b"},
        {"job": ""},
        {"job": "x" * 129},
        {"job": "../1"},
        {"job": "1", "attempt": "a b"},
        {"job": "1", "attempt": "x" * 129},
        {"job": "1", "attempt": "a\n"},
        {"job": 1},
        {"job": "1", "uid": 0},
        {},
        "1",
    ],
    ids=str,
)
def test_one_name_that_is_none_releases_nothing(agent, refused, wrong):
    """A list with a fault in it is not the whole truth: nothing is released by it."""
    agent.call("Prepare", **ASK)
    with pytest.raises(refused) as caught:
        agent.call("Reconcile", jobs=[wrong, {"job": "other"}])
    assert caught.value.code in ("bad_job_id", "bad_request")
    assert list(bindings(agent)) == [("1", "a")]


def test_a_reconcile_without_a_list_releases_nothing(agent, refused):
    agent.call("Prepare", **ASK)
    for parameters in ({}, {"jobs": None}, {"jobs": "1"}, {"jobs": {"1": "a"}}):
        with pytest.raises(refused):
            agent.call("Reconcile", **parameters)
    assert list(bindings(agent)) == [("1", "a")]
