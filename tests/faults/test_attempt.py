"""Attempts: one run of a job. What was released stays released, whoever asks late."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")

ASK = {"job": "1", "attempt": "a", "request": "rusage[gpu=2]", "ports": [{"count": 1}]}


def is_stale(refused, agent, **ask):
    with pytest.raises(refused) as caught:
        agent.call("Prepare", **ask)
    assert (caught.value.code, caught.value.error_class) == ("stale", "transient")
    return True


def held(agent):
    return [(one["job"], one["attempt"]) for one in agent.call("ListBindings")["bindings"]]


def folders(agent):
    return sorted(path.name for path in agent.home.iterdir() if path.name.startswith("job-"))


def test_a_late_retry_of_a_released_attempt_is_refused_and_a_requeue_is_accepted(agent, refused):
    agent.call("Prepare", **ASK)
    agent.call("Release", job="1", attempt="a")
    assert is_stale(refused, agent, **ASK)
    assert held(agent) == []
    assert folders(agent) == []
    assert agent.call("Prepare", **ASK | {"attempt": "b"})["attempt"] == "b"
    assert is_stale(refused, agent, **ASK)
    assert held(agent) == [("1", "b")]


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_it_is_refused_also_after_a_restart(agent, refused, end):
    agent.call("Prepare", **ASK)
    agent.call("Release", job="1", attempt="a")
    getattr(agent, end)()
    agent.start()
    assert is_stale(refused, agent, **ASK)
    assert agent.call("Prepare", **ASK | {"attempt": "b"})["attempt"] == "b"


def test_a_crash_right_after_the_answer_of_a_release_forgets_no_attempt(agent, refused):
    """The outcome is recorded after the answer; the intent was before it."""
    for number in range(6):
        attempt = f"run-{number}"
        agent.call("Prepare", **ASK | {"attempt": attempt})
        assert agent.call("Release", job="1", attempt=attempt)["recorded"] is True
        agent.kill()  # within the half second in which the outcome waits for a commit
        agent.start()
        assert held(agent) == []
        assert folders(agent) == []
        for past in range(number + 1):
            assert is_stale(refused, agent, **ASK | {"attempt": f"run-{past}"})


def test_a_late_release_of_a_former_attempt_leaves_the_new_one_alone(agent):
    agent.call("Prepare", **ASK)
    agent.call("Release", job="1", attempt="a")
    agent.call("Prepare", **ASK | {"attempt": "b"})
    late = agent.call("Release", job="1", attempt="a")
    assert (late["released"], late["known"]) == (True, False)
    assert held(agent) == [("1", "b")]


def test_a_requeue_while_the_former_run_is_bound_does_not_share_its_cgroup(agent, refused):
    agent.call("Prepare", **ASK)
    with pytest.raises(refused) as caught:
        agent.call("Prepare", **ASK | {"attempt": "b"})
    assert caught.value.code == "conflict"
    assert held(agent) == [("1", "a")]


def test_a_requeue_while_something_is_left_over_waits_for_it(agent, refused, in_job, eventually):
    answer = agent.call("Prepare", **ASK)
    left = in_job(answer["cgroup"]["v2"])
    assert left.opens("/dev/null") == "open"
    assert agent.call("Release", job="1", attempt="a")["clean"] is False
    for attempt in ("a", "b"):
        with pytest.raises(refused) as caught:
            agent.call("Prepare", **ASK | {"attempt": attempt})
        assert (caught.value.code, caught.value.error_class) == ("busy", "transient")
        assert {"job": "1", "attempt": "a"} in caught.value.details["holders"]
    left.end()
    again = eventually(lambda: agent.call("Prepare", **ASK | {"attempt": "b"}))
    assert again["attempt"] == "b"
    assert is_stale(refused, agent, **ASK)


def test_a_caller_without_an_attempt_is_answered_as_one_and_gives_up_the_protection(agent):
    """While it is bound the same ask is the same run; after a release nobody can see it is late."""
    ask = {key: value for key, value in ASK.items() if key != "attempt"}
    first = agent.call("Prepare", **ask)
    assert agent.call("Prepare", **ask) == first
    agent.kill()
    agent.start()
    assert agent.call("Prepare", **ask) == first
    agent.call("Release", job="1")
    assert agent.call("Prepare", **ask)["attempt"] == ""  # a late retry binds again
    assert held(agent) == [("1", "")]
    assert agent.call("Release", job="1")["known"] is True


def test_an_empty_attempt_is_no_attempt(agent):
    ask = {key: value for key, value in ASK.items() if key != "attempt"}
    first = agent.call("Prepare", **ask)
    assert agent.call("Prepare", **ask | {"attempt": ""}) == first
    assert agent.call("Release", job="1", attempt="")["known"] is True


def test_a_release_without_an_attempt_ends_every_run_of_the_job(agent, refused):
    for name in ("a", "b"):
        (agent.other / name).mkdir()
        agent.call("Prepare", job="1", attempt=name, cgroup=str(agent.other / name))
    assert held(agent) == [("1", "a"), ("1", "b")]
    assert agent.call("Release", job="1")["clean"] is True
    assert held(agent) == []
    for name in ("a", "b"):
        assert is_stale(refused, agent, job="1", attempt=name, cgroup=str(agent.other / name))


@pytest.mark.parametrize(
    "other",
    [
        {"uid": 1},
        {"request": "rusage[gpu=3]"},
        {"request": "rusage[gpu=1]"},
        {"ports": [{"count": 2}]},
        {"ports": []},
        {"request": None, "instances": "the same"},
    ],
    ids=str,
)
def test_one_attempt_that_asks_for_different_things_is_a_conflict(steady, refused, other, request):
    first = ASK | {"attempt": f"{abs(hash(request.node.name))}"}
    answer = steady.call("Prepare", **first)
    try:
        if other.get("instances"):
            other = other | {"instances": [i for i in answer["instances"] if i != "ports"]}
        ask = {key: value for key, value in (first | other).items() if value is not None}
        with pytest.raises(refused) as caught:
            steady.call("Prepare", **ask)
        assert (caught.value.code, caught.value.error_class) == ("conflict", "caller")
        assert steady.call("Prepare", **first) == answer
    finally:
        steady.call("Release", job="1")


def test_an_attempt_whose_prepare_failed_may_be_asked_for_again(agent, refused):
    wish = next(one["id"] for one in agent.instances("gpu"))
    agent.call("Drain", id=wish, reason="x")
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="1", attempt="a", instances=[wish])
    assert caught.value.code == "drained"
    agent.call("Undrain", id=wish)
    assert agent.call("Prepare", job="1", attempt="a", instances=[wish])["instances"] == [wish]


def test_an_attempt_that_a_reboot_ended_may_be_asked_for_again(agent, reboot):
    """It was not released: its run is lost, and whoever restarts it on this host may."""
    agent.call("Prepare", **ASK)
    reboot(agent)
    assert held(agent) == []
    assert agent.call("Prepare", **ASK)["attempt"] == "a"


def test_the_attempts_of_one_job_are_no_other_jobs(agent, refused):
    agent.call("Prepare", **ASK)
    agent.call("Release", job="1", attempt="a")
    assert agent.call("Prepare", **ASK | {"job": "2"})["job"] == "2"
    assert is_stale(refused, agent, **ASK)
