"""Intel's GPUs, Habana's cards, and what else the kernel has a class for."""

from __future__ import annotations

import pytest

from xce_nodeagent.model.plan import AllowDevice
from xce_nodeagent.provider import Grant
from xce_nodeagent.providers.accelerator import PROVIDER


def test_intel_cards_with_two_tiles_each(machine, look) -> None:
    inventory = look(machine("max1550"))
    found = {one.id: one for one in inventory.instances}
    function = found.pop("gpu-0000:18:00.1")
    assert [one.text("index") for one in found.values()] == list("012345")
    assert all(one.healthy and one.type == "gpu" for one in found.values())
    last = found["gpu-0001:6c:00.0"]
    assert (last.text("model"), last.number("tiles")) == ("Data Center GPU Max 1550", 2)
    assert last.number("memory_bytes") == 128 << 30
    assert [(n.path, n.major, n.minor) for n in last.devices] == [
        ("/dev/dri/card6", 226, 6), ("/dev/dri/renderD133", 226, 133),
    ]  # fmt: skip
    # A virtual function is the same silicon as the card.
    assert (function.healthy, function.parent) == (False, "gpu-0000:18:00.0")
    assert function.overlaps == ("gpu-0000:18:00.0",)
    assert found["gpu-0000:18:00.0"].overlaps == (function.id,)
    # The BMC's display is neither a card for jobs, nor fenced.
    assert not any(device.minor == 0 for device in inventory.managed())


def test_level_zero_gets_the_numbers_of_what_the_job_can_open(machine, look) -> None:
    cards = [one for one in look(machine("max1550")).instances if one.healthy]
    plan = PROVIDER.plan(Grant(instances=(cards[1], cards[4])))
    assert plan.environment["ZE_AFFINITY_MASK"] == "0,1,2,3"
    assert plan.environment["XCE_GPU_INDEXES"] == "1,4"
    outside = PROVIDER.plan(Grant(instances=(cards[1], cards[4]), contained=False)).environment
    assert (outside["ZE_AFFINITY_MASK"], outside["ZE_FLAT_DEVICE_HIERARCHY"]) == (
        "1,4",
        "COMPOSITE",
    )


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("gaudi2", ["/dev/accel/accel3", "/dev/accel/accel_controlD3"]),
        ("gaudi2-habanalabs", ["/dev/hl3", "/dev/hl_controlD3"]),
    ],
)
def test_gaudi_with_either_driver(machine, look, name: str, nodes: list[str]) -> None:
    inventory = look(machine(name))
    found = inventory.instances
    assert len(found) == 8
    assert {(one.type, one.text("vendor"), one.text("model")) for one in found} == {
        ("accelerator", "habana", "Gaudi2")
    }
    assert [one.number("module_id") for one in found] == [3, 1, 0, 2, 7, 5, 4, 6]
    assert inventory.counters["accelerator"] == {"total": 8, "healthy": 8}
    plan = PROVIDER.plan(Grant(instances=found[3:4]))
    assert [s.node.path for s in plan.steps if isinstance(s, AllowDevice)] == nodes
    assert plan.environment == {
        "HABANA_VISIBLE_MODULES": "2",
        "XCE_ACCELERATORS": "accel-0000:1c:00.0",
        "XCE_ACCELERATOR_NODES": ",".join(nodes),
    }


@pytest.mark.parametrize("name", ["gaudi2", "gaudi2-habanalabs"])
def test_a_card_in_reset_is_unhealthy_and_the_others_are_not(machine, look, name: str) -> None:
    root = machine(name)
    home = "bus/pci/devices/0000:1c:00.0" if name == "gaudi2" else "class/habanalabs/hl3"
    (root / f"sys/{home}/status").write_text("In reset\n")
    bad = [one for one in look(root).instances if not one.healthy]
    assert [(one.id, one.reason) for one in bad] == [
        ("accel-0000:1c:00.0", "its driver says: In reset")
    ]


def test_what_no_driver_has(machine, look) -> None:
    reasons = {one.text("pci_address"): one.reason for one in look(machine("driverless")).instances}
    assert reasons["0000:06:00.0"] == "no driver is bound to it"
    assert reasons["0000:07:00.0"] == "it is bound to the driver vfio-pci"
    assert reasons["0000:08:00.0"] == "its driver xe has made no render node"
    assert reasons["0000:09:00.0"] == "no driver is bound to it"


def test_generic_ones_have_their_nodes(machine, look) -> None:
    found = {one.id: one for one in look(machine("others")).instances}
    assert {name: [n.path for n in one.devices] for name, one in found.items()} == {
        "gpu-0000:03:00.0": ["/dev/dri/card1", "/dev/dri/renderD129"],
        "accel-0000:00:0b.0": ["/dev/accel/accel0"],
        "accel-fdab0000.npu": ["/dev/accel/accel1"],
    }
    assert all(one.healthy for one in found.values())
    assert found["gpu-0000:03:00.0"].text("model") == "1ed5:0222"


def test_drivers_with_classes_of_their_own(machine, look) -> None:
    found = {one.text("pci_address"): one for one in look(machine("engines")).instances}
    told = {
        address: (one.type, one.text("vendor"), [node.path for node in one.devices], one.reason)
        for address, one in found.items()
        if one.provider == "accelerator"
    }
    assert told == {
        "0000:00:02.0": ("gpu", "intel", ["/dev/dri/card0", "/dev/dri/renderD128"], ""),
        "0000:1b:00.0": ("accelerator", "nec", ["/dev/ve0"], ""),
        "0000:1c:00.0": ("accelerator", "amazon", ["/dev/neuron0"], ""),
        "0000:1d:00.0": ("accelerator", "tenstorrent", ["/dev/tenstorrent/0"], ""),
        "0000:1e:00.0": ("accelerator", "nec", [], "no driver is bound to it"),
        "0000:20:00.0": ("accelerator", "google", ["/dev/accel0"], ""),
    }
    # The second head of a card is no card.
    assert [address for address, one in found.items() if one.provider == "amd"] == ["0000:03:00.0"]
