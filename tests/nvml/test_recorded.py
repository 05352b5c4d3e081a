"""Every record of a real NVIDIA card: the inventory says what `nvidia-smi` said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvml import record
from nvml.stand import Library, found

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.providers.nvidia import PROVIDER

MACHINES = Path(__file__).parents[3] / "shared/machines"
RECORDS: tuple[tuple[str, Callable[[Path], list[dict[str, Any]]]], ...] = (
    ("nvidia-smi/*/*.xml", record.of_xml),
    ("nvidia-smi/*/*.txt", record.of_text),
    ("mocknvml/profiles/*.yaml", record.of_yaml),
)

pytestmark = pytest.mark.needs("cc", "recorded")


def test_what_nvidia_smi_says_of_each_recorded_card_is_in_the_inventory(
    library: Library, root: Path, compared: Callable[[str, int], None]
) -> None:
    matched: dict[str, int] = {}
    cards = slices = machines = 0
    for pattern, read in RECORDS:
        paths = sorted(MACHINES.glob(pattern))
        assert paths, pattern
        for path in paths:
            told = read(path)
            before = sum(matched.values())
            answer = library.ask(record.data(told))
            assert answer[:2] == ("found", ""), path
            inventory = scan(Host(root, probe=lambda _, answer=answer: answer), (PROVIDER,))
            gpus = {
                one.text("pci_address"): one for one in inventory.instances if one.type == "gpu"
            }
            assert len(gpus) == len(told), path
            machines += 1
            for card in told:
                expected = record.expected(card)
                gpu = gpus[expected["pci_address"]]
                assert gpu.id == card["uuid"]
                wrong = {
                    name: (value, gpu.attributes.get(name))
                    for name, value in expected.items()
                    if gpu.attributes.get(name) != value
                }
                assert not wrong, (path, wrong)
                # Windows has no device nodes, and no minor numbers.
                assert gpu.healthy == ("minor" in card), (path, gpu.reason)
                for name, value in expected.items():
                    key = name if value is not None else "absent where the record has N/A"
                    matched[key] = matched.get(key, 0) + 1
                cards += 1
                slices += len(card["slices"])
                matched["slices' values"] = matched.get("slices' values", 0) + _slices(
                    card, [one for one in inventory.instances if one.parent == gpu.id]
                )
            compared(path.name, sum(matched.values()) - before)
    print(  # noqa: T201  # how much was compared is part of the result
        f"\n{sum(matched.values())} values of {cards} cards and {slices} slices"
        f" on {machines} machines match: {matched}"
    )
    assert machines >= 27
    assert slices >= 8


def _slices(card: dict[str, Any], instances: list[Any]) -> int:
    """Compare the slices of a card; give how many values were."""
    count = 0
    by_place = {
        (one.number("gpu_instance"), one.number("compute_instance")): one for one in instances
    }
    assert len(by_place) == len(instances) == len(card["slices"])
    for told in card["slices"]:
        one = by_place[told["gi"], told["ci"]]
        assert one.type == "mig"
        assert one.healthy, one.reason
        assert one.attributes["memory_bytes"] == told["mib"] << 20
        assert one.attributes["multiprocessors"] == told["sm"]
        access = 3 + 135 * card["minor"] + 9 * told["gi"]
        assert [node.minor for node in one.devices] == [
            card["minor"],
            access,
            access + 1 + told["ci"],
        ]
        count += 7
        if "profile" in told:
            assert one.id == told["uuid"]
            assert one.attributes["mig_profile"] == told["profile"]
            count += 2
    return count


def test_the_two_recorded_layouts_are_those_that_are_known(library: Library, root: Path) -> None:
    (h100,) = MACHINES.glob("nvidia-smi/*/*h100-mig*")
    one = found(root, library.ask(record.data(record.of_text(h100)))).instances
    assert [(i.number("gpu_instance"), i.text("mig_profile"), i.number("memory_bytes") >> 20)
            for i in one if i.type == "mig"] == [
        (2, "3g.40gb", 40448), (3, "2g.20gb", 20096), (9, "1g.10gb", 9984), (10, "1g.10gb", 9984),
    ]  # fmt: skip
    a100 = MACHINES / "nvidia-smi/telegraf/a100-sxm4-v12.xml"
    other = found(root, library.ask(record.data(record.of_xml(a100)))).instances
    assert [i.number("gpu_instance") for i in other if i.type == "mig"] == [3, 4, 5, 6]
