"""Values that others took from the recordings, against what the production path makes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from recorded import recording
from recorded.comparison import Tally, function_at
from recorded.nccl import MADE_UP

from xce_nodeagent.host import Host
from xce_nodeagent.model.inventory import Inventory

pytestmark = pytest.mark.needs("recorded")

Look = Callable[[str], Any]


def _expected(name: str) -> dict[str, list[dict[str, Any]]]:
    path = recording.FOLDER / "expected" / f"from-{name}.json"
    found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text()) if path.is_file() else {}
    return found


HWLOC, NCCL, UDEV = (_expected(name) for name in ("hwloc-xml", "nccl-xml", "udev"))


def _at(host: Host, found: Inventory, address: str) -> dict[str, Any]:
    told: dict[str, Any] = found.topology["pci"].get(address) or function_at(host, address)
    return told


def _nics(found: Inventory, address: str, name: str) -> list[str]:
    nics = (one for one in found.instances if one.type == "nic")
    return sorted(one.text(name) for one in nics if one.text("pci_address") == address)


def _bridges(told: dict[str, Any]) -> list[str]:
    """Give the bridges that the file of NCCL has; it leaves ports of switches out."""
    bridges = told.get("bridges", ())
    return [bridge for bridge in bridges if not bridge.startswith(f"{MADE_UP:04x}:")]


@pytest.mark.parametrize("name", HWLOC)
def test_what_hwloc_recorded(name: str, seen: Look, tally: Tally) -> None:
    tally.against = "expected"
    host, found = seen(name)
    for card in HWLOC[name]:
        at = card["pci"]
        told = _at(host, found, at)
        tally.hold(f"{at} class", card["cls"], told["class"][:4])
        tally.hold(f"{at} bridges", card["bridges"], told["bridges"])
        for what in ("vendor", "device"):
            number = host.number(f"/sys/bus/pci/devices/{at}/{what}")
            tally.hold(f"{at} {what}", card[what], told.get(what, f"{number:04x}"))
        if len(card["numa"]) == 1:
            tally.hold(f"{at} NUMA node", card["numa"][0], told.get("numa_node"))
        # Names of interfaces and RDMA devices; those of cards are of libraries.
        names = [
            one for one in card["osdev"] if card["cls"][:2] == "02" or one.startswith(("eth", "ib"))
        ]
        here = {*_nics(found, at, "netdev"), *_nics(found, at, "rdma_device")} - {""}
        if card["cls"][:2] == "02":
            tally.hold(f"{at} names", sorted(names), sorted(here))


@pytest.mark.parametrize("name", NCCL)
def test_what_nccl_recorded(name: str, seen: Look, tally: Tally) -> None:
    tally.against = "expected"
    host, found = seen(name)
    for card in NCCL[name]:
        at = card["pci"]
        told = _at(host, found, at)
        if card["cls"]:
            tally.hold(f"{at} class", card["cls"], f"0x{told.get('class')}")
        tally.hold(f"{at} NUMA node", card["numa"], told.get("numa_node"))
        tally.hold(f"{at} bridges", card["bridges"], _bridges(told))
        if card["nets"]:
            names = sorted(_names(found, at))
            tally.hold(f"{at} nets", sorted(card["nets"]), names)


def _names(found: Inventory, address: str) -> Iterator[str]:
    """Give the names of a card's functions; NCCL has them all at the first."""
    for nic in found.instances:
        if nic.type == "nic" and nic.text("pci_address")[:-1] == address[:-1]:
            yield nic.text("rdma_device") or nic.text("netdev")


@pytest.mark.parametrize("name", UDEV)
def test_what_udev_recorded(name: str, seen: Look, tally: Tally) -> None:
    tally.against = "expected"
    host, found = seen(name)
    for card in UDEV[name]:
        at = card["pci"]
        told = _at(host, found, at)
        tally.hold(f"{at} class", card["cls"], told["class"])
        tally.hold(f"{at} way", card["path"], [told["root"], *told["bridges"]])
        for what in ("vendor", "device"):
            number = host.number(f"/sys/bus/pci/devices/{at}/{what}")
            tally.hold(f"{at} {what}", card[what], told.get(what, f"{number:04x}"))
        driver = host.real(f"/sys/bus/pci/devices/{at}/driver")
        tally.hold(f"{at} driver", card["driver"], driver.rpartition("/")[2] if driver else None)
        tally.hold(f"{at} net", card["net"], [one for one in _nics(found, at, "netdev") if one])
        tally.hold(f"{at} rdma", card["rdma"], [x for x in _nics(found, at, "rdma_device") if x])
    on_pci = {card["pci"] for card in UDEV[name] if card["net"] or card["rdma"]}
    nics = {one.text("pci_address") for one in found.instances if one.type == "nic"} - {""}
    tally.hold("NICs", on_pci, nics)
