"""Inventories to export: of simulated machines, of recorded ones, and of strangers' strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model.instance import DeviceNode, Instance
from xce_nodeagent.model.inventory import Inventory, advance
from xce_nodeagent.model.resource import GPU, MPS, NIC, PORTS
from xce_nodeagent.providers import all_providers

PROFILES = ("cpu-only", "dgx-a100-mig", "dgx-h100", "gb200", "mi300x")


@pytest.fixture(scope="session")
def simulated(tmp_path_factory) -> Callable[[str], Inventory]:
    """Give the inventory of a profile, and of nothing else."""
    nothing = tmp_path_factory.mktemp("nothing")

    def look(profile: str) -> Inventory:
        host = Host(nothing, live=False, simulate=profile, port_range=(20000, 20099))
        return advance(scan(host, all_providers()), {}, 0)[0]

    return look


def inventory(*instances: Instance, **more: Any) -> Inventory:
    """Make an inventory of instances that a test made."""
    return Inventory(
        source="local",
        node=more.pop("node", "node1"),
        boot_id="b",
        generation="b:7",
        types=(GPU, NIC, MPS, PORTS),
        instances=instances,
        **more,
    )


def gpu(number: int, **more: Any) -> Instance:
    """Make a card of NVIDIA's. What is no field of an instance is an attribute."""
    fields = {key: more.pop(key) for key in list(more) if key in Instance.__struct_fields__}
    attributes = {
        "vendor": "nvidia",
        "model": "NVIDIA H100 80GB HBM3",
        "pci_address": f"0000:{number + 1:02x}:00.0",
        **more,
    }
    base = Instance(
        id=f"GPU-{number}",
        type="gpu",
        provider="nvidia",
        attributes=attributes,
        devices=(DeviceNode(f"/dev/nvidia{number}", "c", 195, number),),
    )
    return structs.replace(base, **fields)
