from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from export.conftest import PROFILES, gpu, inventory
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from xce_nodeagent.export.cdi import specs
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.inventory import ControlNode

# The words of the specification (SPEC.md of CDI 0.5.0) on names.
_KIND = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_FIELDS = {
    "spec": {"cdiVersion", "kind", "devices", "containerEdits"},
    "device": {"name", "containerEdits"},
    "edits": {"env", "deviceNodes", "hooks", "mounts"},
    "node": {
        "path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"
    },
}  # fmt: skip


def _check(text: str) -> dict[str, list[str]]:
    """Hold a file against the specification; give each device's nodes."""
    spec = json.loads(text)
    assert spec.keys() <= _FIELDS["spec"]
    assert spec["cdiVersion"] == "0.5.0"
    assert _KIND.fullmatch(spec["kind"])
    found = {}
    for device in spec["devices"]:
        assert device.keys() == _FIELDS["device"]
        assert _DEVICE.fullmatch(device["name"])
        edits = device["containerEdits"]
        assert edits.keys() <= _FIELDS["edits"]
        assert edits
        for node in edits.get("deviceNodes", ()):
            assert node.keys() <= _FIELDS["node"]
            assert node["path"].startswith("/")
            assert node["type"] in ("c", "b")
            assert set(node["permissions"]) <= set("rwm")
        assert device["name"] not in found
        found[device["name"]] = [node["path"] for node in edits.get("deviceNodes", ())]
    assert found
    return found


def test_a_card_brings_its_own_nodes_and_those_of_its_provider() -> None:
    control = {
        "nvidia": (
            ControlNode(DeviceNode("/dev/nvidiactl", "c", 195, 255), granted=True),
            ControlNode(DeviceNode("/dev/nvidia-caps/nvidia-cap1", "c", 237, 1), granted=False),
        ),
        "amd": (ControlNode(DeviceNode("/dev/kfd", "c", 240, 0), granted=True),),
    }
    files, left_out = specs(inventory(gpu(0), gpu(1, drained=True), control=control))
    assert _check(files["gpu"]) == {"GPU-0": ["/dev/nvidia0", "/dev/nvidiactl"]}
    assert [(one.instance.id, one.why) for one in left_out] == [("GPU-1", "it is drained")]


def test_what_a_site_declares_for_an_instance_is_told_to_the_container() -> None:
    told = ["LM_LICENSE_FILE=27000@lic", "no variable", "A=1\nB=2"]
    dongle = gpu(0, type="dongle", devices=(), vendor="acme", environment=told)
    files, left_out = specs(inventory(dongle))
    (device,) = json.loads(files["dongle"])["devices"]
    assert device["containerEdits"] == {"env": ["LM_LICENSE_FILE=27000@lic"]}
    assert not left_out


@pytest.mark.parametrize("profile", PROFILES)
def test_every_kind_is_as_the_specification_says(simulated, profile: str) -> None:
    found = simulated(profile)
    files, left_out = specs(found)
    told = [name for text in files.values() for name in _check(text)]
    wanted = [one.id for one in found.instances if one.type != "ports"]
    assert sorted([*told, *(one.instance.id for one in left_out)]) == sorted(wanted)


_KINDS = st.text(min_size=1).filter(lambda kind: kind != "ports")  # of which CDI has nothing


@given(st.lists(st.text(), min_size=1, unique=True), _KINDS)
def test_any_id_and_type_makes_a_name(ids: list[str], kind: str) -> None:
    files, _ = specs(inventory(*(gpu(n, id=own, type=kind) for n, own in enumerate(ids))))
    (text,) = files.values()
    assert len(_check(text)) == len(ids)


_SHOWER = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
int main(int n, char **paths) {
    for (int i = 1; i < n; i++) {
        struct stat s;
        if (lstat(paths[i], &s)) printf("%s none\\n", paths[i]);
        else printf("%s %c %u:%u\\n", paths[i], S_ISCHR(s.st_mode) ? 'c' : '?',
                    major(s.st_rdev), minor(s.st_rdev));
    }
    printf("%s\\n", getenv("NVIDIA_VISIBLE_DEVICES"));
}
"""


@pytest.mark.needs("podman")
def test_podman_gives_a_container_the_named_cards_and_no_others(tmp_path: Path) -> None:
    kind = "xcetest"
    cards = [
        gpu(n, type=kind, devices=(DeviceNode(f"/dev/xce-test{n}", "c", 62, n),)) for n in range(3)
    ]
    control = {"nvidia": (ControlNode(DeviceNode("/dev/xce-testctl", "c", 62, 99), granted=True),)}
    files, _ = specs(inventory(*cards, control=control))
    root = tmp_path / "root"
    for name in ("bin", "dev", "proc", "sys", "etc", "run", "tmp"):
        (root / name).mkdir(parents=True)
    source = tmp_path / "shower.c"
    source.write_text(_SHOWER, "utf-8")
    subprocess.run(["cc", "-static", "-o", root / "bin/shower", source], check=True)
    (tmp_path / "cdi.json").write_text(files[kind], "utf-8")
    nodes = [*(f"/dev/xce-test{n}" for n in range(3)), "/dev/xce-testctl"]
    podman = (
        f"podman --runtime crun --root {tmp_path}/store --runroot /run/store"
        " --cgroup-manager cgroupfs --events-backend none run --rm"
        " --ulimit nofile=256:256 --ulimit nproc=4096:4096"  # podman asks for more than it may
        f" --cgroups disabled --network none --device xce.io/{kind}=GPU-0"
        f" --device xce.io/{kind}=GPU-2 --rootfs {root} /bin/shower {' '.join(nodes)}"
    )
    # podman 4.3 looks in /etc/cdi and /var/run/cdi only; nobody else sees this one. And crun 1.8
    # refuses a host that has both kinds of cgroups, also where it is to use none.
    script = (
        "mount -t tmpfs none /run && mount -t cgroup2 none /sys/fs/cgroup && mkdir /run/cdi &&"
        f" cp {tmp_path}/cdi.json /run/cdi/xcetest.json && exec {podman}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        capture_output=True, text=True, timeout=90, check=False,
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "/dev/xce-test0 c 62:0",
        "/dev/xce-test1 none",
        "/dev/xce-test2 c 62:2",
        "/dev/xce-testctl c 62:99",
        "void",
    ]


def test_a_slice_has_all_of_its_nodes() -> None:
    nodes = (DeviceNode("/dev/nvidia0", "c", 195, 0), DeviceNode("/dev/cap30", "c", 237, 30))
    files, _ = specs(inventory(structs.replace(gpu(0), id="MIG-1", type="mig", devices=nodes)))
    assert _check(files["mig"]) == {"MIG-1": ["/dev/nvidia0", "/dev/cap30"]}
