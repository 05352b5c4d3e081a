"""NVML hangs for ever, in each of its calls: nobody waits, and what hung is left alone."""

from __future__ import annotations

import itertools
import re
import statistics
import time
from pathlib import Path

import pytest

from xce_nodeagent.host.nvml import LEFT_ALONE

ONE = "gpu bus=00000000:1B:00.0 uuid=GPU-one name=one minor=1 memory=1 cc=9.0 mig=0 serial=1"
TWO = "gpu bus=00000000:43:00.0 uuid=GPU-two name=two minor=2 memory=1 cc=9.0 mig=1 serial=1"
SLICE = "mig uuid=MIG-1 name=X_MIG_1g.10gb gi=9 ci=0 memory=1"

WHOLE = {
    "nvmlInit": "nvmlInitWithFlags",
    "nvmlSystemGetDriverVersion": "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount": "nvmlDeviceGetCount_v2",
    "nvmlShutdown": "nvmlShutdown",
}
"""Calls that are about no device, as pynvml and as the library name them.

`tests/nvml` has every call that the product makes; these are of each kind."""
CARD = {
    "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetPciInfo": "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetUUID": "nvmlDeviceGetUUID",
    "nvmlDeviceGetName": "nvmlDeviceGetName",
    "nvmlDeviceGetMinorNumber": "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetSerial": "nvmlDeviceGetSerial",
    "nvmlDeviceGetMemoryInfo": "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetCudaComputeCapability": "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMigMode": "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount": "nvmlDeviceGetMaxMigDeviceCount",
}
OF_SLICE = {
    "nvmlDeviceGetMigDeviceHandleByIndex": "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId": "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId": "nvmlDeviceGetComputeInstanceId",
}
PATIENCE_TOML = "library_seconds = 1\n"

VERSIONS = itertools.count()

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf", "cc", "netns")


@pytest.fixture(scope="module")
def agent(serving, cgroup2_mount, cards):
    """An agent in a network namespace of its own, with a library that may take a second."""
    with serving(cgroup2_mount) as running:
        running.stop()
        running.cards = cards(running)
        running.keys = "library_seconds = 1"
        running.python = ["unshare", "--net", *running.python]
        running.start()
        yield running


@pytest.fixture
def patient(serving, cgroup2_mount, cards):
    """An agent whose library may take a minute."""
    with serving(cgroup2_mount) as running:
        running.stop()
        running.cards = cards(running)
        running.start()
        yield running


def text(*lines, hang=""):
    return (
        "driver 1\n" + (f"hang {hang}\n" if hang else "") + "".join(f"{line}\n" for line in lines)
    )


def something_else_changes():
    """Have the kernel tell of a CPU again: a reason to ask the library, and none of a card."""
    Path("/sys/devices/system/cpu/cpu0/uevent").write_text("change", "ascii")


class Blamed:
    """What hung a prober since this was made, in the agent's words."""

    def __init__(self, agent):
        self._log = agent.log
        self._from = len(self._read())

    def _read(self):
        return self._log.read_text("utf-8")

    def __call__(self):
        return re.findall(r"WARNING: (.*) hung a prober: it is left", self._read()[self._from :])


def prepares(agent, count=20):
    """Prepare and release what has nothing to do with NVML; give how long each prepare took."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        agent.call("Prepare", job="1", request="rusage[gpu=2]")
        took.append(time.perf_counter() - began)
        agent.call("Release", job="1")
    return took


def healthy(agent, until):
    """Come to two cards that answer; each time with another version, so that it is seen."""
    version = f"1.{next(VERSIONS)}"
    agent.cards.say(text(ONE, TWO, SLICE).replace("driver 1", f"driver {version}"))
    agent.cards.anew()

    def whole():
        seen = agent.cards.seen()
        known = {one["attributes"].get("driver_version") for one in seen.values()}
        hung = any(LEFT_ALONE in one["reason"] for one in seen.values())
        return seen.keys() == {"GPU-one", "GPU-two", "MIG-1"} and known == {version} and not hung

    until(whole, f"both cards of {version}")
    assert not agent.cards.problem()


@pytest.mark.parametrize("call", [*CARD, *OF_SLICE])
def test_a_card_that_hangs_a_call_is_left_alone_and_the_other_one_is_seen(agent, until, call):
    healthy(agent, until)
    mark = f" hang={(CARD | OF_SLICE).get(call, '')}"
    two, one_slice = (TWO + mark, SLICE) if call in CARD else (TWO, SLICE + mark)
    lines = [ONE, two, one_slice]
    blamed = Blamed(agent)
    agent.cards.say(text(*lines))
    agent.cards.anew()
    prepares(agent)
    until(blamed, "a prober hangs")
    # It was known by its index alone, or by its address.
    early = call in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo")
    suspect = "NVML device 1" if early else "0000:43:00.0"
    # The one that hangs is not asked again when something else changes; the other one is.
    agent.cards.say(text(ONE.replace("name=one", "name=other"), *lines[1:]))
    something_else_changes()
    until(lambda: agent.cards.seen()["GPU-one"]["attributes"]["model"] == "other", "the other one")
    prepares(agent)
    seen = agent.cards.seen()
    assert LEFT_ALONE not in seen["GPU-one"]["reason"]
    if not early:
        assert LEFT_ALONE in seen["GPU-two"]["reason"]
        assert LEFT_ALONE in seen["MIG-1"]["reason"]
    assert blamed() == [suspect]
    # Somebody repaired it, and says so.
    healthy(agent, until)
    assert blamed() == [suspect]


@pytest.mark.parametrize("call", WHOLE)
def test_a_call_about_no_card_that_hangs_is_made_once_and_jobs_go_on(agent, until, call):
    healthy(agent, until)
    blamed = Blamed(agent)
    agent.cards.say(text(ONE, TWO, SLICE, hang=WHOLE[call]))
    agent.cards.anew()
    prepares(agent)
    until(blamed, "a prober hangs")
    if call in ("nvmlInit", "nvmlDeviceGetCount"):
        until(lambda: f"{call} {LEFT_ALONE}" in agent.cards.problem(), "it is told")
    else:
        agent.cards.say(text(ONE.replace("name=one", "name=other"), TWO, SLICE, hang=WHOLE[call]))
        something_else_changes()
        until(lambda: agent.cards.seen()["GPU-one"]["attributes"]["model"] == "other", "the cards")
        assert not agent.cards.problem()
    something_else_changes()
    prepares(agent)
    # What was known stays known.
    assert agent.cards.seen().keys() == {"GPU-one", "GPU-two", "MIG-1"}
    assert blamed() == [call]
    healthy(agent, until)


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
def test_where_no_card_was_ever_known_the_agent_starts_and_serves_the_rest(agent, until, call):
    agent.stop()
    (agent.folder / "state" / "inventory.json").unlink(missing_ok=True)
    agent.cards.say(text(ONE, TWO, SLICE, hang=WHOLE[call]))
    agent.start()
    prepares(agent)
    until(lambda: f"{call} {LEFT_ALONE}" in agent.cards.problem(), "it is told")
    assert agent.cards.seen() == {}
    prepares(agent)
    healthy(agent, until)


def test_a_prepare_is_not_slower_while_a_prober_hangs(patient, until, family):
    healthy(patient, until)
    prepares(patient)  # the first ones are slower
    without = statistics.median(prepares(patient, 100))
    patient.cards.say(text(ONE, TWO + " hang=nvmlDeviceGetUUID", SLICE))
    patient.cards.anew()
    prober = family(patient).live("prober")
    threads = Path(f"/proc/{prober}/task")
    until(lambda: len(list(threads.iterdir())) == 2, "the library is being asked")
    prepares(patient)
    hanging = statistics.median(prepares(patient, 100))
    assert family(patient).live("prober") == prober
    assert len(list(threads.iterdir())) == 2  # it hangs still
    # The bench has the figure; here is only what no noise of a machine can make.
    assert hanging < 10 * without
