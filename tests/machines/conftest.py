"""Machines that were recorded by others. They are not part of this project: `needs("recorded")`."""

from __future__ import annotations

import lzma
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "machines"

Recorded = Callable[[str], Path]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Unpack a recorded machine once, and give its root."""
    roots: dict[str, Path] = {}

    def unpack(name: str) -> Path:
        source = FOLDER / name
        if name not in roots:
            target = tmp_path_factory.mktemp("machine")
            if source.suffix == ".xz":
                tree_of_udev(lzma.decompress(source.read_bytes()).decode(), target)
            else:
                subprocess.run(["tar", "-xf", source, "-C", target], check=True)
            roots[name] = next(path.parent for path in sorted(target.rglob("sys")) if path.is_dir())
        return roots[name]

    return unpack


def tree_of_udev(text: str, target: Path) -> None:
    """Make the part of sysfs that `udevadm info --export-db` tells: PCI, net, RDMA, DRM."""
    for block in text.split("\n\n"):
        entry = dict(
            line.removeprefix("E: ").split("=", 1)
            for line in block.splitlines()
            if line.startswith("E: ") and "=" in line
        )
        path, kind = entry.get("DEVPATH", ""), entry.get("SUBSYSTEM", "")
        if kind not in ("pci", "net", "infiniband", "infiniband_verbs", "usb"):
            continue
        folder = target / "sys" / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        name = folder.name
        if kind in ("pci", "usb"):
            link(target / f"sys/bus/{kind}/devices/{name}", folder)
            (target / f"sys/bus/{kind}").mkdir(parents=True, exist_ok=True)
            link(folder / "subsystem", target / f"sys/bus/{kind}")
        if kind == "pci":
            vendor, device = entry["PCI_ID"].split(":")
            (folder / "class").write_text(f"0x{int(entry['PCI_CLASS'], 16):06x}\n")
            (folder / "vendor").write_text(f"0x{vendor.lower()}\n")
            (folder / "device").write_text(f"0x{device.lower()}\n")
            if driver := entry.get("DRIVER"):
                (target / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
                link(folder / "driver", target / f"sys/bus/pci/drivers/{driver}")
        elif kind != "usb":
            link(target / f"sys/class/{kind}/{name}", folder)
            if "virtual" not in path:
                link(folder / "device", folder.parents[1])
        if kind == "infiniband":
            # The database has no ports; each function of an mlx5 has one.
            (folder / "ports/1").mkdir(parents=True, exist_ok=True)
        if kind == "infiniband_verbs":
            (folder / "dev").write_text(f"{entry['MAJOR']}:{entry['MINOR']}\n")
            device = next(
                part.removeprefix("infiniband/by-ibdev/uverbs-")
                for part in entry["DEVLINKS"].replace("/dev/", "").split()
                if "by-ibdev" in part
            )
            (folder / "ibdev").write_text(f"{device}\n")


def link(name: Path, to: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    if not name.is_symlink():
        name.symlink_to(to)
