"""What went wrong elsewhere with finding out what there is."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf", "cc")

SLICES = (
    "mig uuid=MIG-1 name=X_MIG_3g.40gb gi=2 ci=0 memory=42412802048",
    "mig uuid=MIG-2 name=X_MIG_1g.10gb gi=9 ci=0 memory=10468982784",
)


def test_a_change_of_slices_makes_the_whole_node_invalid(driver, gpu, refused, eventually):
    """magic_castle#361, deepops#1214: other slices than configured, and no job ran on the node."""
    agent = driver.running
    whole, sliced = gpu("1B", "GPU-a", 0), gpu("43", "GPU-b", 1, "mig=1")
    driver.start(whole, sliced, *SLICES)
    answer = agent.call("Prepare", job="1", attempt="a", instances=["MIG-1"])
    driver.say(whole, sliced, SLICES[0])
    eventually(lambda: "MIG-2" not in driver.cards())
    assert {name: one["healthy"] for name, one in driver.cards().items()} == {
        "GPU-a": True, "GPU-b": True, "MIG-1": True,
    }  # fmt: skip
    assert agent.call("Prepare", job="1", attempt="a", instances=["MIG-1"]) == answer
    assert agent.call("Prepare", job="2", instances=["GPU-a"])
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="3", instances=["MIG-2"])
    assert (caught.value.code, caught.value.error_class) == ("unknown_instance", "node")


def test_slices_that_a_reboot_took_are_still_offered(driver, gpu, refused):
    """k8s-device-plugin#225, #343, mig-parted#157: they were gone, and jobs were sent to them."""
    agent = driver.running
    sliced = gpu("43", "GPU-b", 1, "mig=1")
    driver.start(sliced, *SLICES)
    assert set(driver.cards()) == {"GPU-b", "MIG-1", "MIG-2"}
    driver.start(sliced)  # MIG mode stays, and the slices do not
    assert set(driver.cards()) == {"GPU-b"}
    assert "no slices" in driver.cards()["GPU-b"]["reason"]
    for wish, code in (("MIG-1", "unknown_instance"), ("GPU-b", "unhealthy")):
        with pytest.raises(refused) as caught:
            agent.call("Prepare", job="1", instances=[wish])
        assert (caught.value.code, caught.value.error_class) == (code, "node")


def test_an_attribute_that_is_not_supported_ends_the_agent(driver, gpu):
    """dra-driver#1073, #1115, k8s-device-plugin#1482: memory was not answered, and nothing ran."""
    agent = driver.running
    bare = " ".join(
        word for word in gpu("1B", "GPU-a", 0).split() if word.split("=")[0] not in ("memory", "cc")
    )
    driver.start(bare)
    card = driver.cards()["GPU-a"]
    assert card["healthy"]
    assert not {"memory_bytes", "compute_capability"} & set(card["attributes"])
    assert agent.call("Prepare", job="1", request="rusage[gpu=1]")["instances"] == ["GPU-a"]


def test_one_bad_card_fails_every_choice(driver, gpu, refused):
    """k8s-device-plugin#2038, #231: one card off the bus, and for days no job was admitted."""
    agent = driver.running
    cards = [gpu(f"{bus:02X}", f"GPU-{bus}", bus) for bus in range(4)]
    cards[1] += " lost=1"
    driver.start(*cards)
    given = [
        agent.call("Prepare", job=str(number), request="rusage[gpu=1]")["instances"][0]
        for number in range(3)
    ]
    assert given == ["GPU-0", "GPU-2", "GPU-3"]
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="4", request="rusage[gpu=1]")
    assert caught.value.code == "no_fit_now"


def test_a_card_that_was_unhealthy_stays_so_for_ever(driver, gpu, eventually):
    """k8s-device-plugin#1014, #1974, dra-driver#904: it had recovered, and nobody looked again."""
    agent = driver.running
    driver.start(f"{gpu('1B', 'GPU-a', 0)} lost=1")
    assert not any(one["healthy"] for one in driver.cards().values())
    driver.say(gpu("1B", "GPU-a", 0))
    eventually(lambda: [one["healthy"] for one in driver.cards().values()] == [True])
    assert agent.call("Prepare", job="1", request="rusage[gpu=1]")["instances"] == ["GPU-a"]
