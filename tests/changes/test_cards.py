"""What is not seen where a card's own events are looked at is looked for by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from changes.changing import SLOTS, Changing

SLOT = SLOTS[1]


@pytest.fixture
def machine():
    """A machine with one NIC, bound, looked at once more after it came."""
    found = Changing()
    found.begins(lazy=False)
    found.plugged_in(SLOT, "nic", 0)
    found.bound(SLOT)
    found.looked_at()
    yield found
    found.teardown()


def _nic(machine):
    return next(one for one in machine.inventory.instances if one.id.startswith("0000:04:00.0"))


def test_what_is_on_no_card_ends_it_for_all_cards(machine) -> None:
    machine.bonded(SLOT, bond=True, state="up")
    machine.looked_at()
    (machine.root / "sys/class/net/eth41/operstate").write_text("dormant\n")
    machine.bonded(SLOT, bond=True, state="down")
    machine.looked_at()
    assert _nic(machine).text("state") == "dormant"


def test_a_port_without_interface_is_looked_at_each_time(machine) -> None:
    machine.port_without_interface(SLOT, "up")
    machine.looked_at()
    machine.looked_at()
    machine.port_without_interface(SLOT, "down")
    machine.looked_at()
    assert _nic(machine).text("state") == "down"


def test_a_port_in_software_follows_its_interface(machine) -> None:
    machine.made_in_software(SLOT, "up")
    machine.looked_at()
    machine.made_in_software(SLOT, "down")
    machine.looked_at()


def test_another_name_is_seen_by_that_alone(machine) -> None:
    machine.renamed(SLOT)
    machine.looked_at()
    assert _nic(machine).text("netdev") == "en41"
    machine.nothing_is_kept_of_what_is_gone()
    machine.renamed(SLOT)
    machine.looked_at()
    assert _nic(machine).text("netdev") == "eth41"


@pytest.mark.parametrize("count", [1, 2])
def test_virtual_functions_are_counted_as_they_come_and_go(machine, count) -> None:
    for now in (count, 0):
        machine.functions_made(SLOT, now)
        machine.looked_at()
        assert _nic(machine).number("vf_count") == now


def test_an_event_of_one_card_reads_nothing_of_another(machine) -> None:
    machine.link_changed("eth41", "operstate", "up")
    read: list[str] = []
    tree = machine.host._tree
    real = tree.open
    tree.open = lambda name, flags: read.append(name) or real(name, flags)
    try:
        machine.discovery.look(machine.inventory, machine.events)
    finally:
        tree.open = real
    assert "/sys/class/net/eth41/operstate" in read
    assert not [name for name in read if Path(name).parts[-2:-1] == ("eth0",)]
