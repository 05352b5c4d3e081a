"""Generations: a prepare is stale only if one of *its* instances changed since."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")

A100 = "dgx-a100-mig"


def cards(agent):
    return [one["id"] for one in agent.instances("gpu")]


def generation(agent):
    return agent.call("GetInventory")["generation"]


def test_a_change_of_another_instance_makes_nothing_stale(agent, refused):
    changed, other, *_ = cards(agent)
    before = generation(agent)
    agent.call("Drain", id=changed, reason="fan fault")
    agent.call("Undrain", id=changed)
    assert generation(agent) != before
    assert agent.call("Prepare", job="1", instances=[other], generation=before)
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="2", instances=[changed], generation=before)
    assert (caught.value.code, caught.value.error_class) == ("stale", "transient")
    assert caught.value.details["instance"] == changed
    # Who reads the inventory again, as the message says, is served.
    assert agent.call("Prepare", job="2", instances=[changed], generation=generation(agent))


def test_one_changed_instance_of_several_is_enough(agent, refused):
    first, second, third, *_ = cards(agent)
    before = generation(agent)
    agent.call("Drain", id=second, reason="x")
    agent.call("Undrain", id=second)
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="1", instances=[first, second, third], generation=before)
    assert caught.value.code == "stale"
    assert agent.call("ListBindings")["bindings"] == []


def test_what_others_hold_makes_nothing_stale(agent):
    """Who holds what is no part of the generation."""
    first, second, *_ = cards(agent)
    before = generation(agent)
    agent.call("Prepare", job="1", instances=[first])
    agent.call("Prepare", job="2", instances=[second], generation=before)
    agent.call("Release", job="1")
    agent.call("Prepare", job="3", instances=[first], generation=before)
    assert generation(agent) == before


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_generation_is_good_over_a_restart_that_changes_nothing(agent, end):
    first, *_ = cards(agent)
    before = generation(agent)
    getattr(agent, end)()
    agent.start()
    assert generation(agent) == before
    assert agent.call("Prepare", job="1", instances=[first], generation=before)


def test_a_change_before_a_crash_is_remembered_after_it(agent, refused):
    changed, other, *_ = cards(agent)
    before = generation(agent)
    agent.call("Drain", id=changed, reason="x")
    agent.call("Undrain", id=changed)
    now = generation(agent)
    agent.kill()
    agent.start()
    assert generation(agent) == now
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="1", instances=[changed], generation=before)
    assert caught.value.code == "stale"
    assert agent.call("Prepare", job="2", instances=[other], generation=before)


def test_hardware_that_was_changed_while_the_agent_was_away_is_stale(agent, refused):
    """The cards are taken out, and the same ones put in again: they have changed all the same."""
    first, *_ = cards(agent)
    before = generation(agent)
    agent.stop()
    agent.start(A100)
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="1", instances=[first], generation=before)
    assert caught.value.code == "unknown_instance"
    agent.stop()
    agent.start()
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="1", instances=[first], generation=before)
    assert caught.value.code == "stale"
    # Without a generation the caller takes what is there now.
    assert agent.call("Prepare", job="1", instances=[first])["instances"] == [first]


@pytest.mark.needs("cc")
def test_a_card_that_changed_is_stale_while_the_agent_runs(driver, gpu, refused, eventually):
    agent = driver.running
    driver.start(gpu("1B", "GPU-a", 0), gpu("43", "GPU-b", 1))
    before = generation(agent)
    assert set(driver.cards()) == {"GPU-a", "GPU-b"}
    driver.say(gpu("1B", "GPU-a", 0), gpu("43", "GPU-b", 1, "mig=0 serial=7").replace("9.0", "9.1"))
    eventually(lambda: driver.cards()["GPU-b"]["attributes"]["compute_capability"] == "9.1")
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="1", instances=["GPU-b"], generation=before)
    assert caught.value.code == "stale"
    assert agent.call("Prepare", job="2", instances=["GPU-a"], generation=before)


def test_a_retry_is_answered_whatever_has_changed_since(agent):
    """It is bound already; that its card changed since is no reason to deny the answer."""
    first, *_ = cards(agent)
    ask = {"job": "1", "attempt": "a", "instances": [first], "generation": generation(agent)}
    answer = agent.call("Prepare", **ask)
    agent.call("Drain", id=first, reason="x")
    agent.call("Undrain", id=first)
    assert agent.call("Prepare", **ask) == answer
    agent.kill()
    agent.start()
    assert agent.call("Prepare", **ask) == answer


def test_a_generation_goes_on_over_a_reboot_and_an_older_one_is_judged_by_its_instances(
    agent, refused, reboot
):
    changed, other, *_ = cards(agent)
    before = generation(agent)
    agent.call("Drain", id=changed, reason="x")
    agent.call("Undrain", id=changed)
    drained = generation(agent)
    reboot(agent)
    after = generation(agent)
    assert after.partition(":")[0] != before.partition(":")[0]
    assert int(after.partition(":")[2]) >= int(drained.partition(":")[2])
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="1", instances=[changed], generation=before)
    assert caught.value.code == "stale"
    assert agent.call("Prepare", job="2", instances=[other], generation=before)


def test_a_generation_that_this_node_never_told_is_stale(steady, refused):
    boot, _, number = generation(steady).partition(":")
    first, *_ = cards(steady)
    for later in (int(number) + 1, 2**31, 2**63, 10**18):
        with pytest.raises(refused) as caught:
            steady.call("Prepare", job="1", instances=[first], generation=f"{boot}:{later}")
        assert caught.value.code in ("stale", "bad_request"), later
    assert steady.call("ListBindings")["bindings"] == []


@pytest.mark.parametrize("text", ["", ":", "boot:", ":1", "boot:-1", "boot:1.5", "boot:1:x", "1"])
def test_what_is_no_generation_is_told(steady, refused, text):
    with pytest.raises(refused) as caught:
        steady.call("Prepare", job="1", generation=text)
    assert caught.value.code == "bad_request"
