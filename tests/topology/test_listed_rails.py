"""Rails that the configuration lists in part, and what is a GPU's own then."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec import structs
from topology.trees import card, function, machine

from xce_nodeagent.model.config import RailsConfig
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.rail import decide


def switched(gpus: int, storage: int = -1) -> Inventory:
    """Give GPUs that have a NIC below a switch each; one of them has a second NIC there."""
    pci, cards = {}, []
    for at in range(gpus):
        names = {0: "gpu", 1: "nic"} | ({2: "nic"} if at == storage else {})
        for slot, kind in names.items():
            address = f"0000:{at + 1:02x}:{slot:02x}.0"
            pci[address] = function("pci0", f"port{at}", f"up{at}", f"down{at}.{slot}", numa=0)
            cards.append(card(address, kind, netdev=f"n{at}.{slot}"))
    return machine(cards, pci, nodes=(0,))


def apart() -> Inventory:
    """Give GPUs with a storage NIC each below their switch, and NICs for rails elsewhere."""
    pci, cards = {}, []
    for at in range(2):
        for slot, kind in enumerate(("gpu", "nic")):
            address = f"0000:{at + 1:02x}:{slot:02x}.0"
            pci[address] = function("pci0", f"port{at}", f"up{at}", f"down{at}.{slot}", numa=0)
            cards.append(card(address, kind, netdev=f"storage{at}"))
        address = f"0000:{at + 0x10:02x}:00.0"
        pci[address] = function("pci0", f"own{at}", numa=0)
        cards.append(card(address, "nic", netdev=f"rail{at}"))
    return machine(cards, pci, nodes=(0,))


def listed(inventory: Inventory, *names: str) -> Mapping[str, int]:
    found = decide(inventory.instances, inventory.layout, RailsConfig(nics=names))
    return {gpu[5:7]: number for gpu, number in found.gpus.items()}


def test_who_has_a_nic_of_its_own_that_is_not_listed_gets_no_other_one_s_rail() -> None:
    inventory = switched(4)
    every = [f"n{at}.1" for at in range(4)]
    assert listed(inventory, *every) == {"01": 0, "02": 1, "03": 2, "04": 3}
    assert listed(inventory, *every[:2]) == {"01": 0, "02": 1}
    assert listed(inventory, "", every[3]) == {"04": 1}


@pytest.mark.parametrize("storage", [0, 3])
def test_a_nic_for_storage_takes_nobody_s_rail(storage: int) -> None:
    every = [f"n{at}.1" for at in range(4)]
    assert listed(switched(4, storage), *every) == {"01": 0, "02": 1, "03": 2, "04": 3}
    assert listed(apart(), "rail0", "rail1") == {"01": 0, "02": 1}


def test_two_gpus_share_a_nic_that_is_below_the_switch_of_one_and_no_other_is_nearer() -> None:
    inventory = switched(4)
    odd = [one for one in inventory.instances if one.text("netdev") not in ("n1.1", "n3.1")]
    inventory = structs.replace(inventory, instances=tuple(odd))
    assert listed(inventory, "n0.1", "n2.1") == {"01": 0, "02": 0, "03": 1, "04": 1}


def test_a_nic_that_the_host_keeps_for_itself_is_nobody_s_own() -> None:
    inventory = switched(2)
    kept = tuple(
        structs.replace(one, reserved="the default route") if one.text("netdev") == "n1.1" else one
        for one in inventory.instances
    )
    assert listed(structs.replace(inventory, instances=kept), "n0.1") == {"01": 0, "02": 0}
