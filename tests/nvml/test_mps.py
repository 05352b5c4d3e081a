"""Shares of cards under MPS: declared, seen, given, and kept apart from the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.discovery import scan
from xce_nodeagent.errors import BadConfig
from xce_nodeagent.host import Host
from xce_nodeagent.model import config, share
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.plan import AllowDevice, SetEnv
from xce_nodeagent.model.share import MpsConfig
from xce_nodeagent.provider import Grant
from xce_nodeagent.providers.nvidia import PROVIDER
from xce_nodeagent.providers.simulated import PROVIDER as SIMULATED

ONE = {"pci_address": "0000:1b:00.0", "uuid": "GPU-one", "name": "NVIDIA H100", "minor": 2,
       "memory_bytes": 80 << 30, "compute_capability": "9.0", "cores": 16896}  # fmt: skip
TWO = ONE | {"pci_address": "0000:43:00.0", "uuid": "GPU-two", "minor": 0, "name": "NVIDIA A100"}
MIG = {"uuid": "MIG-1", "name": "NVIDIA A100 MIG 3g.40gb", "gpu_instance": 1, "compute_instance": 0}
CUT = TWO | {"mig_mode": 1, "mig": [MIG]}


def look(root: Path, shares: dict[str, tuple[int, ...]], *cards: Any) -> Inventory:
    answer = ("found", "", {"devices": list(cards)})
    host = Host(root, probe=lambda _: answer, mps=MpsConfig(shares=shares))
    return scan(host, (PROVIDER,))


@pytest.fixture
def daemon(root: Path) -> Path:
    """A control daemon that listens where it should, as far as a file shows that."""
    control = root / "run/nvidia-mps/control"
    control.parent.mkdir(parents=True)
    control.touch()
    return root


def test_shares_exclude_the_whole_and_not_each_other(daemon: Path) -> None:
    seen = look(daemon, {"*H100*": (50, 25, 25)}, ONE, TWO).by_id()
    shares = [one for one in seen.values() if one.type == "mps"]
    assert [(one.id, one.parent, one.overlaps) for one in shares] == [
        (f"mps-GPU-one-{number}", "GPU-one", ("GPU-one",)) for number in range(3)
    ]
    assert seen["GPU-one"].overlaps == tuple(one.id for one in shares)
    assert seen["GPU-two"].overlaps == ()
    assert all(one.healthy for one in seen.values())
    first = shares[0].attributes
    assert first["mps_percent"] == 50
    assert first["memory_bytes"] == 40 << 30
    assert first["multiprocessors"] == 66
    assert (first["uuid"], first["minor"], first["index"]) == ("GPU-one", 2, 0)
    assert shares[0].devices == seen["GPU-one"].devices


def test_the_shares_of_a_card_have_its_memory_once(daemon: Path) -> None:
    counters = look(daemon, {"all": (50, 50)}, ONE, TWO).counters
    assert counters["mps"] == {"total": 4, "healthy": 4}
    assert counters["mps_memory_bytes"] == counters["gpu_memory_bytes"]


@pytest.mark.parametrize("name", ["all", "GPU-two", "0000:43:00.0", "*A100"])
def test_a_card_that_is_cut_has_no_shares_and_who_means_it_is_told(daemon: Path, name: str) -> None:
    inventory = look(daemon, {name: (50, 50), "GPU-one": (100,)}, ONE, CUT)
    seen = inventory.by_id()
    assert seen.keys() == {"GPU-one", "mps-GPU-one-0", "GPU-two", "MIG-1"}
    assert seen["MIG-1"].healthy
    assert inventory.counters["mps"] == {"total": 1, "healthy": 1}
    if name == "all":
        assert inventory.problems == ()
    else:
        (problem,) = inventory.problems
        assert (problem.provider, problem.types) == ("mps", ())
        assert "GPU-two, cut into MIG slices" in problem.reason
        assert "nvidia-smi -mig 0" in problem.reason
    # Whole again, it has them.
    assert "mps-GPU-two-1" in look(daemon, {name: (50, 50)}, ONE, TWO).by_id()


def test_without_a_daemon_shares_are_no_shares(root: Path) -> None:
    seen = look(root, {"all": (100,)}, ONE).by_id()
    assert seen["GPU-one"].healthy
    assert not seen["mps-GPU-one-0"].healthy
    assert "nvidia-cuda-mps-control" in seen["mps-GPU-one-0"].reason


def test_a_sick_card_has_sick_shares(daemon: Path) -> None:
    seen = look(daemon, {"all": (100,)}, ONE | {"lost": "GPU is lost"}, TWO).by_id()
    assert seen["mps-GPU-one-0"].reason == "GPU is lost"
    assert seen["mps-GPU-two-0"].healthy


def test_the_closest_name_of_a_card_counts(daemon: Path) -> None:
    shares = {"all": (1,), "*100": (2,), "*H100": (3,), "0000:43:00.0": (4,)}
    assert {
        one.parent: one.attributes["mps_percent"]
        for one in look(daemon, shares, ONE, TWO).instances
        if one.type == "mps"
    } == {"GPU-one": 2, "GPU-two": 4}


def test_a_job_with_shares_is_told_how_to_use_them(daemon: Path) -> None:
    seen = look(daemon, {"*H100": (50, 25, 25), "*A100": (30, 30)}, ONE, TWO).by_id()
    granted = tuple(seen[f"mps-GPU-{name}"] for name in ("one-0", "one-1", "two-1"))
    plan = PROVIDER.plan(Grant(instances=granted))
    env = {step.name: step.value for step in plan.steps if isinstance(step, SetEnv)}
    assert env["CUDA_VISIBLE_DEVICES"] == env["XCE_GPU_UUIDS"] == "GPU-one,GPU-two"
    assert env["XCE_GPU_MINORS"] == "2,0"
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == "/run/nvidia-mps"
    # 75 of one card and 30 of the other; the limit is one for all.
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={60 << 10}M,1={24 << 10}M"
    nodes = [step.node.path for step in plan.steps if isinstance(step, AllowDevice)]
    assert nodes == ["/dev/nvidia2", "/dev/nvidia0"]
    whole = PROVIDER.plan(Grant(instances=(seen["GPU-one"],)))
    assert not [s for s in whole.steps if isinstance(s, SetEnv) and "MPS" in s.name]


def test_simulated_cards_can_be_shared(tmp_path: Path) -> None:
    host = Host(tmp_path, simulate="dgx-h100", mps=MpsConfig(shares={"all": (50, 50)}))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text("Character devices:\n  1 mem\n\nBlock devices:\n")
    seen = scan(host, (SIMULATED,))
    shares = [one for one in seen.instances if one.type == "mps"]
    assert len(shares) == 16
    assert all(one.healthy for one in shares)
    assert seen.problems == ()


def test_what_is_declared_is_read() -> None:
    told = config.parse(
        '[mps]\npipe_directory = "/run/mps"\n[mps.shares]\n"*H100*" = [60, 40]\nall = 3\n', "c"
    )
    assert told.mps.pipe_directory == "/run/mps"
    assert told.mps.shares == {"*H100*": (60, 40), "all": (33, 33, 33)}


def test_all_that_is_wrong_is_told_at_once() -> None:
    text = (
        '[mps]\npipe_directory = "run"\nfoo = 1\n[mps.shares]\n"*H100*" = [60, 60]\n'
        '"*A100*" = []\nall = 49\n"GPU-1" = [0]\n"GPU-2" = [true]\n"GPU-3" = "x"\n'
    )
    with pytest.raises(BadConfig) as caught:
        config.parse(text, "c")
    faults = caught.value.details["faults"]
    assert len(faults) == 8
    assert any("'*H100*'" in fault and "120 % in all; a card has 100" in fault for fault in faults)
    assert caught.value.code == "bad_config"


@given(st.dictionaries(st.text(max_size=12), st.recursive(
    st.none() | st.booleans() | st.integers(-200, 200) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=5), max_leaves=5), max_size=4))  # fmt: skip
def test_whatever_is_declared_no_card_has_more_than_all_of_itself(value: dict[str, Any]) -> None:
    try:
        told = share.table(value)
    except share.Fault:
        return
    assert all(0 < sum(percents) <= 100 and min(percents) > 0 for percents in told.values())
