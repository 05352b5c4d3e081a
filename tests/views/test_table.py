"""The table of a host that has much: it fits a terminal, and says once what many have in common."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from rich.cells import cell_len

from xce_nodeagent.cli import table


@pytest.fixture
def big(simulated) -> dict[str, Any]:
    """Give a host of 200 instances: 8 cards, and a NIC with virtual functions."""
    machine = copy.deepcopy(simulated("dgx-h100"))
    instances = list(machine["instances"])
    nic = next(one for one in instances if one["type"] == "nic")
    for number in range(200 - len(instances)):
        name = f"0000:3b:{number // 8 + 1:02x}.{number % 8}"
        instances.append({**copy.deepcopy(nic), "id": name, "parent": nic["id"]})
        instances[-1]["attributes"].update(pci_address=name, netdev=f"vf{number}")
    for one in instances[:8]:
        one.update(healthy=False, reason="the driver is not loaded")
    for one in instances[-100:]:
        one.update(reserved="the host's default route goes out by it")
    machine["instances"] = instances
    return machine


@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits(big, monkeypatch, columns: int) -> None:
    monkeypatch.setattr(table, "columns", lambda: columns)
    lines = table.inventory_table(big).splitlines()
    assert max(map(cell_len, lines)) <= columns
    assert sum(line.startswith(("GPU-", "0000:3b:", "ff00:")) for line in lines) >= 200


def test_what_many_have_in_common_is_said_once(big) -> None:
    shown = table.inventory_table(big)
    cards = [one["id"] for one in big["instances"][:8]]
    assert f"{', '.join(cards[:3])} and 5 more: unhealthy: the driver is not loaded" in shown
    assert shown.count("the driver is not loaded") == 1
    assert "and 97 more are the host's own: the host's default route goes out by it" in shown


def test_links_and_what_is_new_are_no_trouble(big) -> None:
    cards = [one["id"] for one in big["instances"][:2]]
    link = {"kind": "nvlink", "one": min(cards), "other": max(cards), "count": 4}
    big["topology"]["links"] = [link]
    big["topology"]["weather"] = big["weather"] = "fair"
    assert cards[0] in table.inventory_table(big)


def test_a_host_with_nothing_says_so(big: dict[str, Any]) -> None:
    assert table.inventory_table({**big, "instances": []}).splitlines()[2] == "no instances"
