"""The host comes to need a NIC that a job has: the job keeps it, and nobody else gets it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


def _agents() -> ModuleType:
    path = Path(__file__).parents[1] / "agent/conftest.py"
    spec = importlib.util.spec_from_file_location("xce_nic_agents", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


AGENTS = _agents()


@pytest.fixture
def agent(cgroup2_mount: Path) -> Iterator[Any]:
    with AGENTS.serving(cgroup2_mount) as running:
        yield running


def test_a_job_keeps_a_nic_that_the_host_came_to_need(agent: Any) -> None:
    held = agent.instances("nic")[-1]["id"]
    first = agent.call("Prepare", job="1", attempt="a", instances=[held])
    agent.stop()
    agent.extra = f'[nic]\nreserve = ["{held}"]'
    agent.start()
    (nic,) = (one for one in agent.instances("nic") if one["id"] == held)
    assert "reserve" in nic["reserved"]
    assert nic["held_by"] == [{"job": "1", "attempt": "a"}]
    inventory = agent.call("GetInventory")
    counted = inventory["counters"]["nic"]
    nics = [one["reserved"] for one in inventory["instances"] if one["type"] == "nic"]
    assert (counted["total"], counted["reserved"]) == (nics.count(""), len(nics) - nics.count(""))
    # To ask again for what it has is to get it; to grow by something else is no matter either.
    again = agent.call("Prepare", job="1", attempt="a", instances=[held])
    assert (again["instances"], again["env"]) == (first["instances"], first["env"])
    grown = agent.call("Prepare", job="1", attempt="a", request="rusage[gpu=1]", add=True)
    assert held in grown["instances"]
    for wanted in ({"instances": [held]}, {"request": f"rusage[nic={counted['total'] + 1}]"}):
        with pytest.raises(AGENTS.Refused) as refused:
            agent.call("Prepare", job="2", **wanted)
        code = "reserved" if "instances" in wanted else "never_fits"
        assert refused.value.code == code
        assert "`[nic] offer`" in str(refused.value)
    agent.call("Release", job="1", attempt="a")
    with pytest.raises(AGENTS.Refused):
        agent.call("Prepare", job="2", instances=[held])
