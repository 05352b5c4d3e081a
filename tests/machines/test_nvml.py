"""pynvml, the real one, against a stand-in for NVIDIA's library that is compiled here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.host.nvml import pci_address
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.providers.nvidia import PROVIDER

HERE = Path(__file__).parent

H100 = "name=NVIDIA_H100_80GB_HBM3 memory=85520809984 cc=9.0 mig=0 serial=1"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stand-in."""
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(
        ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC",
         "-o", folder / "libnvidia-ml.so.1", HERE / "nvml/nvml_stub.c"],
        check=True,
    )  # fmt: skip
    return folder


def probe(library: Path, data: Path, *, skip: tuple[str, ...] = (), timeout: float = 20) -> Any:
    """Probe in a child, as the prober does; the child also says whom it began to ask."""
    code = (
        "import json, sys; from xce_nodeagent.host import nvml;"
        "say = lambda *what: print(json.dumps(what), flush=True);"
        "say('answer', *nvml.probe(json.loads(sys.argv[1]), lambda a: say('started', a)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, json.dumps(skip)],
        env={**os.environ, "LD_LIBRARY_PATH": str(library), "XCE_NVML_DATA": str(data)},
        stdout=subprocess.PIPE,
        timeout=timeout,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1][0] == "answer"
    return tuple(lines[-1][1:])


def host(root: Path, answer: Any) -> Host:
    return Host(root, probe=lambda _: answer)


def kernel(root: Path) -> None:
    """What the driver shows in procfs."""
    (root / "proc/driver/nvidia-caps").mkdir(parents=True)
    (root / "proc/devices").write_text(
        "Character devices:\n195 nvidia\n195 nvidiactl\n234 nvidia-caps\n237 nvidia-uvm\n\n"
        "Block devices:\n  7 loop\n"
    )
    lines = ["config 1", "monitor 2"]
    for gpu in range(8):
        for gi in range(15):
            access = 3 + 135 * gpu + 9 * gi
            lines.append(f"gpu{gpu}/gi{gi}/access {access}")
            lines += [f"gpu{gpu}/gi{gi}/ci{ci}/access {access + 1 + ci}" for ci in range(8)]
    (root / "proc/driver/nvidia-caps/mig-minors").write_text("\n".join(lines) + "\n")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "nvml.txt"


pytestmark = pytest.mark.needs("cc")


def test_cards_are_counted_in_pci_order_and_opened_by_their_minor(
    library: Path, data: Path, tmp_path: Path
) -> None:
    data.write_text(
        "driver 550.54.15\n"
        f"gpu bus=00000000:C3:00.0 uuid=GPU-c minor=0 {H100}\n"
        f"gpu bus=00000000:1B:00.0 uuid=GPU-a minor=2 {H100}\n"
        f"gpu bus=00000000:43:00.0 uuid=GPU-b minor=1 {H100}\n"
    )
    kernel(tmp_path)
    answer = probe(library, data)
    assert answer[:2] == ("found", "")
    found = PROVIDER.discover(host(tmp_path, answer))
    assert [
        (gpu.id, gpu.attributes["index"], gpu.attributes["minor"], gpu.devices[0].minor)
        for gpu in found.instances
    ] == [("GPU-a", 0, 2, 2), ("GPU-b", 1, 1, 1), ("GPU-c", 2, 0, 0)]
    first = found.instances[0]
    assert first.attributes["model"] == "NVIDIA H100 80GB HBM3"
    assert first.attributes["memory_bytes"] == 85520809984
    assert first.attributes["compute_capability"] == "9.0"
    assert first.attributes["driver_version"] == "550.54.15"
    assert first.attributes["pci_address"] == "0000:1b:00.0"
    control = {c.node.path: (c.node.major, c.node.minor, c.granted) for c in found.control}
    assert control["/dev/nvidiactl"] == (195, 255, True)
    assert control["/dev/nvidia-uvm"] == (237, 0, True)
    assert control["/dev/nvidia-caps/nvidia-cap1"] == (234, 1, False)


@pytest.mark.parametrize(
    ("key", "attribute"),
    [("name", "model"), ("memory", "memory_bytes"), ("cc", "compute_capability"), ("mig", "")],
)
def test_an_attribute_that_is_not_answered_is_absent_and_the_card_is_there(
    library: Path, data: Path, tmp_path: Path, key: str, attribute: str
) -> None:
    line = " ".join(part for part in H100.split() if not part.startswith(f"{key}="))
    data.write_text(f"gpu bus=00000000:1B:00.0 uuid=GPU-a minor=0 {line}\n")
    answer = probe(library, data)
    missing = answer[2]["devices"][0]["missing"]
    fact = {"cc": "compute_capability", "memory": "memory_bytes", "mig": "mig_mode"}.get(key, key)
    assert missing[fact] == "Not Supported"
    (gpu,) = PROVIDER.discover(host(tmp_path, answer)).instances
    assert gpu.healthy
    assert attribute not in gpu.attributes
    assert "driver_version" not in gpu.attributes


def test_a_card_that_is_lost_does_not_take_the_others_along(
    library: Path, data: Path, tmp_path: Path
) -> None:
    data.write_text(
        f"gpu bus=00000000:1B:00.0 uuid=GPU-a minor=0 lost=1 {H100}\n"
        f"gpu bus=00000000:43:00.0 uuid=GPU-b minor=1 {H100}\n"
    )
    information = tmp_path / "proc/driver/nvidia/gpus/0000:1b:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t H100\nGPU UUID: \t GPU-a\nDevice Minor: \t 0\n")
    lost, other = PROVIDER.discover(host(tmp_path, probe(library, data))).instances
    assert (lost.id, lost.healthy, lost.reason) == ("GPU-a", False, "GPU is lost")
    assert lost.devices[0].minor == 0
    assert (other.id, other.healthy) == ("GPU-b", True)


UNKNOWN = "GPU-????????-????-????-????-????????????"


def information(root: Path, address: str, text: str) -> None:
    path = root / f"proc/driver/nvidia/gpus/{address}/information"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cards_that_fell_off_the_bus_keep_their_ids_and_their_slices(
    library: Path, data: Path, tmp_path: Path
) -> None:
    """The driver then writes one UUID for all of them, and the library none, nor any slice."""
    sliced = H100.replace("mig=0", "mig=1")
    slices = (
        "mig uuid=MIG-1 name=X_MIG_3g.40gb gi=2 ci=0 memory=42412802048\n"
        "mig uuid=MIG-2 name=X_MIG_1g.10gb gi=9 ci=0 memory=10468982784\n"
    )
    cards = [("1B", "GPU-a", 0, H100), ("43", "GPU-b", 1, sliced), ("C3", "GPU-c", 2, H100)]

    def see(lost: tuple[str, ...], previous: Inventory | None) -> Inventory:
        lines = []
        for bus, uuid, minor, facts in cards:
            mark = " lost=1" if uuid in lost else ""
            lines.append(
                f"gpu bus=00000000:{bus}:00.0 uuid={uuid} minor={minor}{mark} {facts}\n"
                + (slices if facts == sliced else "")
            )
            shown = UNKNOWN if uuid in lost else uuid
            information(tmp_path, f"0000:{bus.lower()}:00.0", f"GPU UUID: \t {shown}\n")
        data.write_text("".join(lines))
        return scan(host(tmp_path, probe(library, data)), (PROVIDER,), previous)

    kernel(tmp_path)
    before = see((), None)
    assert [one.id for one in before.instances] == ["GPU-a", "GPU-b", "GPU-c", "MIG-1", "MIG-2"]
    for _ in range(2):  # it stays so
        after = see(("GPU-a", "GPU-b"), before)
        assert [(one.id, one.healthy, one.reason) for one in after.instances] == [
            ("GPU-a", False, "GPU is lost"), ("GPU-b", False, "GPU is lost"), ("GPU-c", True, ""),
            ("MIG-1", False, "GPU is lost"), ("MIG-2", False, "GPU is lost"),
        ]  # fmt: skip
        assert [one.devices for one in after.instances] == [one.devices for one in before.instances]
        assert after.by_id()["GPU-b"].overlaps == ("MIG-1", "MIG-2")
        assert after.problems == ()
    assert see((), after).instances == before.instances
    # An agent that starts now knows them by their places, and never two as one.
    fresh = see(("GPU-a", "GPU-b"), None)
    assert [one.id for one in fresh.instances] == [
        "gpu-0000:1b:00.0", "gpu-0000:43:00.0", "GPU-c",
    ]  # fmt: skip
    assert fresh.problems == ()


def test_a_card_that_only_the_driver_still_knows_does_not_vanish(
    library: Path, data: Path, tmp_path: Path
) -> None:
    data.write_text(f"gpu bus=00000000:1B:00.0 uuid=GPU-a minor=0 {H100}\n")
    for bus, uuid in (("1b", "GPU-a"), ("43", UNKNOWN)):
        information(tmp_path, f"0000:{bus}:00.0", f"GPU UUID: \t {uuid}\n")
    found = PROVIDER.discover(host(tmp_path, probe(library, data)))
    assert [(one.id, one.healthy) for one in found.instances] == [
        ("GPU-a", True), ("gpu-0000:43:00.0", False),
    ]  # fmt: skip
    assert found.lost == {"gpu-0000:43:00.0"}


def test_a_card_that_hung_its_prober_keeps_its_slices(tmp_path: Path) -> None:
    one = {"uuid": "MIG-1", "name": "X MIG 1g.10gb", "gpu_instance": 9, "compute_instance": 0}
    card = {"pci_address": "0000:1b:00.0", "uuid": "GPU-a", "minor": 0, "mig_mode": 1, "mig": [one]}
    kernel(tmp_path)
    before = scan(host(tmp_path, ("found", "", {"devices": [card]})), (PROVIDER,))
    skipped = {"devices": [{"pci_address": "0000:1b:00.0", "skipped": True}]}
    after = scan(host(tmp_path, ("found", "", skipped)), (PROVIDER,), before)
    assert [(i.id, i.healthy, "hung" in i.reason) for i in after.instances] == [
        ("GPU-a", False, True), ("MIG-1", False, True),
    ]  # fmt: skip


def test_slices_are_instances_of_their_card(library: Path, data: Path, tmp_path: Path) -> None:
    data.write_text(
        f"gpu bus=00000000:1B:00.0 uuid=GPU-a minor=3 {H100.replace('mig=0', 'mig=1')}\n"
        "mig uuid=MIG-1 name=NVIDIA_H100_80GB_HBM3_MIG_3g.40gb gi=2 ci=0 memory=42412802048\n"
        "gap\n"
        "mig uuid=MIG-2 name=NVIDIA_H100_80GB_HBM3_MIG_1g.10gb gi=9 ci=0 memory=10468982784\n"
    )
    kernel(tmp_path)
    gpu, *slices = PROVIDER.discover(host(tmp_path, probe(library, data))).instances
    assert gpu.overlaps == ("MIG-1", "MIG-2")
    assert [(one.id, one.parent, one.overlaps) for one in slices] == [
        ("MIG-1", "GPU-a", ("GPU-a",)),
        ("MIG-2", "GPU-a", ("GPU-a",)),
    ]
    assert [one.attributes["mig_profile"] for one in slices] == ["3g.40gb", "1g.10gb"]
    assert [one.attributes["memory_bytes"] for one in slices] == [42412802048, 10468982784]
    access = 3 + 135 * 3 + 9 * 2
    assert [(n.major, n.minor) for n in slices[0].devices] == [
        (195, 3), (234, access), (234, access + 1),
    ]  # fmt: skip


def test_a_slice_whose_nodes_are_not_known_cannot_be_had(
    library: Path, data: Path, tmp_path: Path
) -> None:
    data.write_text(
        f"gpu bus=00000000:1B:00.0 uuid=GPU-a minor=3 {H100.replace('mig=0', 'mig=1')}\n"
        "mig uuid=MIG-1 name=X_MIG_3g.40gb gi=2 ci=0 memory=42412802048\n"
    )
    _, one = PROVIDER.discover(host(tmp_path, probe(library, data))).instances
    assert not one.healthy
    assert "mig-minors" in one.reason


def test_a_call_that_hangs_says_where_and_is_not_made_again(
    library: Path, data: Path, tmp_path: Path
) -> None:
    data.write_text(
        f"gpu bus=00000000:1B:00.0 uuid=GPU-a minor=0 {H100}\n"
        f"gpu bus=00000000:43:00.0 uuid=GPU-b minor=1 {H100} hang=name\n"
    )
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        probe(library, data, timeout=2)
    assert time.monotonic() - start < 10
    assert (caught.value.stdout or b"").splitlines()[-1] == b'["started", "0000:43:00.0"]'
    answer = probe(library, data, skip=("0000:43:00.0",))
    sound, sick = PROVIDER.discover(host(tmp_path, answer)).instances
    assert sound.healthy
    assert not sick.healthy
    assert "hung a prober" in sick.reason


@pytest.mark.parametrize(
    ("driver", "state"), [(False, "none"), (True, "not_yet")], ids=["no driver", "driver"]
)
def test_a_driver_that_does_not_answer_yet_is_asked_again(
    library: Path, data: Path, tmp_path: Path, driver: bool, state: str
) -> None:
    data.write_text("init 9\n")
    answer = probe(library, data)
    assert answer[0] == "not_yet"
    assert "Driver Not Loaded" in answer[1]
    if driver:
        (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
        (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: 550\n")
    assert PROVIDER.discover(host(tmp_path, answer)).state == state


def test_a_library_that_refuses_is_an_error(library: Path, data: Path, tmp_path: Path) -> None:
    data.write_text("init 999\n")
    answer = probe(library, data)
    assert answer[0] == "error"
    assert PROVIDER.discover(host(tmp_path, answer)).state == "error"


def test_no_library_says_which_one(tmp_path: Path, data: Path) -> None:
    answer = probe(tmp_path, data)
    assert answer[0] == "none"
    assert "libnvidia-ml.so.1" in answer[1]
    assert PROVIDER.discover(host(tmp_path, answer)).state == "none"


def test_what_was_known_stays_while_the_library_is_silent(
    library: Path, data: Path, tmp_path: Path
) -> None:
    data.write_text(f"gpu bus=00000000:1B:00.0 uuid=GPU-a minor=0 {H100}\n")
    kernel(tmp_path)
    before = scan(host(tmp_path, probe(library, data)), (PROVIDER,))
    after = scan(host(tmp_path, ("error", "the prober hung", {})), (PROVIDER,), before)
    assert after.instances == before.instances
    assert after.control == before.control
    assert [problem.reason for problem in after.problems] == ["the prober hung"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("00000000:1B:00.0", "0000:1b:00.0"), ("00010000:01:00.0", "10000:01:00.0")],
)
def test_bus_ids_are_written_as_sysfs_does(given: str, expected: str) -> None:
    assert pci_address(given) == expected


@pytest.mark.parametrize("state", ["not_yet", "error"])
def test_nodes_stay_managed_while_the_library_does_not_answer(tmp_path: Path, state: str) -> None:
    """A library that hangs while the agent starts opens nothing to the jobs that run."""
    kernel(tmp_path)
    (tmp_path / "proc/driver/nvidia/gpus").mkdir(parents=True)
    caps = tmp_path / "dev/nvidia-caps"
    caps.mkdir(parents=True)
    for minor in (1, 2, 3, 4, 5000):
        (caps / f"nvidia-cap{minor}").touch()
    found = PROVIDER.discover(host(tmp_path, (state, "it hangs", {})))
    assert {(c.node.path, c.granted) for c in found.control} == {
        ("/dev/nvidiactl", True),
        ("/dev/nvidia-modeset", False),
        ("/dev/nvidia-uvm", True),
        ("/dev/nvidia-uvm-tools", True),
        *((f"/dev/nvidia-caps/nvidia-cap{minor}", False) for minor in (1, 2, 3, 4)),
    }


def test_the_slices_of_a_card_that_is_lost_stay_managed(tmp_path: Path) -> None:
    """The others answer, this one tells nothing, and the agent starts anew: jobs run in them."""
    one = {"uuid": "MIG-1", "name": "X MIG 1g.10gb", "gpu_instance": 1, "compute_instance": 0}
    well = {"pci_address": "0000:1b:00.0", "uuid": "GPU-a", "minor": 0, "mig_mode": 1, "mig": [one]}
    lost = {"pci_address": "0000:43:00.0", "lost": "GPU is lost"}
    kernel(tmp_path)
    caps = tmp_path / "dev/nvidia-caps"
    caps.mkdir(parents=True)
    for minor in (1, 2, 12, 13, 147, 148):
        (caps / f"nvidia-cap{minor}").touch()
    found = PROVIDER.discover(host(tmp_path, ("found", "", {"devices": [well, lost]})))
    (mine,) = (one for one in found.instances if one.type == "mig")
    assert [node.minor for node in mine.devices] == [0, 12, 13]
    kept = {c.node.minor for c in found.control if c.node.major == 234 and not c.granted}
    assert kept == {1, 2, 147, 148}
