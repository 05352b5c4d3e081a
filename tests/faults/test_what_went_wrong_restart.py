"""What went wrong elsewhere when something was started again."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")

ASK = {"job": "1", "attempt": "a", "request": "rusage[gpu=1]"}


def bindings(agent):
    return {(one["job"], one["attempt"]): one for one in agent.call("ListBindings")["bindings"]}


def paths(agent):
    return {one["id"]: one["devices"][0]["path"] for one in agent.instances("gpu")}


def opens_only(inside, nodes, given):
    for instance, path in nodes.items():
        assert inside.opens(path) == ("ENXIO" if instance in given else "EPERM"), instance
    return True


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_the_same_card_is_given_twice_after_a_restart(agent, refused, end):
    """Slurm 24.11.1, 25.05.1: a controller that had forgotten gave a held card again."""
    held = agent.call("Prepare", **ASK)["instances"]
    getattr(agent, end)()
    agent.start()
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="2", instances=held)
    assert caught.value.code == "busy"
    rest = agent.call("Prepare", job="2", request="rusage[gpu=7]")["instances"]
    assert set(rest).isdisjoint(held)


def test_prepared_survives_a_reboot_and_its_effects_do_not(agent, reboot, in_job):
    """dra-driver#951, ROCm#75, kubernetes#141433: the record said done, and nothing was there.

    After a reboot the same prepare does everything anew: the job is fenced when it is answered.
    """
    before = agent.call("Prepare", **ASK)
    reboot(agent)
    assert bindings(agent) == {}
    after = agent.call("Prepare", **ASK)
    assert after["generation"] != before["generation"]
    assert opens_only(in_job(after["cgroup"]["v2"]), paths(agent), after["instances"])


def test_a_restart_is_taken_for_a_reboot(agent, in_job):
    """kubernetes#109595, #125579, #133382: jobs that went on were ended, or given nothing.

    The boot's id tells the one from the other, and not what is or is not there.
    """
    answer = agent.call("Prepare", **ASK)
    inside = in_job(answer["cgroup"]["v2"])
    for _ in range(3):
        agent.kill()
        agent.start()
        assert bindings(agent)["1", "a"]["state"] == "bound"
        assert bindings(agent)["1", "a"]["populated"] is True
        assert opens_only(inside, paths(agent), answer["instances"])


def test_a_restart_between_prepare_and_start_drops_what_was_prepared(agent, in_job):
    """dranet#89, #232: what was prepared was in memory only, and then pruned as not running."""
    answer = agent.call("Prepare", **ASK)
    agent.kill()
    agent.start()
    inside = in_job(answer["cgroup"]["v2"])  # the job starts only now
    assert opens_only(inside, paths(agent), answer["instances"])
    assert agent.call("GetBinding", job="1")["binding"]["env"] == answer["env"]


@pytest.mark.needs("cc")
def test_a_restart_before_the_first_fingerprint_starts_jobs_without_devices(
    driver, gpu, refused, in_job, eventually
):
    """nomad#9473, nomad-device-nvidia#3: the list was empty as yet, and the job got none of it."""
    agent = driver.running
    cards = (gpu("1B", "GPU-a", 0), gpu("43", "GPU-b", 1))
    driver.start(*cards)
    answer = agent.call("Prepare", job="1", attempt="a", instances=["GPU-a"])
    inside = in_job(answer["cgroup"]["v2"])
    agent.kill()
    driver.write("init 9")
    agent.start("cpu-only")
    # What was answered before is in the ledger, with all that the job needs.
    assert agent.call("Prepare", job="1", attempt="a", instances=["GPU-a"]) == answer
    # What is new waits; it is not told that there is nothing, nor bound to nothing.
    for ask in ({"instances": ["GPU-b"]}, {"request": "rusage[gpu=1]"}):
        with pytest.raises(refused) as caught:
            agent.call("Prepare", job="2", **ask)
        assert caught.value.code == "not_ready"
    driver.write(*cards)
    later = eventually(lambda: agent.call("Prepare", job="2", request="rusage[gpu=1]"))
    assert later["instances"] == ["GPU-b"]  # and the held one is known as held
    assert inside.opens(driver.node("GPU-a")) == "ENXIO"
    assert inside.opens(driver.node("GPU-b")) == "EPERM"


def test_a_typo_in_the_configuration_takes_the_jobs_down(agent, in_job):
    """openpbs#2696, #2628: a misspelt key, and the node was offline or its jobs held for ever.

    The start is refused with what is wrong; the jobs go on as they are, fenced.
    """
    answer = agent.call("Prepare", **ASK)
    inside, nodes = in_job(answer["cgroup"]["v2"]), paths(agent)
    agent.stop()
    good = agent.config.read_text("utf-8")
    agent.config.write_text(good.replace("cgroup_root", "cgroup_rot"), "utf-8")
    refused = agent.refused_start("--simulate", "dgx-h100")
    assert refused.returncode == 78
    assert "cgroup_rot" in refused.stderr
    assert opens_only(inside, nodes, answer["instances"])
    agent.start()
    assert bindings(agent)["1", "a"]["state"] == "bound"
    assert opens_only(inside, nodes, answer["instances"])
