"""What fails of the hardware and its driver, and what happens then; named as the design does."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf", "cc")

SLICES = (
    "mig uuid=MIG-1 name=X_MIG_3g.40gb gi=2 ci=0 memory=42412802048",
    "mig uuid=MIG-2 name=X_MIG_1g.10gb gi=9 ci=0 memory=10468982784",
)


def problem(agent):
    problems = agent.call("GetInventory")["problems"]
    return next((one for one in problems if one["provider"] == "nvidia"), None)


def prober_of(agent):
    """Give the pids of the probers that the agent's supervisor has."""
    task = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children")
    (supervisor,) = task.read_text("ascii").split()
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text("ascii").split()
    return [p for p in children if Path(f"/proc/{p}/comm").read_text("ascii") == "xce-prober\n"]


def refusal(refused, agent, **ask):
    with pytest.raises(refused) as caught:
        agent.call("Prepare", **ask)
    return caught.value.code, caught.value.error_class


def test_a_prober_hangs_or_dies(driver, gpu, in_job, refused, eventually):
    """Off the path: the suspect is unhealthy and is not asked again; nobody else is delayed."""
    agent = driver.running
    agent.keys = "library_seconds = 2"
    sound, sick = gpu("1B", "GPU-a", 0), gpu("43", "GPU-b", 1)
    driver.start(sound, sick)
    assert all(one["healthy"] for one in driver.cards().values())
    driver.say(sound, f"{sick} hang=uuid")
    meanwhile = 0
    until = time.monotonic() + 60
    while driver.cards()["GPU-b"]["healthy"]:
        agent.call("Prepare", job="1", instances=["GPU-a"])
        agent.call("Release", job="1")
        meanwhile += 1
        assert time.monotonic() < until
    assert meanwhile > 1  # it did not wait for the library, which had two seconds
    assert "hung a prober" in driver.cards()["GPU-b"]["reason"]
    assert driver.cards()["GPU-a"]["healthy"]
    assert refusal(refused, agent, job="1", instances=["GPU-b"]) == ("unhealthy", "node")
    # It is left alone, though it would hang again: the other card's news are heard.
    driver.say(gpu("1B", "GPU-a", 0, "mig=0 serial=2").replace("9.0", "9.1"), f"{sick} hang=uuid")
    eventually(lambda: driver.cards()["GPU-a"]["attributes"]["compute_capability"] == "9.1")
    for pid in prober_of(agent):
        os.kill(int(pid), signal.SIGKILL)
    answer = agent.call("Prepare", job="1", instances=["GPU-a"])
    assert in_job(answer["cgroup"]["v2"]).opens(driver.node("GPU-a")) == "ENXIO"
    driver.say(sound, f"{sick} hang=uuid")
    eventually(lambda: driver.cards()["GPU-a"]["attributes"]["compute_capability"] == "9.0")
    assert agent.process.poll() is None


def test_one_gpu_falls_off_the_bus(driver, gpu, in_job, refused, eventually):
    """It and what overlaps it turn unhealthy, and all the others go on."""
    agent = driver.running
    sliced = gpu("43", "GPU-b", 1, "mig=1")
    others = (gpu("1B", "GPU-a", 0), gpu("C3", "GPU-c", 2))
    driver.start(others[0], sliced, *SLICES, others[1])
    held = agent.call("Prepare", job="lost", instances=["MIG-1"])
    inside = in_job(held["cgroup"]["v2"])
    driver.say(others[0], f"{sliced} lost=1", *SLICES, others[1])
    eventually(lambda: not driver.cards()["GPU-b"]["healthy"])
    health = {name: one["healthy"] for name, one in driver.cards().items()}
    assert health == {
        "GPU-a": True, "GPU-b": False, "GPU-c": True, "MIG-1": False, "MIG-2": False,
    }  # fmt: skip
    assert driver.cards()["MIG-2"]["reason"] == "GPU is lost"
    assert refusal(refused, agent, job="1", instances=["MIG-2"]) == ("unhealthy", "node")
    answer = agent.call("Prepare", job="1", request="rusage[gpu=2]")
    assert answer["instances"] == ["GPU-a", "GPU-c"]
    # The job that has it keeps its fence, and is released without the card's help.
    assert inside.opens(driver.node("GPU-a")) == "EPERM"
    inside.end()
    assert agent.call("Release", job="lost")["clean"] is True
    driver.say(others[0], sliced, *SLICES, others[1])
    eventually(lambda: all(one["healthy"] for one in driver.cards().values()))
    assert agent.call("Prepare", job="2", instances=["MIG-1"])


def test_the_driver_loads_late(driver, gpu, refused, eventually):
    """What is not known yet is not none: nobody is told that the node has no cards."""
    agent = driver.running
    driver.start("init 9")
    assert problem(agent)["state"] == "not_yet"
    assert {"gpu", "mig"} <= set(problem(agent)["types"])
    for ask in (
        {"request": "rusage[gpu=1]"},
        {"instances": ["GPU-a"]},
        {"request": "rusage[mig=1]"},
    ):
        assert refusal(refused, agent, job="1", **ask) == ("not_ready", "transient")
    # What has nothing to do with it goes on.
    assert agent.call("Prepare", job="2", ports=[{"count": 1}])
    driver.write(gpu("1B", "GPU-a", 0))  # and no event comes: it looks again by itself
    answer = eventually(lambda: agent.call("Prepare", job="1", request="rusage[gpu=1]"))
    assert answer["instances"] == ["GPU-a"]
    assert problem(agent) is None
    # Now all is known, so too many are too many.
    assert refusal(refused, agent, job="3", request="rusage[gpu=2]") == ("never_fits", "job")


def test_a_driver_that_goes_takes_no_card_out_of_the_inventory(driver, gpu, eventually):
    """An inventory with cards is never replaced by one without for want of an answer."""
    agent = driver.running
    driver.start(gpu("1B", "GPU-a", 0))
    answer = agent.call("Prepare", job="1", instances=["GPU-a"])
    driver.say("init 9")
    eventually(lambda: problem(agent))
    assert set(driver.cards()) == {"GPU-a"}
    driver.say("init 999")
    eventually(lambda: problem(agent)["state"] == "error")
    assert set(driver.cards()) == {"GPU-a"}
    assert agent.call("Prepare", job="1", instances=["GPU-a"]) == answer
    assert agent.call("Release", job="1")["clean"] is True


def test_a_library_that_refuses_makes_no_request_impossible(driver, refused):
    """How many cards there are is not known, so it is the node's fault and not the job's."""
    agent = driver.running
    driver.start("init 999")
    assert problem(agent)["state"] == "error"
    assert refusal(refused, agent, job="1", request="rusage[gpu=1]") == ("unhealthy", "node")
