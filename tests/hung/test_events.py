"""More events of the hardware than the kernel keeps: all is looked at again, and nothing spins."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

CARD = "gpu bus=00000000:1B:00.0 uuid=GPU-one name={} minor=1 memory=1 cc=9.0 mig=0 serial=1\n"
# The namespace's own sysfs: what is written there tells nobody else.
FLOOD = """
mount --make-rprivate / && mount -t sysfs sysfs /sys && i=0
while [ $i -lt 4000 ]; do echo change > /sys/class/net/lo/uevent; i=$((i+1)); done
"""

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf", "cc", "netns")


@pytest.fixture
def flooded(agent, cards):
    """An agent in a network namespace of its own, and the library that it asks."""
    agent.stop()
    agent.cards = cards(agent)
    agent.cards.say(CARD.format("before"))
    agent.python = ["unshare", "--net", *agent.python]
    agent.start()
    return agent


def overflow(agent):
    """Send it more events than its socket holds, while it cannot read."""
    pid = agent.process.pid
    agent.process.send_signal(signal.SIGSTOP)
    try:
        flood = ["nsenter", f"--net=/proc/{pid}/ns/net", "unshare", "--mount", "sh", "-ec", FLOOD]
        subprocess.run(flood, check=True, timeout=60)
    finally:
        agent.process.send_signal(signal.SIGCONT)


def test_events_that_were_lost_may_have_been_of_a_card_so_all_is_looked_at_again(flooded, until):
    until(lambda: flooded.cards.seen()["GPU-one"]["attributes"]["model"] == "before", "the card")
    flooded.cards.say(CARD.format("after"))
    overflow(flooded)
    until(lambda: flooded.cards.seen()["GPU-one"]["attributes"]["model"] == "after", "the change")
    assert "events of the hardware were lost" in flooded.log.read_text("utf-8")


def test_an_overflow_leaves_an_agent_that_sleeps_serves_and_hears_the_next_event(
    flooded, until, cpu
):
    overflow(flooded)
    lost = "events of the hardware were lost"
    until(lambda: lost in flooded.log.read_text("utf-8"), "the overflow")
    pid = flooded.process.pid

    def idle():
        before, began = cpu(pid), time.monotonic()
        time.sleep(0.5)
        return (cpu(pid) - before) / (time.monotonic() - began) < 0.2

    until(idle, "it sleeps again")
    assert flooded.log.read_text("utf-8").count(lost) == 1
    assert flooded.call("Prepare", job="1", request="rusage[gpu=2]")["enforcement"] == "cgroup2"
    flooded.call("Release", job="1")
    flooded.cards.say(CARD.format("later"))
    overflow(flooded)  # and once more
    until(lambda: flooded.cards.seen()["GPU-one"]["attributes"]["model"] == "later", "the next")
    assert flooded.log.read_text("utf-8").count(lost) == 1
