from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from export.conftest import PROFILES, gpu, inventory
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from recorded import recording
from recorded.machine import bits

from xce_nodeagent.cli.local import look
from xce_nodeagent.export.slurm import cores, gres_conf
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.inventory import Inventory

_MAJOR = 62  # for local use


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_like_cards_share_a_line_and_others_have_their_own() -> None:
    text = gres_conf(inventory(gpu(0), gpu(1), gpu(2, model="NVIDIA A40")))
    assert text.splitlines() == [
        "# gres.conf of node1",
        "# In slurm.conf:",
        "#   GresTypes=gpu",
        "#   NodeName=node1 Gres=gpu:nvidia_h100_80gb_hbm3:2,gpu:nvidia_a40:1",
        (
            "NodeName=node1 AutoDetect=off Name=gpu Type=nvidia_h100_80gb_hbm3"
            " Flags=nvidia_gpu_env File=/dev/nvidia0,/dev/nvidia1"
        ),
        "NodeName=node1 Name=gpu Type=nvidia_a40 Flags=nvidia_gpu_env File=/dev/nvidia2",
    ]


def test_links_are_counted_in_the_order_of_the_file() -> None:
    links = [{"kind": "nvlink", "one": "GPU-0", "other": "GPU-2", "count": 4}]
    text = gres_conf(inventory(gpu(0), gpu(1), gpu(2), topology={"links": links}))
    told = [re.findall(r"File=(\S+)(?: Links=(\S+))?", line)[0] for line in _lines(text)]
    assert told == [
        ("/dev/nvidia0", "-1,0,4"),
        ("/dev/nvidia1", ""),
        ("/dev/nvidia2", "4,0,-1"),
    ]


def test_cores_are_numbered_socket_by_socket() -> None:
    # Two sockets whose CPUs alternate, two threads a core, as servers of Dell have them.
    topology = {
        "packages": [{"id": 0, "cpus": "0,2,4,6"}, {"id": 1, "cpus": "1,3,5,7"}],
        "numa_nodes": [{"id": 0, "cpus": "0,2,4,6"}, {"id": 1, "cpus": "1,3,5,7"}],
        "cores": ["0,4", "1,5", "2,6", "3,7"],
    }
    assert cores(topology) == {0: 0, 4: 0, 2: 1, 6: 1, 1: 2, 5: 2, 3: 3, 7: 3}
    near, anywhere = gpu(0, local_cpus="1,3,5,7"), gpu(1, local_cpus="0-7")
    told = _lines(gres_conf(inventory(near, anywhere, topology=topology)))
    assert [re.findall(r"Cores=(\S+)", line) for line in told] == [["2-3"], []]


def test_a_slice_has_several_files_and_its_profile() -> None:
    nodes = (DeviceNode("/dev/nvidia0", "c", 195, 0), DeviceNode("/dev/cap30", "c", 237, 30))
    slice_ = gpu(0, id="MIG-1", type="mig", mig_profile="1g.10gb", devices=nodes)
    (line,) = _lines(gres_conf(inventory(slice_)))
    assert "Type=nvidia_h100_80gb_hbm3_1g.10gb" in line
    assert line.endswith("MultipleFiles=/dev/nvidia0,/dev/cap30")


def test_shares_are_percent_of_their_card() -> None:
    shares = [
        gpu(0, id=f"s{number}", type="mps", overlaps=("GPU-0",), mps_percent=40)
        for number in range(2)
    ]
    text = gres_conf(inventory(gpu(0, overlaps=("s0", "s1")), *shares))
    assert [line for line in _lines(text) if "Name=mps" in line] == [
        "NodeName=node1 Name=mps File=/dev/nvidia0 Count=80"
    ]


def test_what_cannot_be_named_is_a_comment() -> None:
    bad = gpu(0, id="a\nName=gpu", devices=(DeviceNode("/dev/a b#c", "c", 1, 3),))
    bare = gpu(1, devices=())
    text = gres_conf(inventory(bad, bare))
    assert _lines(text) == []
    assert text.splitlines()[1:] == [
        "# left out: gpu a?Name=gpu: gres.conf cannot name /dev/a b#c",
        "# left out: gpu GPU-1: it has no device node, which Slurm demands of a GPU",
    ]


@given(st.text(), st.text(), st.text(), st.text())
def test_no_text_breaks_a_line_or_adds_a_word(node: str, model: str, own: str, why: str) -> None:
    sick = gpu(1, id=own, healthy=False, reason=why)
    text = gres_conf(inventory(gpu(0, model=model), sick, node=node))
    (line,) = _lines(text)
    assert re.fullmatch(
        r"(NodeName=[A-Za-z0-9-]+ )?AutoDetect=off Name=gpu Type=[a-z0-9_.-]+"
        r" Flags=nvidia_gpu_env File=/dev/nvidia0",
        line,
    )
    assert len(text.split("\n")) == 7  # six lines


def test_a_node_goes_by_its_short_name() -> None:
    (line,) = _lines(gres_conf(inventory(gpu(0), node="gpu-12.cluster.example")))
    assert line.startswith("NodeName=gpu-12 ")


@pytest.mark.needs("recorded", "lstopo")
@pytest.mark.parametrize("name", recording.TARS)
def test_cores_are_numbered_as_lstopo_does(name: str, recorded: Callable[[str], Path]) -> None:
    """gres.conf(5): the number of a core is the "Core L#" of lstopo."""
    root = recorded(name)
    order = cores(look(str(root), "").topology)
    done = subprocess.run(
        ["lstopo-no-graphics", "--disallowed", "--of", "xml", "-"],
        env={**os.environ, "HWLOC_FSROOT": str(root), "HWLOC_COMPONENTS": "linux,stop"},
        check=True,
        capture_output=True,
    )
    found: dict[int, int] = {}
    every = ET.fromstring(done.stdout).iter("object")  # noqa: S314  # lstopo's own
    for number, core in enumerate(one for one in every if one.get("type") == "Core"):
        found |= dict.fromkeys(bits(core.get("cpuset", "")), number)
    if not found:
        pytest.skip("lstopo finds no cores in it")
    assert order == found


@pytest.mark.needs("slurm")
class TestSlurmd:
    """Debian's slurmd reads it."""

    @pytest.mark.parametrize("profile", [name for name in PROFILES if name != "cpu-only"])
    def test_slurmd_counts_what_is_offered(self, simulated, profile: str, tmp_path: Path) -> None:
        found = _on_nodes(simulated(profile), tmp_path)
        text = gres_conf(found)
        told = _slurmd(tmp_path, text)
        wanted = sum(
            int(one.rpartition(":")[2]) for one in re.findall(r"Gres=(\S+)", text)[0].split(",")
        )
        assert sum(int(one["Count"]) for one in told) == wanted > 0
        files = [one.get("File") for one in told if one["Name"] == "gpu"]
        assert None not in files
        assert len(set(files)) == len(files)

    def test_slurmd_sees_links_and_cores(self, simulated, tmp_path: Path) -> None:
        found = _on_nodes(simulated("dgx-h100"), tmp_path)
        cpus = {"packages": [{"id": 0, "cpus": "0-1"}], "cores": ["0", "1"]}
        cards = [one for one in found.instances if one.type == "gpu"]
        near = [
            structs.replace(one, attributes={**one.attributes, "local_cpus": str(place % 2)})
            for place, one in enumerate(cards)
        ]
        told = _slurmd(
            tmp_path,
            gres_conf(
                structs.replace(found, instances=tuple(near), topology={**found.topology, **cpus})
            ),
        )
        assert [one["Cores"] for one in told] == ["0", "1"] * 4
        assert told[1]["Links"] == "18,-1,18,18,18,18,18,18"


def _on_nodes(found: Inventory, folder: Path) -> Inventory:
    """Put the device nodes of an inventory below a folder, and make them."""
    made: dict[str, DeviceNode] = {}
    for node in sorted({node for one in found.instances for node in one.devices}):
        path = folder / "dev" / os.path.basename(node.path)
        path.parent.mkdir(exist_ok=True)
        made[node.path] = DeviceNode(str(path), "c", _MAJOR, len(made))
        os.mknod(path, 0o020600, os.makedev(_MAJOR, made[node.path].minor))
    return structs.replace(
        found,
        instances=tuple(
            structs.replace(one, devices=tuple(made[node.path] for node in one.devices))
            for one in found.instances
        ),
    )


def _slurmd(folder: Path, text: str) -> list[dict[str, str]]:
    """Let slurmd read a gres.conf; give what it says of each resource."""
    (folder / "gres.conf").write_text(text, "utf-8")
    head = text.splitlines()[:4]
    types, node = (line.removeprefix("#   ") for line in head[2:])
    name = node.split()[0].removeprefix("NodeName=")
    (folder / "slurm.conf").write_text(
        f"ClusterName=xce\nSlurmctldHost={name}\nAuthType=auth/none\n"
        "SlurmdParameters=config_overrides\nProctrackType=proctrack/linuxproc\n"
        f"SlurmdSpoolDir={folder}/spool\nSlurmdPidFile={folder}/pid\n"
        f"{types}\n{node} Sockets=2 CoresPerSocket=64 ThreadsPerCore=2\n"
        "PartitionName=p Nodes=ALL\n",
        "utf-8",
    )
    done = subprocess.run(
        ["slurmd", "-G", "-N", name, "-f", folder / "slurm.conf"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert "error" not in said, said
    return [
        dict(re.findall(r"(\w+)=(\S+)", line)) for line in said.splitlines() if "Gres Name=" in line
    ]
