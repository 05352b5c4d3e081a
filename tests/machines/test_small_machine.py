"""`--sysroot`, on a machine that this project wrote itself: the answer is that machine's alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xce_nodeagent.host import Host, pci

RDMA, GPU, ETHERNET = "0000:04:00.0", "0000:03:00.0", "0000:80:03.0"


def look(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", "inventory", "--json", *arguments],
        env={k: v for k, v in os.environ.items() if not k.startswith("XCE_")},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def inventory(root: Path) -> dict[str, Any]:
    done = look("--sysroot", str(root))
    assert (done.returncode, done.stderr) == (0, "")
    return dict(json.loads(done.stdout))


def test_the_whole_machine(small: Path) -> None:
    found = inventory(small)
    assert (found["source"], found["node"]) == ("local", "small")
    assert found["boot_id"] == "00000000-0000-4000-8000-00000000000a"
    assert found["attributes"] == {
        "hostname": "small.example", "kernel": "6.1.0-small", "cpu_model": "A Small CPU",
        "cpus": 4, "memory_bytes": 8 << 30,
    }  # fmt: skip
    assert [package["cpus"] for package in found["topology"]["packages"]] == ["0-1", "2-3"]
    gpu, rdma, ethernet = found["instances"]
    assert (gpu["id"], gpu["healthy"]) == (f"gpu-{GPU}", False)
    assert gpu["attributes"]["pcie_switch"] == "0000:01:00.0"
    assert (rdma["id"], ethernet["id"]) == (RDMA, ETHERNET)
    assert {
        key: rdma["attributes"][key]
        for key in ("netdev", "rdma_device", "link_layer", "speed_mbps", "pcie_switch", "model")
    } == {
        "netdev": "ib0", "rdma_device": "mlx5_0", "link_layer": "infiniband",
        "speed_mbps": 200000, "pcie_switch": "0000:01:00.0", "model": "ConnectX-6",
    }  # fmt: skip
    assert rdma["devices"][0]["path"] == "/dev/infiniband/uverbs0"
    assert ethernet["attributes"]["state"] == "down"
    assert ethernet["attributes"]["numa_node"] == 1
    assert "default_route" not in ethernet["attributes"]


def test_places(small: Path) -> None:
    place = pci.place(Host(small), f"/sys/bus/pci/devices/{GPU}")
    bridges = ("0000:00:01.0", "0000:01:00.0", "0000:02:00.0")
    assert place == pci.Place(GPU, "pci0000:00", bridges)


def test_an_operating_system_beside_the_three_folders_is_not_read(small: Path) -> None:
    (small / "etc").mkdir()
    (small / "etc/os-release").write_text('PRETTY_NAME="Not Asked For"\n')
    assert "operating_system" not in inventory(small)["attributes"]


def test_no_link_leads_out(small: Path, tmp_path: Path) -> None:
    """An absolute link, one of too many steps up, and a folder that is a link."""
    outside = tmp_path / "outside"
    (outside / "net/leak0/device").mkdir(parents=True)
    (outside / "secret").write_text("7\n")
    hostname = small / "proc/sys/kernel/hostname"
    hostname.unlink()
    hostname.symlink_to(outside / "secret")
    (small / "sys/up").symlink_to(os.path.relpath(outside / "secret", small / "sys"))
    (small / "sys/class/leak").symlink_to(outside / "net")
    for host in (Host(small), Host(os.path.relpath(small))):
        assert host.read("/proc/sys/kernel/hostname") is None
        assert host.number("/sys/up") is None
        assert host.read("/sys/../../outside/secret") is None
        assert host.names("/sys/class/leak") == ()
        assert host.real("/sys/class/leak/leak0") is None
        # One that stays inside is followed, as sysfs is made of them.
        assert host.read(f"/sys/bus/pci/devices/{GPU}/vendor") == "0x10de"
    assert inventory(small)["node"] == "unknown"


def test_a_root_that_is_a_link_itself(small: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(small)
    assert Host(tmp_path / "link").node() == "small"
    assert inventory(tmp_path / "link")["instances"] == inventory(small)["instances"]


def test_a_folder_of_nothing_is_no_call(tmp_path: Path) -> None:
    for named in ("", str(tmp_path / "none")):
        done = look("--sysroot", named)
        assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (64, "bad_request")


@pytest.mark.parametrize("root", ["/", "//"])
def test_a_folder_that_is_named_is_never_asked_as_a_live_machine(root: str) -> None:
    assert not Host(root, live=False).live
    attributes = json.loads(look("--sysroot", root).stdout)["attributes"]
    assert "operating_system" not in attributes
    assert "kernel" in attributes
