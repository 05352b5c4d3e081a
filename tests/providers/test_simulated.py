from __future__ import annotations

import re
from pathlib import Path

import pytest

from xce_nodeagent.errors import BadConfig
from xce_nodeagent.host import Host
from xce_nodeagent.model.plan import AllowDevice
from xce_nodeagent.provider import Found, Grant
from xce_nodeagent.providers import simulated


def found(profile: str, **more: str):
    return simulated.PROVIDER.discover(Host(simulate=profile, **more))


def test_no_profile_is_no_machine_and_nobody_is_told() -> None:
    assert found("") == Found()


def test_an_unknown_profile_is_a_fault_that_names_those_that_there_are() -> None:
    with pytest.raises(BadConfig, match="dgx-h100") as caught:
        found("dgx-h1000")
    assert "gb200" in caught.value.message


def test_a_profile_is_no_path() -> None:
    with pytest.raises(BadConfig):
        found("../profiles/dgx-h100")


@pytest.mark.parametrize(
    ("profile", "counts"),
    [
        ("dgx-h100", {"gpu": 8, "nic": 12}),
        ("dgx-a100-mig", {"gpu": 8, "mig": 13, "nic": 10}),
        ("mi300x", {"gpu": 8, "nic": 8}),
        ("gb200", {"gpu": 4, "nic": 4}),
        ("cpu-only", {"nic": 2}),
    ],
)
def test_a_profile_has_what_the_machine_has(profile: str, counts: dict[str, int]) -> None:
    instances = found(profile).instances
    types = [instance.type for instance in instances]
    assert {name: types.count(name) for name in types} == counts


def test_identities_are_the_same_wherever_the_nodes_are() -> None:
    one, other = found("dgx-a100-mig"), found("dgx-a100-mig", device_directory="/dev/other")
    assert [i.id for i in one.instances] == [i.id for i in other.instances]


def test_identities_look_like_the_vendors_own() -> None:
    uuid = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    patterns = {"gpu": f"GPU-{uuid}", "mig": f"MIG-{uuid}", "nic": r"ff[0-9a-f:.]+"}
    for instance in found("dgx-a100-mig").instances:
        assert re.fullmatch(patterns[instance.type], instance.id)
    # ROCm takes no more than 16 digits, and shows no card at all for a longer token.
    for instance in found("mi300x").instances:
        assert instance.type != "gpu" or re.fullmatch(r"GPU-[0-9a-f]{16}", instance.id)


def test_slices_exclude_their_card_and_not_each_other() -> None:
    instances = {i.id: i for i in found("dgx-a100-mig").instances}
    slices = [i for i in instances.values() if i.type == "mig"]
    for one in slices:
        assert one.overlaps == (one.parent,)
        assert one.id in instances[one.parent].overlaps


def test_slices_of_one_card_differ_in_their_capabilities() -> None:
    slices = [i for i in found("dgx-a100-mig").instances if i.type == "mig"]
    caps = [frozenset(n for n in i.devices if "cap" in n.path) for i in slices]
    assert all(len(each) == 2 for each in caps)
    assert len(frozenset().union(*caps)) == 2 * len(slices)


def test_capability_minors_follow_the_drivers_rule() -> None:
    """The minor of a GPU instance is 3 + 135·gpu + 9·gi, of its first compute instance one more."""
    for one in found("dgx-a100-mig").instances:
        if one.type == "mig":
            access = 3 + 135 * one.number("minor") + 9 * one.number("gpu_instance")
            assert [n.minor for n in one.devices] == [one.number("minor"), access, access + 1]


def test_every_gpu_has_a_rail_below_its_own_switch() -> None:
    instances = found("dgx-h100").instances
    rails = {i.text("pcie_switch"): i for i in instances if "rail" in i.attributes}
    gpus = [i for i in instances if i.type == "gpu"]
    assert [rails[gpu.text("pcie_switch")].number("rail") for gpu in gpus] == list(range(8))


def test_minors_of_a_real_layout_are_not_the_indexes() -> None:
    gpus = [i for i in found("dgx-a100-mig").instances if i.type == "gpu"]
    assert [i.number("index") for i in gpus] == list(range(8))
    assert [i.number("minor") for i in gpus] != list(range(8))


def test_no_node_has_a_major_that_a_driver_holds(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text(
        "Character devices:\n 60 taken\n 61 taken\n120 taken\n\nBlock devices:\n 62 not-ours\n"
    )
    nodes = simulated.nodes(Host(tmp_path, simulate="dgx-a100-mig"))
    assert {node.major for node in nodes} == {62, 63, 121}


def test_a_host_without_free_majors_says_so(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    taken = "\n".join(f"{major} x" for major in simulated.LOCAL_MAJORS[:-2])
    (tmp_path / "proc/devices").write_text(f"Character devices:\n{taken}\n")
    answer = simulated.PROVIDER.discover(Host(tmp_path, simulate="dgx-h100"))
    assert answer.state == "error"
    assert "/proc/devices" in answer.reason


def test_nodes_are_all_that_the_instances_and_control_have() -> None:
    host = Host(simulate="gb200", device_directory="/dev/elsewhere")
    nodes = simulated.nodes(host)
    answer = simulated.PROVIDER.discover(host)
    assert {n for i in answer.instances for n in i.devices} < set(nodes)
    assert {c.node for c in answer.control} < set(nodes)
    assert all(node.path.startswith("/dev/elsewhere/") for node in nodes)
    assert len({(n.major, n.minor) for n in nodes}) == len(nodes) == len({n.path for n in nodes})


def test_config_monitor_and_imex_are_never_granted() -> None:
    for profile in ("gb200", "dgx-a100-mig"):
        refused = {c.node.path.rpartition("/")[2] for c in found(profile).control if not c.granted}
        assert {"nvidia-cap1", "nvidia-cap2"} <= refused
    assert "imex-channel0" in {
        c.node.path.rpartition("/")[2] for c in found("gb200").control if not c.granted
    }


def test_control_nodes_go_with_their_own_kind() -> None:
    answer = found("dgx-h100")
    control = tuple(c.node for c in answer.control if c.granted)

    def names_for(kind: str) -> set[str]:
        instance = next(i for i in answer.instances if i.type == kind)
        plan = simulated.PROVIDER.plan(Grant(instances=(instance,), control=control))
        nodes = [step.node for step in plan.steps if isinstance(step, AllowDevice)]
        return {node.path.rpartition("/")[2] for node in nodes if node not in instance.devices}

    assert names_for("gpu") == {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
    assert names_for("nic") == {"rdma_cm"}


@pytest.mark.parametrize(
    ("profile", "has", "has_not"),
    [
        ("dgx-h100", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
        ("mi300x", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_the_vendor_decides_the_environment(profile: str, has: str, has_not: str) -> None:
    gpus = tuple(i for i in found(profile).instances if i.type == "gpu")[:2]
    env = simulated.PROVIDER.plan(Grant(instances=gpus)).environment
    assert env[has] == ",".join(gpu.id for gpu in gpus)
    assert has_not not in env
