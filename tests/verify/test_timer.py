"""A real agent of which nobody asks anything: by its clock alone it finds that a fence is open."""

from __future__ import annotations

import time

import pytest
from agent.running import Running, serving

SECONDS = 30.0
"""The patience of the test; the agent looks every half second."""

HASTY = """
import sys
from xce_nodeagent.cli.main import main
from xce_nodeagent.daemon import upkeep
upkeep.VERIFY_SECONDS = 0.5
sys.exit(main())
"""


class Hasty(Running):
    """An agent whose clock is short; all else of it is as it is in the product."""

    def __init__(self, *places) -> None:
        super().__init__(*places)
        self.program = ["-c", HASTY]


@pytest.fixture
def hasty(mount):
    """Such an agent; who is in its cgroups is a later fixture's, and ends before it."""
    with serving(mount, Hasty) as agent:
        yield agent


def _until(inside, path, said, act=lambda: None):
    """Act again and again, until an open from within the job says this."""
    until = time.monotonic() + SECONDS
    while (now := inside.opens(path)) != said:
        assert time.monotonic() < until, f"{path}: {now}, and never {said}"
        act()
        time.sleep(0.02)


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("cgroup2", marks=pytest.mark.needs("root", "cgroup2", "bpf")),
        pytest.param("cgroup1", marks=pytest.mark.needs("root", "cgroup1")),
    ],
)
@pytest.mark.timeout(180)
def test_fence_that_somebody_opened_is_closed_though_nobody_asks(backend, hasty, in_job, hand):
    answer = hasty.call("Prepare", job="1", request="rusage[gpu=1]")
    (path,) = answer["cgroup"].values()
    nodes = {i["id"]: i["devices"][0]["path"] for i in hasty.instances("gpu")}
    mine = nodes[answer["instances"][0]]
    other = next(p for i, p in nodes.items() if i not in answer["instances"])
    inside = in_job(path)
    assert (inside.opens(mine), inside.opens(other)) == ("ENXIO", "EPERM")

    def tamper() -> None:
        if backend == "cgroup2":
            hand.detach(path)
        else:
            with open(f"{path}/devices.allow", "w") as rules:
                rules.write("a *:* rwm")

    for _ in range(2):  # a timer that was not set again has its one time
        # Where the agent was faster, it is done again: what is seen closed must have been open.
        _until(inside, other, "ENXIO", tamper)
        _until(inside, other, "EPERM")
        assert inside.opens(mine) == "ENXIO"
