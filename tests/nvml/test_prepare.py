"""A real agent: nodes that went wrong after it looked, and shares of cards."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.running import Refused, serving

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


@pytest.fixture(scope="module")
def agent(cgroup2_mount: Path) -> Iterator[Any]:
    """An agent with simulated cards, of which the first ones are shared."""
    with serving(cgroup2_mount) as running:
        seen = running.call("GetInventory")["instances"]
        first = next(one for one in seen if one["type"] == "gpu")
        running.stop()
        running.extra = f'[mps.shares]\n"{first["id"]}" = [60, 40]\n'
        running.start()
        running.first = first
        yield running


def instance(agent: Any, wanted: str) -> dict[str, Any]:
    found = agent.call("GetInventory")["instances"]
    return next(one for one in found if one["id"] == wanted)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_two_jobs_share_a_card_and_a_third_cannot_have_the_whole(agent: Any) -> None:
    whole = agent.first["id"]
    shares = [f"mps-{whole}-{number}" for number in range(2)]
    one = agent.call("Prepare", job="1", instances=[shares[0]])
    other = agent.call("Prepare", job="2", instances=[shares[1]])
    assert one["env"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "60"
    assert other["env"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
    assert one["env"]["CUDA_VISIBLE_DEVICES"] == other["env"]["CUDA_VISIBLE_DEVICES"] == whole
    for job, asked in (("3", whole), ("4", shares[0])):
        with pytest.raises(Refused) as caught:
            agent.call("Prepare", job=job, instances=[asked])
        assert caught.value.code == "busy"
    for job in ("1", "2"):
        assert agent.call("Release", job=job)["clean"]
    agent.call("Prepare", job="5", instances=[whole])
    with pytest.raises(Refused) as caught:
        agent.call("Prepare", job="6", instances=[shares[1]])
    assert caught.value.code == "busy"
    agent.call("Release", job="5")


def test_a_node_that_is_another_s_or_gone_fails_the_prepare_and_no_other(agent: Any) -> None:
    cards = [one for one in agent.call("GetInventory")["instances"] if one["type"] == "gpu"][1:3]
    wrong, right = cards
    (node,) = wrong["devices"]
    (others,) = right["devices"]
    path = Path(node["path"])
    mode = stat.S_IFCHR | stat.S_IMODE(path.stat().st_mode)
    try:
        path.unlink()
        for kind, major, minor, say in (
            (0, 0, 0, "is not there"),
            (mode, others["major"], others["minor"], "it should be"),
            (stat.S_IFREG | 0o644, 0, 0, "no device node"),
            (mode & ~stat.S_IFCHR | stat.S_IFBLK, node["major"], node["minor"], "it should be"),
        ):
            if kind:
                os.mknod(path, kind, os.makedev(major, minor))
            # It is shown, too, though nobody asked for the card.
            until(lambda s=say: s in instance(agent, wrong["id"])["reason"])
            with pytest.raises(Refused, match=say) as caught:
                agent.call("Prepare", job="7", instances=[wrong["id"]])
            assert (caught.value.code, caught.value.error_class) == ("unhealthy", "node")
            assert caught.value.details["instance"] == wrong["id"]
            assert agent.call("ListBindings")["bindings"] == []
            agent.call("Prepare", job="8", instances=[right["id"]])
            agent.call("Release", job="8")
            path.unlink(missing_ok=True)
    finally:
        path.unlink(missing_ok=True)
        os.mknod(path, mode, os.makedev(node["major"], node["minor"]))
        path.chmod(stat.S_IMODE(mode))
    until(lambda: instance(agent, wrong["id"])["healthy"])
    agent.call("Prepare", job="7", instances=[wrong["id"]])
    agent.call("Release", job="7")
