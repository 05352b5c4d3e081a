"""The stand-in of NVIDIA's library, compiled, and a machine with nothing but the driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml.stand import Library, compiled, serve


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    folder = tmp_path_factory.mktemp("library")
    compiled(folder)
    yield from serve(folder)


@pytest.fixture
def old_library(tmp_path: Path) -> Iterator[Library]:
    """The library of a driver of 2018 (410): what came later is not in it."""
    later = (
        "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetModuleId", "nvmlDeviceGetNumGpuCores",
        "nvmlDeviceGetRemappedRows", "nvmlDeviceGetMemoryAffinity", "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetPlatformInfo", "nvmlDeviceGetMigMode",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
    )  # fmt: skip
    compiled(tmp_path, *(f"-D{name}=lacking_{name}" for name in later))
    yield from serve(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with nothing but the kernel's driver."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/devices").write_text(
        "Character devices:\n195 nvidia\n195 nvidiactl\n234 nvidia-caps\n237 nvidia-uvm\n\n"
        "Block devices:\n  7 loop\n"
    )
    return tmp_path
