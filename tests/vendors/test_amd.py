"""AMD's cards, whole and divided, as the kernel shows them."""

from __future__ import annotations

from itertools import combinations

import pytest
from msgspec import structs

from xce_nodeagent.model.plan import AllowDevice
from xce_nodeagent.provider import Grant
from xce_nodeagent.providers.amd import PROVIDER


def cards(inventory) -> list:
    return [one for one in inventory.instances if one.provider == "amd"]


def links(inventory) -> dict[tuple[str, str], int]:
    told = inventory.topology["links"]
    assert {link["kind"] for link in told} <= {"xgmi"}
    return {(link["one"], link["other"]): link["count"] for link in told}


def opened(plan) -> set[str]:
    return {step.node.path for step in plan.steps if isinstance(step, AllowDevice)}


def granted(inventory, *instances) -> Grant:
    control = tuple(c.node for c in inventory.control["amd"] if c.granted)
    return Grant(instances=instances, control=control)


def test_eight_whole_cards(machine, look, machines) -> None:
    inventory = look(machine("mi300x-spx"))
    found = cards(inventory)
    assert [one.id for one in found] == [f"GPU-a1b20000000000{n:02x}" for n in range(16, 24)]
    assert all(one.healthy and one.parent is None for one in found)
    attributes = found[5].attributes
    assert {name: attributes[name] for name in attributes if "pci" not in name} == {
        "vendor": "amd", "model": "Instinct MI300X", "serial": "692315000005", "index": 5,
        "uuid": found[5].id, "minor": 168, "render_minor": 168, "numa_node": 1,
        "local_cpus": "8-15", "memory_bytes": machines.MI300X_MEMORY, "multiprocessors": 304,
        "gfx_target": "gfx942", "xgmi_hive": "7d00ab1200000001", "compute_partition": "SPX",
        "available_compute_partitions": ["SPX", "DPX", "QPX", "CPX"],
        "memory_partition": "NPS1",
    }  # fmt: skip
    assert [(node.path, node.major, node.minor) for node in found[5].devices] == [
        ("/dev/dri/card41", 226, 41), ("/dev/dri/renderD168", 226, 168),
    ]  # fmt: skip


def test_every_card_is_linked_to_every_other(machine, look) -> None:
    inventory = look(machine("mi300x-spx"))
    pairs = combinations([one.id for one in cards(inventory)], 2)
    assert links(inventory) == dict.fromkeys(pairs, 1)


def test_dies_of_one_module_have_more_links_and_far_ones_none(machine, look, machines) -> None:
    inventory = look(machine("mi250"))
    found = cards(inventory)
    assert [one.attributes["gfx_target"] for one in found] == ["gfx90a"] * 8
    expected = {(found[a].id, found[b].id): n for (a, b), n in machines.MI250_LINKS.items()}
    assert links(inventory) == expected


@pytest.mark.parametrize("kernel", ["", "-function", "-none"])
def test_parts_of_cards_are_instances_of_their_cards(machine, look, machines, kernel) -> None:
    inventory = look(machine(f"mi300x-cpx{kernel}"))
    found = cards(inventory)
    assert len(found) == len({one.id for one in found}) == 64
    assert all(one.healthy and not one.overlaps for one in found)
    of_card = [one for one in found if one.parent == "GPU-a1b2000000000012"]
    assert len(of_card) == 8
    # What they have together is what the card has: memory is not counted twice.
    assert sum(one.number("memory_bytes") for one in of_card) == machines.MI300X_MEMORY
    assert sum(one.number("multiprocessors") for one in of_card) == 304
    assert {one.text("pci_address") for one in of_card} == {"0000:46:00.0"}
    # Each has a node of its own, and no node of the whole card.
    nodes = [node for one in found for node in one.devices]
    assert {(node.path, node.minor) for node in nodes} == {
        (f"/dev/dri/renderD{minor}", minor) for minor in range(128, 192)
    }
    assert [one.number("index") for one in found] == list(range(64))


def test_parts_have_one_name_whichever_way_the_kernel_numbers_them(machine, look) -> None:
    by_bits, by_function = (
        [one.id for one in cards(look(machine(name)))]
        for name in ("mi300x-cpx", "mi300x-cpx-function")
    )
    assert by_bits == by_function
    assert by_bits[:2] == ["GPU-a1b2000000000010-0", "GPU-a1b2000000000010-1"]


def test_a_job_gets_its_part_and_what_all_need(machine, look) -> None:
    inventory = look(machine("mi300x-cpx"))
    third, other = cards(inventory)[2], cards(inventory)[40]
    plan = PROVIDER.plan(granted(inventory, third, other))
    assert opened(plan) == {"/dev/kfd", "/dev/dri/renderD130", "/dev/dri/renderD168"}
    assert plan.environment["ROCR_VISIBLE_DEVICES"] == f"{third.text('uuid')},{other.text('uuid')}"


def test_parts_that_share_a_uuid_are_named_by_number(machine, look) -> None:
    inventory = look(machine("mi300x-cpx-function"))
    third, other = cards(inventory)[2], cards(inventory)[40]
    assert "uuid" not in third.attributes
    grant = granted(inventory, third, other)
    assert PROVIDER.plan(grant).environment["ROCR_VISIBLE_DEVICES"] == "0,1"
    outside = PROVIDER.plan(structs.replace(grant, contained=False))
    assert outside.environment["ROCR_VISIBLE_DEVICES"] == "2,40"


@pytest.mark.parametrize("mode", ["spx", "cpx"])
def test_every_node_is_fenced_and_those_of_unused_parts_are_never_given(
    machine, look, mode
) -> None:
    inventory = look(machine(f"mi300x-{mode}"))
    managed = {device.minor for device in inventory.managed() if device.major == 226}
    assert managed == {*range(1, 65), *range(128, 192)}
    assert [c.node.path for c in inventory.control["amd"] if c.granted] == ["/dev/kfd"]


def test_consumers_cards_are_known_by_their_place(machine, look) -> None:
    inventory = look(machine("consumer"))
    radeon, own = cards(inventory)
    assert (radeon.id, radeon.healthy) == ("gpu-0000:07:00.0", True)
    assert radeon.attributes["memory_bytes"] == 12_868_124_672
    assert radeon.attributes["gfx_target"] == "gfx1031"
    assert "uuid" not in radeon.attributes
    plan = PROVIDER.plan(granted(inventory, radeon))
    assert plan.environment["ROCR_VISIBLE_DEVICES"] == "0"
    # The processor's own is there, and ROCm cannot use it; the BMC's is no card for jobs.
    assert (own.id, own.healthy) == ("gpu-0000:0b:00.0", False)
    assert "does not list it" in own.reason


def test_cards_that_no_driver_has(machine, look) -> None:
    by_place = {one.text("pci_address"): one for one in look(machine("driverless")).instances}
    assert not any(one.healthy for one in by_place.values())
    assert by_place["0000:01:00.0"].reason == "no driver is bound to it"
    assert by_place["0000:02:00.0"].reason == "it is bound to the driver vfio-pci"
    assert by_place["0000:03:00.0"].reason.endswith("no driver is bound to it")
    assert by_place["0000:04:00.0"].reason.endswith("it is bound to the driver vfio-pci")
    nouveau = by_place["0000:05:00.0"]
    assert nouveau.reason.endswith("it is bound to the driver nouveau")
    assert [node.path for node in nouveau.devices] == ["/dev/dri/card0", "/dev/dri/renderD128"]


@pytest.mark.parametrize("mode", ["spx", "cpx"])
def test_a_card_that_loses_its_driver_stays_under_its_id(machine, look, mode) -> None:
    root = machine(f"mi300x-{mode}")
    before = look(root)
    address = "0000:46:00.0"
    (root / f"sys/bus/pci/devices/{address}/driver").unlink()
    (root / f"sys/bus/pci/devices/{address}/unique_id").unlink()
    for told in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        location = dict(line.split() for line in told.read_text().splitlines()).get("location_id")
        if int(location or 0) & 0xFFFF == 0x4600:
            told.unlink()
    after = look(root, before)
    assert [one.id for one in after.instances] == [one.id for one in before.instances]
    lost = [one for one in after.instances if one.text("pci_address") == address]
    assert len(lost) == {"spx": 1, "cpx": 8}[mode]
    assert {one.reason for one in lost} == {"no driver is bound to it"}
    assert all(one.healthy for one in after.instances if one not in lost)


def test_uncorrected_errors_make_one_card_unhealthy(machine, look) -> None:
    root = machine("mi300x-spx")
    counts = root / "sys/bus/pci/devices/0000:46:00.0/ras/umc_err_count"
    counts.write_text("ue: 2\nce: 40\n")
    bad = [one for one in cards(look(root)) if not one.healthy]
    assert [(one.text("pci_address"), one.reason) for one in bad] == [
        ("0000:46:00.0", "its memory had 2 errors that could not be corrected")
    ]
    counts.write_text("Query currently inaccessible\n")
    assert all(one.healthy for one in cards(look(root)))


def test_two_cards_with_one_id_are_told_apart_by_their_places(machine, look) -> None:
    root = machine("mi250")
    for bus in ("c1", "c5"):
        (root / f"sys/bus/pci/devices/0000:{bus}:00.0/unique_id").write_text("00000000000000ff\n")
    found = cards(look(root))
    assert [one.id for one in found[:2]] == ["gpu-0000:c1:00.0", "gpu-0000:c5:00.0"]
    assert all(one.healthy for one in found)


def test_no_card_is_given_the_node_of_another(machine, look) -> None:
    """KFD says of two cards that they have one render node."""
    root = machine("mi250")
    told = root / "sys/class/kfd/kfd/topology/nodes/5/properties"
    told.write_text(told.read_text().replace("drm_render_minor 129", "drm_render_minor 128"))
    found = cards(look(root))
    assert [one.text("pci_address") for one in found if not one.healthy] == ["0000:c5:00.0"]
    assert "renderD128 is not in /sys" in found[1].reason
    nodes = [node for one in found for node in one.devices]
    assert len(nodes) == len(set(nodes))


def test_without_kfd_there_is_no_rocm(machine, look) -> None:
    root = machine("mi250")
    (root / "sys/class/kfd/kfd/dev").unlink()
    assert all("/dev/kfd" in one.reason for one in cards(look(root)))
