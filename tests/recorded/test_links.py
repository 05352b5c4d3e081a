"""NVLinks of recorded machines: by the stand-in for NVIDIA's library, under the real pynvml."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from recorded import library, pairs, recording
from recorded.comparison import Tally
from recorded.machine import Function, Machine

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model.distance import Layout
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.providers import all_providers

pytestmark = [pytest.mark.needs("recorded"), pytest.mark.needs("cc")]

LINKED = [
    name
    for name in [*recording.HWLOC, *recording.NCCL]
    if any(link.kind == "nvlink" for link in recording.read(name).links)
]


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.build(tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize("name", LINKED)
def test_links_are_those_that_were_recorded(
    name: str, recorded: Callable[[str], Path], stand_in: Path, tally: Tally
) -> None:
    said = recording.read(name)
    answer = library.probe(stand_in, said)
    found = scan(Host(recorded(name), probe=lambda _: answer), all_providers())
    cards = {one.text("pci_address"): one for one in found.instances if one.type == "gpu"}
    for card in library.cards(said):
        _card(tally, said, card, cards[card.address])
    _links(tally, said, cards, found)
    layout = Layout(found.topology, {one.id: one for one in found.instances})
    for one, other in combinations(library.cards(said), 2):
        word = layout.between(cards[one.address].id, cards[other.address].id)
        tally.hold(f"{one.address} to {other.address}", _distance(said, one, other), word)


def _card(tally: Tally, said: Machine, card: Function, instance: Instance) -> None:
    at = card.address
    count = sum(link.count for link in said.links if link.one == at)
    tally.hold(f"{at} nvlink_count", count, instance.number("nvlink_count", 0))
    if card.uuid:
        told = (instance.id, instance.text("uuid"), instance.text("model"))
        tally.hold(f"{at} card", (card.uuid, card.uuid, card.model), told)
    if card.serial:
        tally.hold(f"{at} serial", card.serial, instance.text("serial"))


def _links(tally: Tally, said: Machine, cards: dict[str, Instance], found: Inventory) -> None:
    """Compare links with what is in the inventory: each once between cards, none with a CPU.

    On a virtual machine whose switches are hidden the driver says that a card is at the other end
    of its own links (Azure's NC A100 v4). It is none.
    """
    recorded: dict[tuple[str, ...], int] = {}
    for link in said.links:
        if link.end != "cpu" and link.one != link.other:
            ends = sorted((cards[link.one].id, cards[link.other].id if link.end == "gpu" else ""))
            key = (
                tuple(ends) if link.end == "gpu" else (cards[link.one].id, link.other or "nvswitch")
            )
            recorded[key] = link.count
    told = {
        (link["one"], link["other"]): link["count"]
        for link in found.topology["links"]
        if link["kind"] == "nvlink"
    }
    for key in sorted(recorded.keys() | told.keys()):
        tally.hold(f"link {'-'.join(key)}", recorded.get(key), told.get(key))


def _distance(said: Machine, one: Function, other: Function) -> str:
    between = [k.count for k in said.links if (k.one, k.other) == (one.address, other.address)]
    if between:
        return f"NV{between[0]}"
    through = [
        sum(k.count for k in said.links if k.one == card.address and k.end == "switch")
        for card in (one, other)
    ]
    return f"NV{min(through)}" if min(through) else pairs.distance(one, other)
