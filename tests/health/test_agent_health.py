"""Cards that fall ill under a real agent: what it tells, remembers, and lets go of."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf", "cc")


def ill(agent, uuid, what):
    return lambda: what in agent.cards.reasons().get(uuid, "")


def doctor(agent):
    return {check["name"]: check for check in agent.call("Doctor")["checks"]}


def test_an_xid_is_told_of_what_it_hits_and_outlives_the_agent(agent, until):
    cards = agent.cards
    before = cards.number()
    for number in (13, 31, 43, 45):
        cards.xid("GPU-one", number)  # an application's
    cards.xid("GPU-two", 48, gi=1, ci=0)
    until(ill(agent, "MIG-1", "XID 48"), "the slice is ill")
    reasons = cards.reasons()
    assert "XID 48, uncorrectable memory error, in GPU instance 1" in reasons["GPU-two"]
    assert (reasons["GPU-one"], reasons["MIG-2"]) == ("", "")
    assert cards.number() == before + 1
    cards.xid("GPU-two", 48, gi=1, ci=0)  # once more is no change
    cards.xid("GPU-one", 63)  # a note
    until(lambda: "health.GPU-one" in doctor(agent), "it is noted")
    checks = doctor(agent)
    assert checks["health.GPU-one"]["state"] == "note"
    assert "XID 63" in checks["health.GPU-one"]["text"]
    assert ", 2 times" in checks["health.GPU-two"]["text"]
    assert "nvidia-smi --gpu-reset" in checks["health.GPU-two"]["remedy"]
    assert cards.number() == before + 1
    agent.stop()
    agent.start()
    assert cards.reasons() == reasons
    # Whoever repaired it says so.
    agent.call("Undrain", id="GPU-two")
    assert cards.reasons()["MIG-1"] == ""
    assert cards.number() == before + 2


def test_nobody_of_ours_has_a_drained_card_open_until_it_is_undrained(agent, until):
    cards = agent.cards
    agent.call("Drain", id="GPU-two", reason="another layout")
    assert cards.openers("GPU-two") == []
    taken_up = cards.taken_up("GPU-two")
    until(lambda: cards.openers("GPU-one"), "the other one is listened to")
    # It is looked at again; and the agent that starts anew knows as well.
    cards.layout = {"MIG-3": "gi=3 ci=0"}
    cards.say()
    for again in (cards.anew, lambda: (agent.stop(), agent.start())):
        other = cards.taken_up("GPU-one")
        again()
        until(lambda known=other: cards.taken_up("GPU-one") > known, "it is scanned")
        until(lambda: cards.openers("GPU-one"), "the other one is listened to")
        assert cards.taken_up("GPU-two") == taken_up
        assert cards.openers("GPU-two") == []
    cards.xid("GPU-one", 79)
    until(ill(agent, "GPU-one", "XID 79"), "the other one is heard")
    # What is given to jobs from now on is what there is now.
    agent.call("Undrain", id="GPU-two")
    seen = cards.seen()
    assert seen.keys() == {"GPU-one", "GPU-two", "MIG-3"}
    assert not any(one["drained"] for one in seen.values())
    until(lambda: cards.openers("GPU-two"), "it is listened to again")


def test_a_layout_that_an_admin_changes_is_seen_when_the_library_tells_it(agent, until):
    cards = agent.cards
    before = cards.number()
    cards.layout = {"MIG-3": "gi=3 ci=0"}
    cards.say()
    cards.tell("GPU-two 0 -1 -1 256")
    until(lambda: cards.seen().keys() == {"GPU-one", "GPU-two", "MIG-3"}, "it is seen")
    assert cards.number() == before + 1
    cards.layout = {}
    cards.say()
    cards.tell("GPU-two 0 -1 -1 256")
    until(lambda: cards.seen().keys() == {"GPU-one", "GPU-two"}, "it is whole again")
    assert cards.reasons() == {"GPU-one": "", "GPU-two": ""}


def test_what_was_known_of_a_drained_card_stays(agent):
    before = agent.cards.seen()
    agent.call("Drain", id="GPU-two", reason="a fan")
    agent.cards.anew()
    agent.call("Drain", id="GPU-one", reason="a fan, too")
    for uuid, one in agent.cards.seen().items():
        assert one["drained"]
        assert one["attributes"] == before[uuid]["attributes"]
        assert one["healthy"] == before[uuid]["healthy"]
    assert agent.cards.openers("GPU-one") == agent.cards.openers("GPU-two") == []


def test_a_card_that_hangs_the_listener_is_left_alone_and_the_other_one_is_heard(agent, until):
    cards = agent.cards
    cards.figures["GPU-two"] = "hang=temperature"
    cards.say()
    cards.tell("GPU-two 0 -1 -1 32768")  # its figures have changed
    until(lambda: not cards.openers("GPU-two"), "it is let go")
    cards.xid("GPU-one", 119)
    until(ill(agent, "GPU-one", "XID 119"), "the other one is heard")
    until(ill(agent, "GPU-two", "hung a prober"), "it is told")


def test_a_lost_card_a_fault_and_a_listener_that_dies_cost_nothing_but_that_time(agent, until):
    cards = agent.cards
    cards.tell("fault 15")
    cards.xid("GPU-one", 62)
    until(ill(agent, "GPU-one", "XID 62"), "it is heard after the fault")
    (listener,) = cards.openers("GPU-one")
    assert Path(f"/proc/{listener}/comm").read_text("ascii") == "xce-listener\n"
    os.kill(listener, signal.SIGKILL)
    until(lambda: cards.openers("GPU-one") not in ([], [listener]), "there is another one")
    cards.xid("GPU-one", 46)
    until(ill(agent, "GPU-one", "XID 46"), "it hears")


def test_figures_make_a_card_ill_and_well(agent, until):
    cards = agent.cards
    for figures, reason in (
        ("recovery=1", "the driver says that it needs a reset"),
        ("recovery=2", "the driver says that it needs a reboot"),
        ("recovery=0", ""),
    ):
        cards.figures["GPU-one"] = figures
        cards.say()
        cards.tell("GPU-one 0 -1 -1 32768")
        until(
            lambda wanted=reason: (
                wanted in (found := cards.reasons()["GPU-one"]) and bool(found) is bool(wanted)
            ),
            f"it says {reason!r}",
        )
    assert cards.reasons() == dict.fromkeys(("GPU-one", "GPU-two", "MIG-1", "MIG-2"), "")


def test_doctor_takes_no_helper_of_ours_for_a_stranger(agent, until):
    until(lambda: doctor(agent)["telemetry"]["state"] == "ok", "it listens")
    assert "2 cards" in doctor(agent)["telemetry"]["text"]
