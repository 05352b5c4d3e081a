"""A machine of the class of a DGX H100: 8 GPUs, 10 NICs, 200 PCI functions, 224 CPUs.

Where cards stand comes from the project's own profile (its facts: NVIDIA's user guide). Around
them is what such a machine has besides: bridges, drives, memory controllers, ports of switches.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROFILE = Path(__file__).parents[2] / "xce_nodeagent/providers/profiles/dgx-h100.toml"
FUNCTIONS = 200
THREADS, PER_NODE, CORES = 224, 56, 112
_BRIDGE, _GPU, _NIC, _IB, _DRIVE, _OTHER = (
    "0x060400", "0x030200", "0x020000", "0x020700", "0x010802", "0x088000",
)  # fmt: skip


def cards() -> Iterator[dict[str, Any]]:
    """Give the 8 GPUs and 10 NICs, each with `kind`."""
    profile = tomllib.loads(PROFILE.read_text("utf-8"))
    for kind in ("gpu", "nic"):
        rows = [
            {k: v[place] if isinstance(v, list) else v for k, v in table.items()}
            for table in profile[kind]
            for place in range(len(table["pci_address"]))
        ]
        # Of the last table one port of each card.
        chosen = [row for row in rows if row["pci_address"].endswith(".0")]
        yield from ({"kind": kind, **row} for row in chosen)


def write(root: Path, *, driver: bool = False) -> Path:
    """Write the machine below a folder, and give that. `driver`: with NVIDIA's own one loaded."""
    _kernel(root)
    _processors(root)
    count = 0
    for number, card in enumerate(cards()):
        path, above = _way(card)
        for bridge in above:
            count += function(root, bridge, _BRIDGE, "0x1000:0xc030", card["numa_node"])
        if card["kind"] == "gpu":
            count += function(root, path, _GPU, "0x10de:0x2330", card["numa_node"])
            _drm(root, path, number)
        else:
            code = _IB if card["link_layer"] == "infiniband" else _NIC
            count += function(root, path, code, "0x15b3:0x1021", card["numa_node"])
            bind(root, card["pci_address"], "mlx5_core")
            interface(root, path, card, number)
    for number in range(FUNCTIONS - count):
        code = (_DRIVE, _OTHER, _OTHER, _BRIDGE)[number % 4]
        at = f"0001:{number // 8:02x}:{number % 8:02x}.0"
        function(root, f"pci0001:{number // 64:02x}/{at}", code, "0x8086:0x3456", number % 2)
    if driver:
        file(root, "proc/driver/nvidia/version", "NVRM version: 550.90.07")
    return root


def _way(card: dict[str, Any]) -> tuple[str, list[str]]:
    """Give the path of a card below sys/devices, and those of the bridges above it."""
    root, address = card["pcie_root"], card["pci_address"]
    domain, bus = root.removeprefix("pci").split(":")
    port = f"{root}/{domain}:{bus}:01.0"
    if "pcie_switch" not in card:
        return f"{port}/{address}", [port]
    down = f"{card['pcie_switch'][:-4]}{'00' if card['kind'] == 'gpu' else '04'}.1"
    switch = f"{port}/{card['pcie_switch']}"
    return f"{switch}/{down}/{address}", [port, switch, f"{switch}/{down}"]


def function(root: Path, path: str, code: str, ids: str, node: int) -> int:
    """Write a PCI function, unless it is there; give how many are new."""
    folder, name = f"sys/devices/{path}", path.rpartition("/")[2]
    if (root / folder / "class").exists():
        return 0
    vendor, device = ids.split(":")
    for key, value in (
        ("class", code), ("vendor", vendor), ("device", device), ("revision", "0x00"),
        ("subsystem_vendor", vendor), ("subsystem_device", device),
        ("numa_node", str(node)), ("local_cpulist", _cpus(node)), ("enable", "1"),
    ):  # fmt: skip
        file(root, f"{folder}/{key}", value)
    link(root, f"sys/bus/pci/devices/{name}", folder)
    link(root, f"{folder}/subsystem", "sys/bus/pci")
    return 1


def bind(root: Path, address: str, driver: str) -> None:
    """Bind a driver to a function, as the kernel shows it."""
    (root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
    folder = (root / f"sys/bus/pci/devices/{address}").resolve().relative_to(root.resolve())
    link(root, f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")


def interface(root: Path, behind: str, card: dict[str, Any], number: int) -> None:
    """Write the interface and the RDMA device of a NIC."""
    name, rdma = card["netdev"], card["rdma_device"]
    layer = card["link_layer"]
    folder = f"sys/devices/{behind}/net/{name}"
    for key, value in (
        ("ifindex", str(number + 2)), ("iflink", str(number + 2)),
        ("type", "32" if layer == "infiniband" else "1"), ("operstate", "up"), ("carrier", "1"),
        ("address", f"02:00:00:00:01:{number:02x}"), ("dev_port", "0"), ("dev_id", "0x0"),
        ("speed", str(card["speed_mbps"])), ("mtu", "1500"), ("flags", "0x1003"),
    ):  # fmt: skip
        file(root, f"{folder}/{key}", value)
    link(root, f"sys/class/net/{name}", folder)
    link(root, f"{folder}/device", f"sys/devices/{behind}")
    link(root, f"{folder}/subsystem", "sys/class/net")
    port = f"sys/devices/{behind}/infiniband/{rdma}"
    for key, value in (
        ("fw_ver", "28.39.1002"), ("board_id", "MT_0000000838"), ("node_type", "1: CA"),
        ("ports/1/state", "4: ACTIVE"), ("ports/1/rate", "400 Gb/sec (4X NDR)"),
        ("ports/1/link_layer", "InfiniBand" if layer == "infiniband" else "Ethernet"),
        ("ports/1/gid_attrs/ndevs/0", name), ("ports/1/gid_attrs/types/0", "IB/RoCE v1"),
    ):  # fmt: skip
        file(root, f"{port}/{key}", value)
    link(root, f"sys/class/infiniband/{rdma}", port)
    link(root, f"{port}/device", f"sys/devices/{behind}")
    for kind, node, minor in (("verbs", "uverbs", 192), ("mad", "umad", 0)):
        there = f"sys/devices/{behind}/infiniband_{kind}/{node}{number}"
        file(root, f"{there}/dev", f"231:{minor + number}")
        file(root, f"{there}/ibdev", rdma)
        link(root, f"sys/class/infiniband_{kind}/{node}{number}", there)


def _drm(root: Path, behind: str, number: int) -> None:
    render = f"renderD{128 + number}"  # codespell:ignore
    for name, minor in ((f"card{number}", number), (render, 128 + number)):
        there = f"sys/devices/{behind}/drm/{name}"
        file(root, f"{there}/dev", f"226:{minor}")
        link(root, f"{there}/device", f"sys/devices/{behind}")
        link(root, f"sys/class/drm/{name}", there)


def _cpus(node: int) -> str:
    first = node * PER_NODE
    return f"{first}-{first + PER_NODE - 1},{first + CORES}-{first + CORES + PER_NODE - 1}"


def _kernel(root: Path) -> None:
    file(root, "proc/sys/kernel/hostname", "dgx.example")
    file(root, "proc/sys/kernel/osrelease", "6.8.0-dgx")
    file(root, "proc/sys/kernel/arch", "x86_64")
    file(root, "proc/sys/kernel/random/boot_id", "00000000-0000-4000-8000-00000000000b")
    line = "processor\t: {}\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\nflags\t\t: {}\n\n"
    flags = "fpu vme sse " * 100  # about as much as a real one tells of each
    file(root, "proc/cpuinfo", "".join(line.format(cpu, flags) for cpu in range(THREADS)))
    file(root, "proc/meminfo", "MemTotal:       2113413256 kB")
    devices = "195 nvidia\n195 nvidiactl\n226 drm\n231 infiniband_verbs\n507 nvidia-caps\n"
    devices += "510 nvidia-uvm\n"
    file(root, "proc/devices", f"Character devices:\n{devices}\nBlock devices:\n259 blkext\n")


def _processors(root: Path) -> None:
    for node in (0, 1):
        folder = f"sys/devices/system/node/node{node}"
        file(root, f"{folder}/cpulist", _cpus(node))
        file(root, f"{folder}/distance", "21 10" if node else "10 21")
    for cpu in range(THREADS):
        folder, core = f"sys/devices/system/cpu/cpu{cpu}/topology", cpu % CORES
        file(root, f"{folder}/physical_package_id", str(core // PER_NODE))
        file(root, f"{folder}/thread_siblings_list", f"{core},{core + CORES}")
        file(root, f"{folder}/core_id", str(core))
    file(root, "sys/devices/system/cpu/online", f"0-{THREADS - 1}")


def file(root: Path, name: str, text: str) -> None:
    """Write a file of one line, as sysfs shows them."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", "utf-8")


def link(root: Path, name: str, to: str) -> None:
    """Make a link as the kernel does: relative."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(root / to, path.parent))
