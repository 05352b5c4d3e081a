"""A small machine of the project's own, written as the kernel shows one: links are relative.

Two packages of two CPUs, each a NUMA node. Below the first one's host bridge a PCIe switch with an
NVIDIA card and a ConnectX-6; on the second one's, an Ethernet port of a virtio card, and a bridge.
"""

from __future__ import annotations

import os
from pathlib import Path

GPU, RDMA, ETHERNET = "0000:03:00.0", "0000:04:00.0", "0000:80:03.0"
_PORT = "pci0000:00/0000:00:01.0"
_SWITCH = f"{_PORT}/0000:01:00.0"
FUNCTIONS = {
    # path below /sys/devices: class, vendor, device, NUMA node, CPUs, driver
    _PORT: ("0x060400", "0x8086", "0x347a", 0, "0-1", "pcieport"),
    _SWITCH: ("0x060400", "0x1000", "0xc030", 0, "0-1", "pcieport"),
    f"{_SWITCH}/0000:02:00.0": ("0x060400", "0x1000", "0xc030", 0, "0-1", "pcieport"),
    f"{_SWITCH}/0000:02:01.0": ("0x060400", "0x1000", "0xc030", 0, "0-1", "pcieport"),
    f"{_SWITCH}/0000:02:00.0/{GPU}": ("0x030200", "0x10de", "0x2330", 0, "0-1", ""),
    f"{_SWITCH}/0000:02:01.0/{RDMA}": ("0x020700", "0x15b3", "0x101b", 0, "0-1", "mlx5_core"),
    f"pci0000:80/{ETHERNET}": ("0x020000", "0x1af4", "0x1000", 1, "2-3", "virtio-pci"),
}
_NIC = f"{_SWITCH}/0000:02:01.0/{RDMA}"


def write(root: Path) -> Path:
    """Write the machine below a folder, and give that."""
    _kernel(root)
    for node, cpus in ((0, "0-1"), (1, "2-3")):
        _file(root, f"sys/devices/system/node/node{node}/cpulist", cpus)
        _file(
            root, f"sys/devices/system/node/node{node}/distance", "10 21" if not node else "21 10"
        )
    for cpu in range(4):
        topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
        _file(root, f"{topology}/physical_package_id", str(cpu // 2))
        _file(root, f"{topology}/thread_siblings_list", str(cpu))
    _file(root, "sys/devices/system/cpu/online", "0-3")
    for path, (kind, vendor, device, node, cpus, driver) in FUNCTIONS.items():
        folder, name = f"sys/devices/{path}", path.rpartition("/")[2]
        for key, value in (
            ("class", kind), ("vendor", vendor), ("device", device),
            ("numa_node", str(node)), ("local_cpulist", cpus),
        ):  # fmt: skip
            _file(root, f"{folder}/{key}", value)
        _link(root, f"sys/bus/pci/devices/{name}", folder)
        _link(root, f"{folder}/subsystem", "sys/bus/pci")
        if driver:
            (root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            _link(root, f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
    ethernet = f"pci0000:80/{ETHERNET}/virtio0"
    _interface(root, f"{_NIC}/net/ib0", behind=_NIC, index=2, kind="32")
    _interface(root, f"{ethernet}/net/eth0", behind=ethernet, index=3, kind="1", state="down")
    _interface(root, "virtual/net/br0", index=4, kind="1")
    _rdma(root)
    return root


def _kernel(root: Path) -> None:
    _file(root, "proc/sys/kernel/hostname", "small.example")
    _file(root, "proc/sys/kernel/osrelease", "6.1.0-small")
    _file(root, "proc/sys/kernel/random/boot_id", "00000000-0000-4000-8000-00000000000a")
    _file(root, "proc/cpuinfo", "processor\t: 0\nmodel name\t: A Small CPU\n")
    _file(root, "proc/meminfo", "MemTotal:        8388608 kB")
    _file(root, "proc/devices", "Character devices:\n231 infiniband_verbs\n\nBlock devices:\n")


def _interface(
    root: Path, path: str, *, behind: str = "", index: int, kind: str, state: str = "up"
) -> None:
    folder, name = f"sys/devices/{path}", path.rpartition("/")[2]
    for key, value in (
        ("ifindex", str(index)), ("iflink", str(index)), ("type", kind), ("operstate", state),
        ("address", f"02:00:00:00:00:{index:02x}"), ("dev_port", "0"),
    ):  # fmt: skip
        _file(root, f"{folder}/{key}", value)
    _link(root, f"sys/class/net/{name}", folder)
    if behind:
        _link(root, f"{folder}/device", f"sys/devices/{behind}")


def _rdma(root: Path) -> None:
    folder = f"sys/devices/{_NIC}/infiniband/mlx5_0"
    for key, value in (
        ("state", "4: ACTIVE"), ("rate", "200 Gb/sec (4X HDR)"), ("link_layer", "InfiniBand"),
        ("gid_attrs/ndevs/0", "ib0"),
    ):  # fmt: skip
        _file(root, f"{folder}/ports/1/{key}", value)
    _link(root, "sys/class/infiniband/mlx5_0", folder)
    _link(root, f"{folder}/device", f"sys/devices/{_NIC}")
    verbs = f"sys/devices/{_NIC}/infiniband_verbs/uverbs0"
    _file(root, f"{verbs}/dev", "231:192")
    _file(root, f"{verbs}/ibdev", "mlx5_0")
    _link(root, "sys/class/infiniband_verbs/uverbs0", verbs)


def _file(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _link(root: Path, name: str, to: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(root / to, path.parent))
