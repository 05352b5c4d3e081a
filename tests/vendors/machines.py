"""Machines of the project's own, written as the kernel shows them, from facts about the hardware.

Each is a small sysfs: PCI functions behind their bridges, DRM nodes, and AMD's compute topology.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

GIB = 1 << 30
MI300X_MEMORY = 206_141_652_992
HIVE = 0x7D00_AB12_0000_0001


class Tree:
    """A sysfs below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file("proc/devices", "Character devices:\n226 drm\n235 kfd\n261 accel\n")

    def file(self, name: str, text: object) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def link(self, name: str, to: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(self.root / to, path.parent))

    def function(
        self, path: str, kind: int, ids: tuple[int, int], driver: str = "", numa: int = 0
    ) -> str:
        """Write a PCI function, `pci0000:00/0000:00:01.1/0000:05:00.0`, and give its folder."""
        folder, address = f"sys/devices/{path}", path.rpartition("/")[2]
        for name, value in (
            ("class", f"{kind:#08x}"), ("vendor", f"{ids[0]:#06x}"), ("device", f"{ids[1]:#06x}"),
            ("numa_node", numa), ("local_cpulist", f"{numa * 8}-{numa * 8 + 7}"),
        ):  # fmt: skip
            self.file(f"{folder}/{name}", value)
        self.link(f"sys/bus/pci/devices/{address}", folder)
        if driver:
            (self.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            self.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
        return folder

    def drm(self, device: str, card: int, render: int | None) -> None:
        """Give a device its DRM nodes; the primary one has the minor `card`."""
        names = {f"card{card}": card}
        if render is not None:
            names[f"renderD{render}"] = render
        for name, minor in names.items():
            self.file(f"{device}/drm/{name}/dev", f"226:{minor}")
            self.link(f"{device}/drm/{name}/device", device)
            self.link(f"sys/class/drm/{name}", f"{device}/drm/{name}")
        (self.root / f"{device}/drm/card{card}/card{card}-DP-1").mkdir()

    def kfd(self, number: int, told: dict[str, int], memory: int = 0) -> str:
        """Write a node of the compute topology, and give its folder."""
        self.file("sys/class/kfd/kfd/dev", "235:0")
        folder = f"sys/class/kfd/kfd/topology/nodes/{number}"
        self.file(f"{folder}/gpu_id", 0 if not told.get("simd_count") else 1000 + number)
        self.file(f"{folder}/properties", lines(told))
        if memory:
            bank = {"heap_type": 1, "size_in_bytes": memory, "flags": 0, "width": 8192}
            self.file(f"{folder}/mem_banks/0/properties", lines(bank))
        return folder

    def xgmi(self, number: int, to: int, *, hops: int = 1, count: int = 1, width: int = 0) -> None:
        """Write a link from one node to another; `width` is the bandwidth of one, in MB/s."""
        told = {
            "type": 11, "node_from": number, "node_to": to, "weight": 15 * hops,
            "min_bandwidth": width, "max_bandwidth": width * count if hops == 1 else 0, "flags": 1,
        }  # fmt: skip
        folder = f"sys/class/kfd/kfd/topology/nodes/{number}/io_links/{to}"
        self.file(f"{folder}/properties", lines(told))


def lines(told: dict[str, int]) -> str:
    return "\n".join(f"{name} {value}" for name, value in told.items())


def properties(
    address: str, render: int, *, target: int, units: int, **more: int
) -> dict[str, int]:
    """Give what KFD tells of a GPU."""
    bus, rest = (int(address[5:7], 16), address[8:])
    device, function = (int(part, 16) for part in rest.split("."))
    told = {
        "cpu_cores_count": 0, "simd_count": units * 4, "simd_per_cu": 4,
        "gfx_target_version": target, "vendor_id": 0x1002, "domain": int(address[:4], 16),
        "location_id": bus << 8 | device << 3 | function, "drm_render_minor": render,
    }  # fmt: skip
    return told | more


def _sockets(tree: Tree, count: int = 2) -> None:
    for number in range(count):
        tree.kfd(number, {"cpu_cores_count": 96, "simd_count": 0, "drm_render_minor": 0})


MI300X_BUSES = (0x05, 0x26, 0x46, 0x65, 0x85, 0xA6, 0xC6, 0xE5)


def mi300x(tree: Tree, mode: str = "SPX", kernel: str = "new") -> None:
    """Eight MI300X, all joined by XGMI. `kernel` is how it tells the parts of a card.

    `new`: by bits 31:28 of the location; `function`: in place of the PCI function; `none`: not at
    all. All older ones give each part the unique id of its card.
    """
    _sockets(tree)
    parts = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}[mode]
    node = 2
    for place, bus in enumerate(MI300X_BUSES):
        address, unique = f"0000:{bus:02x}:00.0", 0xA1B2_0000_0000_0010 + place
        root = f"pci0000:{bus & 0xE0:02x}"
        up = f"{root}/0000:{bus & 0xE0:02x}:01.1"
        tree.function(up, 0x060400, (0x1022, 0x14AB), "pcieport", place // 4)
        folder = tree.function(f"{up}/{address}", 0x120000, (0x1002, 0x74A1), "amdgpu", place // 4)
        tree.drm(folder, place * 8 + 1, 128 + place * 8)
        for name, value in (
            ("unique_id", f"{unique:016x}"), ("current_compute_partition", mode),
            ("available_compute_partition", "SPX, DPX, QPX, CPX"),
            ("current_memory_partition", "NPS1"), ("mem_info_vram_total", MI300X_MEMORY),
            ("serial_number", f"69231500{place:04}"), ("ras/umc_err_count", "ue: 0\nce: 3"),
        ):  # fmt: skip
            tree.file(f"{folder}/{name}", value)
        for part in range(1, 8):  # they are there in every mode
            device = f"sys/devices/platform/amdgpu_xcp_{place * 7 + part - 1}"
            tree.drm(device, place * 8 + 1 + part, 128 + place * 8 + part)
        for part in range(parts):
            told = properties(
                address, 128 + place * 8 + part, target=90402, units=304 // parts,
                hive_id=HIVE, unique_id=unique,
            )  # fmt: skip
            if kernel == "new":
                told["location_id"] |= part << 28
                told["unique_id"] += 0x1000 * part + 0x1000 * (parts > 1)
            elif kernel == "function":
                told["location_id"] |= part
            tree.kfd(node, told, MI300X_MEMORY // parts)
            node += 1
    # Of divided cards those of the first part stand for all: 64 parts have 4,032.
    for one in range(2, node if parts == 1 else 3):
        for other in range(2, node):
            if one != other:
                same = (one - 2) // parts == (other - 2) // parts
                tree.xgmi(one, other, hops=1 if parts == 1 or same else 2, width=64000)


MI250_LINKS = {
    # between the dies of a module, and between modules
    (0, 1): 4, (2, 3): 4, (4, 5): 4, (6, 7): 4,
    (0, 2): 1, (1, 3): 1, (1, 5): 2, (0, 6): 2, (3, 7): 2, (2, 4): 1, (4, 6): 1, (5, 7): 1,
}  # fmt: skip


def mi250(tree: Tree) -> None:
    """Four MI250X modules: eight dies, each a GPU of its own."""
    _sockets(tree, 4)
    for place in range(8):
        address = f"0000:{0xC1 + 4 * place:02x}:00.0"
        folder = tree.function(
            f"pci0000:c0/{address}", 0x038000, (0x1002, 0x7408), "amdgpu", place // 2
        )
        tree.drm(folder, place + 1, 128 + place)
        unique = 0xC0DE_0000_0000_0100 + place
        tree.file(f"{folder}/unique_id", f"{unique:016x}")
        told = properties(
            address, 128 + place, target=90010, units=110, hive_id=HIVE, unique_id=unique
        )
        tree.kfd(4 + place, told, 64 * GIB)
        for other in range(8):
            count = MI250_LINKS.get((min(place, other), max(place, other)), 0)
            if other != place:
                tree.xgmi(4 + place, 4 + other, hops=1 if count else 2, count=count, width=50000)


def consumer(tree: Tree) -> None:
    """A desktop: a Radeon without unique id, the processor's own GPU, and a BMC's old Radeon."""
    _sockets(tree, 1)
    card = tree.function(
        "pci0000:00/0000:00:01.1/0000:07:00.0", 0x030000, (0x1002, 0x73DF), "amdgpu"
    )
    tree.drm(card, 0, 128)
    tree.file(f"{card}/mem_info_vram_total", 12_868_124_672)
    tree.kfd(1, properties("0000:07:00.0", 128, target=100301, units=40))
    own = tree.function(
        "pci0000:00/0000:00:08.1/0000:0b:00.0", 0x030000, (0x1002, 0x164E), "amdgpu"
    )
    tree.drm(own, 1, 129)
    tree.function("pci0000:00/0000:0c:00.0", 0x030000, (0x1002, 0x515E), "radeon")


def driverless(tree: Tree) -> None:
    """Cards that no driver of their vendor has: AMD, NVIDIA, Intel, Habana."""
    for place, (kind, ids, driver) in enumerate((
        (0x120000, (0x1002, 0x74A1), ""), (0x120000, (0x1002, 0x74A1), "vfio-pci"),
        (0x030200, (0x10DE, 0x2330), ""), (0x030200, (0x10DE, 0x2330), "vfio-pci"),
        (0x030000, (0x10DE, 0x1B80), "nouveau"), (0x038000, (0x8086, 0x0BD5), ""),
        (0x038000, (0x8086, 0x0BD5), "vfio-pci"), (0x038000, (0x8086, 0x0BD5), "xe"),
        (0x120000, (0x1DA3, 0x1020), ""),
    )):  # fmt: skip
        tree.function(f"pci0000:00/0000:{place + 1:02x}:00.0", kind, ids, driver)
    tree.drm("sys/devices/pci0000:00/0000:05:00.0", 0, 128)  # nouveau makes nodes


def max1550(tree: Tree) -> None:
    """Six Max 1550 of two tiles each, a virtual function of the first, and a BMC's display."""
    bmc = tree.function("pci0000:00/0000:02:00.0", 0x030000, (0x1A03, 0x2000), "ast")
    tree.drm(bmc, 0, None)
    for place, bus in enumerate((0x18, 0x42, 0x6C, 0x18, 0x42, 0x6C)):
        address = f"000{place // 3}:{bus:02x}:00.0"
        ids = (0x8086, 0x0BD5)
        folder = tree.function(f"pci000{place // 3}:00/{address}", 0x038000, ids, "xe", place // 3)
        tree.drm(folder, place + 1, 128 + place)
        for tile in range(2):
            tree.file(f"{folder}/tile{tile}/physical_vram_size_bytes", hex(64 * GIB))
    function = tree.function("pci0000:00/0000:18:00.1", 0x038000, (0x8086, 0x0BD5), "vfio-pci")
    tree.link(f"{function}/physfn", "sys/devices/pci0000:00/0000:18:00.0")


def gaudi2(tree: Tree, folder_of: str = "accel") -> None:
    """Eight Gaudi2, with the driver in `accel` or, before that, in `habanalabs`."""
    for place in range(8):
        address = f"0000:{0x19 + place:02x}:00.0"
        folder = tree.function(f"pci0000:00/{address}", 0x120000, (0x1DA3, 0x1020), "habanalabs")
        names = (f"accel{place}", f"accel_controlD{place}")
        if folder_of == "habanalabs":
            names = (f"hl{place}", f"hl_controlD{place}")
        for which, name in enumerate(names):
            of_control = "habanalabs" if which else folder_of
            node = f"sys/devices/pci0000:00/{address}/{of_control}/{name}"
            major = 261 if folder_of == "accel" and not which else 234
            tree.file(f"{node}/dev", f"{major}:{2 * place + which}")
            tree.link(f"{node}/device", folder)
            tree.link(f"sys/class/{of_control}/{name}", node)
        home = folder if folder_of == "accel" else f"sys/class/habanalabs/hl{place}"
        tree.file(f"{home}/status", "Operational")
        tree.file(f"{folder}/module_id", (3, 1, 0, 2, 7, 5, 4, 6)[place])


def others(tree: Tree) -> None:
    """An NPU, an accelerator on no PCI bus, a display of a virtual machine, an unknown GPU."""
    npu = tree.function("pci0000:00/0000:00:0b.0", 0x120000, (0x8086, 0x7D1D), "intel_vpu")
    tree.file(f"{npu}/accel/accel0/dev", "261:0")
    tree.link(f"{npu}/accel/accel0/device", npu)
    tree.link("sys/class/accel/accel0", f"{npu}/accel/accel0")
    soc = "sys/devices/platform/fdab0000.npu"
    tree.file(f"{soc}/accel/accel1/dev", "261:1")
    tree.link(f"{soc}/accel/accel1/device", soc)
    tree.link("sys/class/accel/accel1", f"{soc}/accel/accel1")
    virtual = tree.function("pci0000:00/0000:00:01.0", 0x030000, (0x1AF4, 0x1050), "virtio-pci")
    tree.drm(virtual, 0, 128)
    unknown = tree.function("pci0000:00/0000:03:00.0", 0x030000, (0x1ED5, 0x0222), "mtgpu")
    tree.drm(unknown, 1, 129)


def engines(tree: Tree) -> None:
    """Cards whose drivers have classes of their own; one without driver; what only looks so."""
    for number, (address, code, ids, driver, kind, name) in enumerate(
        (
            ("0000:1b:00.0", 0x0B4000, (0x1BCF, 0x001C), "ve_drv", "ve", "ve0"),
            ("0000:1c:00.0", 0x088000, (0x1D0F, 0x7164), "neuron", "neuron_device", "neuron0"),
            ("0000:1d:00.0", 0x120000, (0x1E52, 0x401E), "tenstorrent", "tenstorrent",
             "tenstorrent!0"),
        )
    ):  # fmt: skip
        folder = tree.function(f"pci0000:00/{address}", code, ids, driver)
        tree.file(f"{folder}/{kind}/{name}/dev", f"{238 + number}:0")
        tree.link(f"{folder}/{kind}/{name}/device", folder)
        tree.link(f"sys/class/{kind}/{name}", f"{folder}/{kind}/{name}")
    tpu = tree.function("pci0000:00/0000:20:00.0", 0x00FF00, (0x1AE0, 0x005E), "tpu")
    tree.file(f"{tpu}/accel/accel0/dev", "242:0")
    tree.file(f"{tpu}/accel/accel0/uevent", "MAJOR=242\nMINOR=0\nDEVNAME=accel0")
    tree.link(f"{tpu}/accel/accel0/device", tpu)
    tree.link("sys/class/accel/accel0", f"{tpu}/accel/accel0")
    tree.function("pci0000:00/0000:1e:00.0", 0x0B4000, (0x1BCF, 0x001C))
    # Engines for cryptography are of the same PCI class.
    tree.function("pci0000:00/0000:1f:00.0", 0x0B4000, (0x8086, 0x37C8), "c6xx")
    # Displays with a second head, which no driver takes.
    integrated = tree.function("pci0000:00/0000:00:02.0", 0x030000, (0x8086, 0x27AE), "i915")
    tree.drm(integrated, 0, 128)
    tree.function("pci0000:00/0000:00:02.1", 0x038000, (0x8086, 0x27A6))
    tree.function("pci0000:00/0000:03:00.0", 0x030000, (0x1002, 0x5D52), "amdgpu")
    tree.function("pci0000:00/0000:03:00.1", 0x038000, (0x1002, 0x5D72))


MACHINES: dict[str, Callable[[Tree], None]] = {
    "engines": engines,
    "mi300x-spx": mi300x,
    "mi300x-cpx": lambda tree: mi300x(tree, "CPX"),
    "mi300x-cpx-function": lambda tree: mi300x(tree, "CPX", "function"),
    "mi300x-cpx-none": lambda tree: mi300x(tree, "CPX", "none"),
    "mi250": mi250,
    "consumer": consumer,
    "driverless": driverless,
    "max1550": max1550,
    "gaudi2": gaudi2,
    "gaudi2-habanalabs": lambda tree: gaudi2(tree, "habanalabs"),
    "others": others,
}


def write(root: Path, name: str) -> Path:
    """Write a machine below a folder, and give that."""
    MACHINES[name](Tree(root))
    return root


def files(root: Path) -> Iterable[Path]:
    """Give every file of a machine, links not followed."""
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
