"""Inventories to show: of profiles, of the small machine, and of machines that others recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model.inventory import advance
from xce_nodeagent.providers import all_providers

PROFILES = ("cpu-only", "dgx-a100-mig", "dgx-h100", "gb200", "mi300x")
RECORDED = (
    "hwloc/32em64t-2n8c+dax+nvme+mic+dimms.tar.bz2",
    "hwloc/2pa-pcidomain32bits.tar.bz2",
    "hwloc/nvidiagpunumanodes.tar.bz2",
    "checkbox-udev/NVIDIA_DGXA100.txt.xz",
    "checkbox-udev/DELL_IDRAC.txt.xz",
    "hwloc-xml/hwloc__nvidiaDGX2.xml",
    "hwloc-xml/fluxcore__sierra.xml",
    "hwloc-xml/hwloc__power8gpudistances.xml",
    "nccl-topo/aws/p4d-24xl-topo.xml",
    "nccl-topo/azure/ndv4-topo.xml",
    "nccl-topo/rccl/tools/topo_expl/models/topo_8p6l_6nic.xml",
    "dranet-slices/azure_aks_examples_gb300",
)


def inventory_of(host: Host) -> dict[str, Any]:
    found, _, _ = advance(scan(host, all_providers()), {}, 0)
    value: dict[str, Any] = msgspec.to_builtins(found)
    return value


@pytest.fixture(scope="session")
def look():
    """Give the inventory of a host as the commands show it."""
    return inventory_of


@pytest.fixture(scope="session")
def simulated(tmp_path_factory):
    """Give the inventory of a profile, and of nothing else."""
    nothing = tmp_path_factory.mktemp("nothing")
    return lambda name: inventory_of(Host(nothing, live=False, simulate=name))


@pytest.fixture(params=RECORDED)
def recorded_root(recorded, request) -> Path:
    """Give the root of a machine that others recorded; a test for each of them."""
    root: Path = recorded(request.param)
    return root
