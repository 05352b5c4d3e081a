"""What `topology.read` tells, on the small machine and on what a kernel may say of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xce_nodeagent.host import Host, topology

GPU, RDMA, ETHERNET = "0000:03:00.0", "0000:04:00.0", "0000:80:03.0"
SWITCH, DOWN = "0000:01:00.0", "0000:02:00.0"


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def device(root: Path, address: str) -> str:
    return str((root / "sys/bus/pci/devices" / address).resolve().relative_to(root.resolve()))


def test_functions_and_the_bridges_above_them(small: Path) -> None:
    found = topology.read(Host(small))
    assert set(found["pci"]) == {GPU, RDMA, ETHERNET}
    assert found["pci"][GPU] == {
        "class": "030200", "vendor": "10de", "device": "2330", "numa_node": 0,
        "root": "pci0000:00", "bridges": ["0000:00:01.0", SWITCH, DOWN],
    }  # fmt: skip
    assert found["pci"][ETHERNET]["bridges"] == []
    assert set(found["bridges"]) == {"0000:00:01.0", SWITCH, DOWN, "0000:02:01.0"}
    assert found["bridges"][SWITCH] == {"class": "060400", "vendor": "1000", "device": "c030"}


def test_an_event_s_text_tells_what_files_of_their_own_do(small: Path) -> None:
    """One file in place of four, which a host with hundreds of functions feels."""
    ids = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    for name in ids:
        (small / device(small, GPU) / name).unlink(missing_ok=True)
    put(small, f"{device(small, GPU)}/uevent", "PCI_ID=10DE:2330\nPCI_SUBSYS_ID=10DE:16C1\n")
    found = topology.read(Host(small))["pci"][GPU]
    assert [found[name] for name in ids] == ["10de", "2330", "10de", "16c1"]
    # Where it does not tell, the files do.
    put(small, f"{device(small, GPU)}/uevent", "PCI_ID=10DE:2330X\nPCI_SUBSYS_ID=\n")
    put(small, f"{device(small, GPU)}/vendor", "0x10de\n")
    found = topology.read(Host(small))["pci"][GPU]
    assert (found["vendor"], "device" in found) == ("10de", False)


@pytest.mark.parametrize(
    ("speed", "width", "told"),
    [
        ("16.0 GT/s PCIe", "16", {"link_speed": "16.0 GT/s PCIe", "link_width": 16}),
        ("8 GT/s", "255", {"link_speed": "8 GT/s"}),
        ("2.5 GT/s PCIe", "0", {"link_speed": "2.5 GT/s PCIe"}),
        ("Unknown", "255", {}),
        ("", "16", {}),
    ],
)
def test_a_link_is_told_where_there_is_one(
    small: Path, speed: str, width: str, told: dict[str, Any]
) -> None:
    for address in (GPU, SWITCH):
        put(small, f"{device(small, address)}/max_link_speed", f"{speed}\n")
        put(small, f"{device(small, address)}/max_link_width", f"{width}\n")
    found = topology.read(Host(small))
    for one in (found["pci"][GPU], found["bridges"][SWITCH]):
        assert {k: v for k, v in one.items() if k.startswith("link")} == told


def test_an_accelerator_of_any_class_is_placed_where_it_is_asked_for(small: Path) -> None:
    put(small, f"{device(small, GPU)}/class", "0x088000\n")
    assert GPU not in topology.read(Host(small))["pci"]
    assert topology.read(Host(small), {GPU})["pci"][GPU]["class"] == "088000"


def test_a_switch_between_cards_is_placed_and_other_bridges_of_its_class_are_not(
    small: Path,
) -> None:
    for address in (GPU, RDMA):
        put(small, f"{device(small, address)}/class", "0x068000\n")
    assert set(topology.read(Host(small))["pci"]) == {GPU, ETHERNET}


@pytest.mark.parametrize(
    ("text", "arch", "told"),
    [
        (
            """vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143
model name\t: Xeon\nflags\t\t: fpu\n\nprocessor\t: 1\nmodel\t\t: 9\n""",
            "",
            {"arch": "x86_64", "vendor": "GenuineIntel", "family": 6, "model": 143,
             "model_name": "Xeon"},
        ),
        (
            "Features\t: fp\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n",
            "",
            {"arch": "aarch64", "vendor": "0x41", "family": 8, "model": 0xD4F},
        ),
        (
            "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n\nmodel\t\t: 8335-GTH\n",
            "",
            {"arch": "ppc64le", "model_name": "POWER9, altivec supported"},
        ),
        ("", "riscv64", {"arch": "riscv64"}),
        ("isa\t\t: rv64imafdc\nuarch\t\t: sifive,u74-mc\n", "", {"arch": "riscv64"}),
        ("vendor_id       : IBM/S390\n", "", {"arch": "s390x", "vendor": "IBM/S390"}),
        (
            "cpu\t\t: POWER7 (architected)\n",
            "",
            {"arch": "ppc64", "model_name": "POWER7 (architected)"},
        ),
        ("CPU implementer\t: 0x41\nCPU architecture: 7\n", "",
         {"arch": "armv7l", "vendor": "0x41", "family": 7}),
        ("model name\t:    Xeon(TM) 2.60GHz   \nflags\t\t:\n", "",
         {"model_name": "Xeon(TM) 2.60GHz"}),
        ("\0\0:\0 : \n", "", {}),
    ],
)  # fmt: skip
def test_the_cpu(tmp_path: Path, text: str, arch: str, told: dict[str, Any]) -> None:
    put(tmp_path, "proc/cpuinfo", text)
    if arch:
        put(tmp_path, "proc/sys/kernel/arch", arch)
    assert topology.cpu(Host(tmp_path)) == told


def test_a_numa_node_names_its_package(small: Path) -> None:
    put(small, "sys/devices/system/node/node7/cpulist", "\n")
    found = topology.read(Host(small))
    assert [(node["id"], node["package"]) for node in found["numa_nodes"]] == [(0, 0), (1, 1)]
    assert found["memory_nodes"] == [7]


def test_a_host_that_tells_nothing(tmp_path: Path) -> None:
    assert topology.read(Host(tmp_path)) == {
        "cpu": {}, "packages": [], "cores": [], "numa_nodes": [], "memory_nodes": [],
        "pci": {}, "bridges": {},
    }  # fmt: skip
