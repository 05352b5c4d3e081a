"""The host comes to need a NIC that a job has: the job keeps it, and nobody else gets it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.running import Refused, serving

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


@pytest.fixture
def agent(cgroup2_mount: Path) -> Iterator[Any]:
    with serving(cgroup2_mount) as running:
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
        with pytest.raises(Refused) as refused:
            agent.call("Prepare", job="2", **wanted)
        code = "reserved" if "instances" in wanted else "never_fits"
        assert refused.value.code == code
        assert "`[nic] offer`" in str(refused.value)
    agent.call("Release", job="1", attempt="a")
    with pytest.raises(Refused):
        agent.call("Prepare", job="2", instances=[held])
