"""Rails that the configuration or a provider tells, and what discovery makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import structs
from topology.rails import CONNECTX, rail_optimized, rails
from topology.trees import card

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model.config import RailsConfig
from xce_nodeagent.model.instance import Instance
from xce_nodeagent.model.rail import Rails, decide, with_rails
from xce_nodeagent.provider import Found
from xce_nodeagent.providers import all_providers


def test_the_configuration_goes_before_structure() -> None:
    inventory = rail_optimized()
    named = structs.replace(
        inventory,
        instances=tuple(
            structs.replace(one, attributes={**one.attributes, "netdev": f"eth{at}"})
            for at, one in enumerate(inventory.instances)
        ),
    )
    found = rails(named, nics=("0000:43:00.0", "", "eth1, eth3", "no-such"))
    assert (found.by, found.unknown) == ("configuration", ("no-such",))
    assert found.nics == {"0000:43:00.0": 0, "0000:13:00.0": 2, "0000:23:00.0": 2}
    # The third GPU has a NIC of its own, which is on no rail.
    assert found.gpus == {"0000:41:00.0": 0, "0000:11:00.0": 2, "0000:21:00.0": 2}


def test_nobody_says() -> None:
    assert rails(rail_optimized(), by="none") == Rails()


@pytest.mark.parametrize("profile", ["dgx-h100", "mi300x", "gb200", "dgx-a100-mig"])
def test_what_a_provider_tells_stays_and_structure_would_say_the_same(profile: str) -> None:
    inventory = scan(Host("/nonexistent", simulate=profile), all_providers(("simulated",)))
    told = {one.id: one.number("rail") for one in inventory.instances if "rail" in one.attributes}
    assert inventory.topology["rails"]["nics"] == {}
    stripped = tuple(
        structs.replace(one, attributes={k: v for k, v in one.attributes.items() if k != "rail"})
        for one in inventory.instances
    )
    found = decide(stripped, inventory.layout, RailsConfig())
    assert found.nics == told
    assert found.gpus == inventory.topology["rails"]["gpus"]
    assert with_rails(stripped, found) == inventory.instances


class Told:
    """A provider that says what a test wants it to."""

    name = "told"
    types = ()

    def __init__(self, found: Found) -> None:
        self.found = found

    def discover(self, host: Host) -> Found:
        return self.found

    def plan(self, grant: Any) -> Any:
        raise NotImplementedError


def told(instances: Iterable[Instance]) -> Told:
    return Told(Found(instances=tuple(structs.replace(i, provider="told") for i in instances)))


def alone(**config: Any) -> Host:
    return Host("/nonexistent", rails=RailsConfig(**config))


PAIRS = [
    card(f"0000:{n}{at}:00.0", kind, pcie_root=f"r{n}", pcie_switch=f"s{n}", **facts)
    for n in (1, 2)
    for at, kind, facts in ((1, "gpu", {}), (2, "nic", {"netdev": f"eth{n}", **CONNECTX}))
]  # fmt: skip


def test_discovery_finds_rails_anew_each_time() -> None:
    first = scan(alone(), [told(PAIRS)])
    assert {i.id: i.number("rail") for i in first.instances if i.type == "nic"} == {
        "0000:12:00.0": 0, "0000:22:00.0": 1,
    }  # fmt: skip
    silent = Told(Found(state="error", reason="no answer"))
    assert scan(alone(), [silent], first).instances == first.instances
    changed = scan(alone(nics=["eth2", "eth1"]), [silent], first)
    assert [i.number("rail") for i in changed.instances if i.type == "nic"] == [1, 0]
    assert changed.topology["rails"]["by"] == "configuration"
    off = scan(alone(by="none"), [silent], changed)
    assert not any("rail" in i.attributes for i in off.instances)


def test_what_the_configuration_does_not_list_is_on_no_rail_though_its_provider_says_so() -> None:
    numbered = [
        structs.replace(one, attributes={**one.attributes, "rail": 7}) if one.type == "nic" else one
        for one in PAIRS
    ]
    found = scan(alone(nics=["eth2"]), [told(numbered)])
    assert [i.attributes.get("rail") for i in found.instances if i.type == "nic"] == [None, 0]


def test_a_name_that_no_nic_has_is_a_problem_and_no_more() -> None:
    found = scan(alone(nics=["eth1", "eth9"]), [told(PAIRS)])
    (problem,) = found.problems
    assert (problem.provider, problem.state) == ("rails", "error")
    assert "'eth9'" in problem.reason
    assert [i.text("rail") for i in found.instances if i.type == "nic"] == ["0", ""]
