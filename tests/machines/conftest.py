"""Machines that were recorded by others. They are not part of this project: see `recorded`."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "machines"

Recorded = Callable[[str], Path]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Unpack a recorded machine once, and give its root; skip where there are none."""
    roots: dict[str, Path] = {}

    def unpack(name: str) -> Path:
        source = FOLDER / name
        if not source.exists():
            pytest.skip(f"no recorded machine {name} beside this project")
        if name not in roots:
            target = tmp_path_factory.mktemp("machine")
            if source.suffix == ".ttar":
                unpack_ttar(source, target)
            else:
                with tarfile.open(source) as archive:
                    archive.extractall(target, filter="fully_trusted")
            roots[name] = next(path.parent for path in sorted(target.rglob("sys")) if path.is_dir())
        return roots[name]

    return unpack


def unpack_ttar(source: Path, target: Path) -> None:
    """Unpack ttar, a plain-text archive: `Path:`, then `Directory`, `SymlinkTo:` or `Lines:`."""
    lines = iter(source.read_text("utf-8", "surrogateescape").splitlines())
    path = target
    for line in lines:
        if line.startswith("Path: "):
            path = target / line.removeprefix("Path: ")
        elif line == "Directory: " + str(path.relative_to(target)) or line.startswith("Directory:"):
            path = target / line.removeprefix("Directory: ")
            path.mkdir(parents=True, exist_ok=True)
        elif line.startswith("SymlinkTo: "):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_symlink():
                path.symlink_to(line.removeprefix("SymlinkTo: "))
        elif line.startswith("Lines: "):
            path.parent.mkdir(parents=True, exist_ok=True)
            text = [next(lines) for _ in range(int(line.removeprefix("Lines: ")))]
            path.write_text("\n".join(text) + "\n", "utf-8", "surrogateescape")
