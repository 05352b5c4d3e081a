"""What kinds of recordings there are: which reader or writer makes a machine's root of each."""

from __future__ import annotations

import lzma
import subprocess
from pathlib import Path

from recorded import hwloc, nccl, slices, tree, ttar, udevdump, umockdev
from recorded.machine import Machine

FOLDER = Path(__file__).parents[3] / "shared" / "machines"
"""Machines that were recorded by others. They are no part of this project: `needs("recorded")`."""


def names(*patterns: str) -> list[str]:
    """Give the recordings that fit one of the patterns; none where there are no recordings."""
    found = {path for pattern in patterns for path in FOLDER.glob(pattern)}
    return sorted(path.relative_to(FOLDER).as_posix() for path in found)


HWLOC = names("hwloc-xml/*.xml", "hwloc/*.xml")
NCCL = [name for name in names("nccl-topo/**/*.xml") if not name.endswith("-graph.xml")]
SLICES = sorted({name.rsplit(".", 2)[0] for name in names("dranet-slices/*.yaml")})
TARS = names("hwloc/*.tar.bz2", "sysfs/ghw/*.tar.gz")
UDEV = names("checkbox-udev/*.xz")
UMOCKDEV = names("umockdev/*.umockdev")
TTARS = names("sysfs/*/*.ttar")
EVERY = [*HWLOC, *NCCL, *SLICES, *TARS, *UDEV, *UMOCKDEV, *TTARS]


def beside(name: str) -> str:
    """Give the XML of hwloc that stands beside a raw tree; empty where none does."""
    other = f"{name.removesuffix('.tar.bz2')}.xml"
    return other if other in HWLOC else ""


def read(name: str) -> Machine:
    """Read what a recording of hwloc, of NCCL, or of a DRA driver says."""
    if name in SLICES:
        parts = FOLDER.glob(f"{name}.*.yaml")
        return slices.read(*(part.read_text("utf-8") for part in sorted(parts)))
    text = (FOLDER / name).read_text("utf-8")
    return nccl.read(text) if name.startswith("nccl-topo/") else hwloc.read(text)


def write(name: str, root: Path) -> Path:
    """Make the root of a recorded machine, below a folder, and give that."""
    if name in HWLOC or name in NCCL or name in SLICES:
        return tree.write(read(name), root)
    source = FOLDER / name
    if name in UDEV:
        return udevdump.write(lzma.decompress(source.read_bytes()).decode(), root)
    if name in UMOCKDEV:
        return umockdev.write(source.read_text("utf-8"), root)
    if name in TTARS:
        ttar.write(source.read_bytes(), root)
    else:
        root.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-xf", source, "-C", root], check=True)
    # Some begin one folder above `sys`; there is a `proc/sys`, too.
    found = (path for path in sorted(root.rglob("sys")) if (path / "devices").is_dir())
    return next((path.parent for path in found), root)
