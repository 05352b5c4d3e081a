"""A real agent, whose clock of the day is set forth and back by a day while it works.

Nobody else's clock is touched: a library before libc's answers for it (wall_clock.c).
"""

from __future__ import annotations

import os
import struct
import subprocess
import time
from pathlib import Path

import pytest

DAY = 86_400

pytestmark = [pytest.mark.needs("root", "cgroup2", "bpf", "cc"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    built = tmp_path_factory.mktemp("clock") / "wall_clock.so"
    source = Path(__file__).with_name("wall_clock.c")
    subprocess.run(["cc", "-std=gnu11", "-shared", "-fPIC", "-o", built, source], check=True)
    return built


@pytest.fixture
def set_clock(agent, shim):
    """Set the agent's clock so many seconds from everybody's."""
    agent.stop()
    own, clock = agent.folder / shim.name, agent.folder / "clock"
    own.write_bytes(shim.read_bytes())
    clock.write_bytes(bytes(8))
    agent.env |= {"LD_PRELOAD": str(own), "XCE_DAY_CLOCK": str(clock)}

    def step(seconds):
        with clock.open("r+b", buffering=0) as file:  # in place: it is mapped
            file.write(struct.pack("@q", seconds))

    agent.start()
    return step


def bindings(agent):
    return {one["job"]: one for one in agent.call("ListBindings")["bindings"]}


def test_a_day_forth_and_back_revives_no_attempt_and_loses_nothing(
    agent, set_clock, refused, until
):
    gpus = agent.instances("gpu")
    ask = {"job": "held", "attempt": "a", "instances": [gpus[0]["id"]]}
    held = agent.call("Prepare", **ask)
    agent.call("Prepare", job="over", attempt="a")
    agent.call("Release", job="over", attempt="a")
    for turn, step in enumerate((DAY + 60, -DAY - 60)):
        set_clock(step)
        job = f"of-{turn}"
        given = agent.call("Prepare", job=job, attempt="a", instances=[gpus[1]["id"]])
        # So it is true that the agent takes it for another day.
        assert abs(bindings(agent)[job]["since"] - time.time() - step) < 60
        where = Path(given["cgroup"]["v2"])
        with pytest.raises(refused) as late:
            agent.call("Prepare", job="over", attempt="a")
        assert late.value.code == "stale"
        assert agent.call("Prepare", **ask) == held
        quarantined(agent, until, job, where)
        verified(agent, turn)
        assert bindings(agent).keys() == {"held"}, "it was compared with the kernel"
        agent.kill()
        agent.start()
        assert bindings(agent).keys() == {"held"}
        assert agent.call("Prepare", **ask) == held
        for dead in ("over", job):
            with pytest.raises(refused) as late:
                agent.call("Prepare", job=dead, attempt="a")
            assert late.value.code == "stale"
    assert agent.call("Release", job="held", attempt="a")["clean"]


def quarantined(agent, until, job, where):
    """Release a job that has a process left: its card is free when that has ended, not before."""
    left = subprocess.Popen(["sleep", "600"])
    try:
        (where / "cgroup.procs").write_text(str(left.pid), "ascii")
        assert not agent.call("Release", job=job, attempt="a")["clean"]
        assert bindings(agent)[job]["state"] == "quarantined"
    finally:
        left.kill()
        left.wait()
    until(lambda: job not in bindings(agent), "it is clean", 30)


def verified(agent, turn):
    """Take a job's cgroup away: whoever compares the bindings with the kernel sees that."""
    lost = agent.call("Prepare", job=f"lost-{turn}", attempt="a")
    os.rmdir(lost["cgroup"]["v2"])
    agent.call("Doctor", repair=True)
