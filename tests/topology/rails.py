"""Hosts whose GPUs have NICs of their own, and the rails that are found there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from topology.trees import card, function, machine

from xce_nodeagent.model.config import RailsConfig
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.rail import Rails, decide

CONNECTX = {"vendor": "mellanox", "model": "ConnectX-7", "rdma_device": "mlx5"}


def rails(inventory: Inventory, **config: Any) -> Rails:
    return decide(inventory.instances, inventory.layout, RailsConfig(**config))


def below(pci: dict[str, Any], bus: int, address: str, numa: int = 0) -> str:
    """Place a card below a port of the switch of one bus, and give its address."""
    root = f"pci0000:{bus:02x}"
    pci[address] = function(root, f"{root}-port", f"{root}-up", f"{root}-{address}", numa=numa)
    return address


def rail_optimized(
    count: int = 4, extra: Iterable[tuple[int, str, dict[str, Any]]] = ()
) -> Inventory:
    """Give a host of so many GPUs, each with a NIC below its switch, and more NICs below some."""
    pci: dict[str, Any] = {}
    cards = []
    for at in range(count):
        bus = 0x10 * (at + 1)
        cards.append(card(below(pci, bus, f"0000:{bus + 1:02x}:00.0")))
        cards.append(card(below(pci, bus, f"0000:{bus + 3:02x}:00.0"), "nic", **CONNECTX))
    for at, address, facts in extra:
        cards.append(card(below(pci, 0x10 * (at + 1), address), "nic", **facts))
    return machine(cards, pci)


STORAGE = "0000:22:00.0"  # below the second GPU's switch, and before its rail's NIC
