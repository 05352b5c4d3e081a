"""What went wrong elsewhere with which card is which."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


@pytest.mark.needs("cc")
def test_a_drained_card_shifts_the_names_of_the_others(driver, gpu, refused, in_job, eventually):
    """dra-driver#427: names were counted, so a card that went gave its name to the next one."""
    agent = driver.running
    first, second = gpu("1B", "GPU-a", 0), gpu("43", "GPU-b", 1)
    driver.start(first, second)
    answer = agent.call("Prepare", job="1", attempt="a", instances=["GPU-b"])
    assert driver.cards()["GPU-b"]["attributes"]["index"] == 1
    driver.say(second)
    eventually(lambda: "GPU-a" not in driver.cards())
    assert driver.cards()["GPU-b"]["attributes"]["index"] == 0  # an attribute, and no name
    assert agent.call("Prepare", job="1", attempt="a", instances=["GPU-b"]) == answer
    assert in_job(answer["cgroup"]["v2"]).opens(driver.node("GPU-b")) == "ENXIO"
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="2", instances=["GPU-a"])
    assert caught.value.code == "unknown_instance"
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="2", instances=["GPU-b"])
    assert caught.value.code == "busy"


@pytest.mark.needs("cc")
def test_the_index_is_used_as_the_minor(driver, gpu, in_job):
    """gvisor#9389, nvidia-docker#1432: index 0 had minor 2, and the job got another's card."""
    agent = driver.running
    driver.start(gpu("1B", "GPU-a", 2), gpu("43", "GPU-b", 0), gpu("C3", "GPU-c", 1))
    answer = agent.call("Prepare", job="1", instances=["GPU-a"])
    assert answer["env"]["XCE_GPU_INDEXES"] == "0"
    minors = [one["devices"][0]["minor"] for one in driver.cards().values()]
    assert minors == [minors[1] + 2, minors[1], minors[1] + 1]
    assert answer["env"]["XCE_GPU_MINORS"] == str(minors[0])
    inside = in_job(answer["cgroup"]["v2"])
    opened = {name: inside.opens(driver.node(name)) for name in driver.cards()}
    assert opened == {"GPU-a": "ENXIO", "GPU-b": "EPERM", "GPU-c": "EPERM"}


def test_the_order_of_cuda_is_not_that_of_the_tools(steady):
    """gpustack#1633, #6041, flux#1598: numbers of one order were read in another.

    Cards are named whole; and who counts them, counts in the order of the bus.
    """
    cards = steady.instances("gpu")
    try:
        answer = steady.call("Prepare", job="1", instances=[cards[5]["id"], cards[2]["id"]])
    finally:
        steady.call("Release", job="1")
    in_order = sorted((cards[5], cards[2]), key=lambda card: card["attributes"]["pci_address"])
    assert answer["env"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert answer["env"]["CUDA_VISIBLE_DEVICES"] == ",".join(card["id"] for card in in_order)


def test_short_uuids_break_newer_libraries(steady):
    """HTCONDOR-3350: prefixes in a list are refused by newer CUDA. UUIDs are given whole."""
    try:
        answer = steady.call("Prepare", job="1", request="rusage[gpu=3]")
    finally:
        steady.call("Release", job="1")
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "XCE_GPU_UUIDS"):
        uuids = answer["env"][name].split(",")
        assert uuids == answer["instances"]
        assert {len(uuid) for uuid in uuids} == {len("GPU-") + 36}


def test_a_program_reads_the_visible_devices_as_numbers(agent):
    """vllm#6582, openpbs#2633: programs that want numbers fall over UUIDs. A site may choose."""
    agent.stop()
    agent.extra = '[environment]\nvisible_devices = "index"'
    agent.start()
    cards = [one["id"] for one in agent.instances("gpu")]
    answer = agent.call("Prepare", job="1", instances=[cards[3], cards[6]])
    # flux-core#7806: under the fence the library counts what the job can open, from 0.
    assert answer["env"]["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert answer["env"]["XCE_GPU_INDEXES"] == "3,6"
    assert answer["env"]["XCE_GPU_UUIDS"] == f"{cards[3]},{cards[6]}"


def test_the_wrong_nic_is_chosen(steady):
    """nccl#1580, #1581, #366: traffic went over a far rail, or over whatever NIC came first."""
    inventory = {one["id"]: one for one in steady.call("GetInventory")["instances"]}
    try:
        answer = steady.call("Prepare", job="1", request="rusage[gpu=1:nic=1]")
    finally:
        steady.call("Release", job="1")
    card, nic = (inventory[one]["attributes"] for one in answer["instances"])
    assert card["pcie_switch"] == nic["pcie_switch"]
    # With =, or mlx5_1 would take mlx5_10 as well.
    assert answer["env"]["NCCL_IB_HCA"] == f"={nic['rdma_device']}:{nic['rdma_port']}"
    assert answer["env"]["UCX_NET_DEVICES"] == f"{nic['rdma_device']}:{nic['rdma_port']}"
    assert answer["env"]["NCCL_SOCKET_IFNAME"] == f"={nic['netdev']}"
