from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.host import cpulist
from xce_nodeagent.model import environment
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.plan import SetEnv


def card(index: int, minor: int, *, kind: str = "gpu", name: str = "", **more) -> Instance:
    name = name or f"GPU-{index}"
    return Instance(
        id=name,
        type=kind,
        provider="x",
        attributes={"uuid": name, "index": index, "minor": minor, **more},
    )


def nic(name: str, netdev: str = "", rdma: str = "", port: int = 1) -> Instance:
    attributes: dict = {"netdev": netdev} if netdev else {}
    if rdma:
        attributes |= {"rdma_device": rdma, "rdma_port": port}
    return Instance(id=name, type="nic", provider="x", attributes=attributes)


def env(steps: tuple[SetEnv, ...]) -> dict[str, str]:
    assert len({step.name for step in steps}) == len(steps)
    return {step.name: step.value for step in steps}


def test_what_hides_is_a_value_and_not_its_absence() -> None:
    assert env(environment.hidden()) == {
        "CUDA_VISIBLE_DEVICES": "",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "ROCR_VISIBLE_DEVICES": "",
        "ZE_AFFINITY_MASK": "9999",
    }


def test_cards_are_listed_in_pci_order_whatever_order_they_come_in() -> None:
    found = env(environment.nvidia([card(5, 1), card(2, 7)]))
    assert found == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-2,GPU-5",
        "NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-5",
        "XCE_GPU_UUIDS": "GPU-2,GPU-5",
        "XCE_GPU_INDEXES": "2,5",
        "XCE_GPU_MINORS": "7,1",
    }


@pytest.mark.parametrize(("contained", "visible"), [(True, "0,1"), (False, "2,5")])
@pytest.mark.parametrize(
    ("library", "name"),
    [(environment.nvidia, "CUDA_VISIBLE_DEVICES"), (environment.amd, "ROCR_VISIBLE_DEVICES")],
)
def test_numbers_count_what_the_job_can_open(
    library, name: str, contained: bool, visible: str
) -> None:
    found = env(library([card(2, 7), card(5, 1)], "index", contained=contained))
    assert found[name] == visible
    assert found["XCE_GPU_INDEXES"] == "2,5"
    assert found["XCE_GPU_UUIDS"] == "GPU-2,GPU-5"


def test_rocm_is_told_numbers_where_uuids_would_name_no_card_or_two() -> None:
    consumer = Instance(id="gpu-0000:07:00.0", type="gpu", provider="x", attributes={"index": 5})
    for visible in ("uuid", "index"):
        found = env(environment.amd([card(2, 7), consumer], visible))
        assert found["ROCR_VISIBLE_DEVICES"] == "0,1"
        found = env(environment.amd([card(2, 7), consumer], visible, contained=False))
        assert found["ROCR_VISIBLE_DEVICES"] == "2,5"
    assert found["XCE_GPU_UUIDS"] == "GPU-2,gpu-0000:07:00.0"


def test_level_zero_counts_the_tiles_that_a_job_can_open() -> None:
    cards = [card(4, 132, tiles=2), card(1, 129, tiles=2)]
    assert env(environment.level_zero(cards)) == {"ZE_AFFINITY_MASK": "0,1,2,3"}
    assert env(environment.level_zero([card(3, 131)])) == {"ZE_AFFINITY_MASK": "0"}
    assert env(environment.level_zero(cards, contained=False)) == {
        "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE",
        "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1",
        "ZE_AFFINITY_MASK": "1,4",
    }


def test_a_slice_has_no_number() -> None:
    slices = [
        card(0, 3, kind="mig", name="MIG-b", gpu_instance=9, compute_instance=0),
        card(0, 3, kind="mig", name="MIG-a", gpu_instance=10, compute_instance=0),
    ]
    found = env(environment.nvidia(slices, "index"))
    assert found["CUDA_VISIBLE_DEVICES"] == "MIG-b,MIG-a"
    assert found["XCE_GPU_MINORS"] == "3,3"


def test_an_unknown_number_leaves_its_place_in_the_list() -> None:
    unknown = Instance(id="GPU-9", type="gpu", provider="x", attributes={"uuid": "GPU-9"})
    found = env(environment.nvidia([unknown, card(0, 4)], "index", contained=False))
    assert found["XCE_GPU_MINORS"] == "4,"
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-9"


def test_interfaces_are_matched_whole() -> None:
    """Without `=` NCCL takes mlx5_10 for mlx5_1 as well."""
    found = env(environment.nics([nic("a", "ib0", "mlx5_1"), nic("b", "ib1", "mlx5_1", 2)]))
    assert found == {
        "XCE_NICS": "a,b",
        "NCCL_IB_HCA": "=mlx5_1:1,mlx5_1:2",
        "NCCL_SOCKET_IFNAME": "=ib0,ib1",
        "GLOO_SOCKET_IFNAME": "ib0,ib1",
        "UCX_NET_DEVICES": "mlx5_1:1,mlx5_1:2",
    }


def test_ucx_takes_plain_interfaces_by_their_name() -> None:
    found = env(
        environment.nics([nic("a", "ib0", "mlx5_0"), nic("b", "eth0"), nic("c", "", "efa_0")])
    )
    assert found["UCX_NET_DEVICES"] == "mlx5_0:1,efa_0:1,eth0"
    assert found["NCCL_SOCKET_IFNAME"] == "=ib0,eth0"


def test_ports_in_order_by_number_and_by_name() -> None:
    found = env(environment.ports([(20003, ""), (20001, "http"), (20002, "http")]))
    assert found == {
        "XCE_PORTS": "20001-20003",
        "XCE_PORT_0": "20003",
        "XCE_PORT_1": "20001",
        "XCE_PORT_2": "20002",
        "XCE_PORT_HTTP": "20001",
    }


def test_two_providers_of_a_kind_are_joined() -> None:
    first = environment.nics([nic("a", "ib0", "mlx5_0")])
    second = environment.nics([nic("b", "ib1", "mlx5_1"), nic("c", "eth0")])
    found = env(environment.combined([*environment.hidden(), *first, *second]))
    assert found["XCE_NICS"] == "a,b,c"
    assert found["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert found["NCCL_SOCKET_IFNAME"] == "=ib0,ib1,eth0"
    assert found["CUDA_VISIBLE_DEVICES"] == ""


def test_a_grant_takes_the_place_of_what_hides() -> None:
    steps = [*environment.hidden(), *environment.nvidia([card(0, 0)])]
    found = env(environment.combined([*steps, *environment.nvidia([card(1, 1)])]))
    assert found["NVIDIA_VISIBLE_DEVICES"] == found["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert found["ROCR_VISIBLE_DEVICES"] == ""


@given(st.sets(st.integers(1, 65535), max_size=50))
def test_ranges_hold_every_number_once(numbers: set[int]) -> None:
    assert cpulist.read(environment.ranges(numbers)) == tuple(sorted(numbers))


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_name_of_hardware_breaks_out_of_its_value(one: str, other: str) -> None:
    steps = [
        *environment.nics([nic(one, other, one)]),
        *environment.nvidia([card(0, 0, name=other or "x")]),
    ]
    for step in environment.combined(steps):
        assert step.value.isprintable()
