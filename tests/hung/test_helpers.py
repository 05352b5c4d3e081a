"""Helpers that are stopped and killed, over and over, while clients prepare and release."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

PINNED = {"transient", "node"}
CLIENTS = 4

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


class Client(threading.Thread):
    """Prepares, tries the fence from inside, and releases, until it is told to end."""

    def __init__(self, agent, refused, in_job, number):
        super().__init__()
        self._agent, self._refused, self._in_job, self._number = agent, refused, in_job, number
        self.over = threading.Event()
        self.wrong = []
        self.done = self.failed = 0

    def run(self):
        turn = 0
        while not self.over.is_set():
            turn += 1
            try:
                self._one(f"c{self._number}-{turn}")
            except Exception as error:
                self.wrong.append(error)
                raise

    def _call(self, method, **parameters):
        try:
            answer = self._agent.call(method, **parameters)
        except self._refused as error:
            if error.error_class not in PINNED:
                raise
            self.failed += 1
            return None
        self.done += 1
        return answer

    def _one(self, job):
        first, other = self._agent.pairs[self._number]
        answer = self._call("Prepare", job=job, attempt="a", instances=[first["id"]])
        if answer is not None:
            assert answer["instances"] == [first["id"]]
            inside = self._in_job(answer["cgroup"]["v2"])
            assert inside.opens(first["devices"][0]["path"]) == "ENXIO"
            assert inside.opens(other["devices"][0]["path"]) == "EPERM"
            inside.end()
        while not self.over.is_set():  # a release that could not be done is asked again
            released = self._call("Release", job=job, attempt="a")
            if released is not None:
                return


@pytest.fixture
def clients(agent, refused, in_job):
    """Clients at work, each with a card of its own and one that it must not have."""
    cards = agent.instances("gpu")
    agent.pairs = list(zip(cards[:CLIENTS], cards[CLIENTS:], strict=True))
    made = [Client(agent, refused, in_job, number) for number in range(CLIENTS)]
    for client in made:
        client.start()
    yield made
    for client in made:
        client.over.set()
    for client in made:
        client.join(60)


def whole(agent, clients, until):
    """End the clients; nothing of theirs is left, and no answer of theirs was wrong."""
    for client in clients:
        client.over.set()
    for client in clients:
        client.join(60)
        assert not client.is_alive()
        assert client.wrong == []
    for binding in agent.call("ListBindings")["bindings"]:
        agent.call("Release", job=binding["job"], attempt=binding["attempt"])
    until(lambda: not agent.call("ListBindings")["bindings"], "all is free")
    assert not [one.name for one in agent.home.iterdir() if one.is_dir()]
    free = agent.call("Prepare", job="all", request="rusage[gpu=8]")
    assert free["enforcement"] == "cgroup2"


def harm(family, role, how):
    with contextlib.suppress(ProcessLookupError, ValueError):
        os.kill(family.live(role), how)


@pytest.mark.parametrize(
    "harmed",
    [(role, how) for role in ("binder", "prober", "witness") for how in ("SIGKILL", "SIGSTOP")],
    ids="-".join,
)
def test_a_helper_that_is_harmed_again_and_again_spoils_no_answer(
    agent, clients, family, until, harmed
):
    role, how = harmed[0], signal.Signals[harmed[1]]
    parts = family(agent)
    rounds, pause = (12, 0.25) if how == signal.SIGKILL else (3, 2.5)
    for _ in range(rounds):
        harm(parts, role, how)
        agent.process.send_signal(signal.SIGHUP)  # the prober is asked
        time.sleep(pause)
    done = [client.done for client in clients]
    until(lambda: all(c.done > d for c, d in zip(clients, done, strict=True)), "they go on", 30)
    whole(agent, clients, until)


CARDS = "".join(
    f"gpu bus=00000000:{n}B:00.0 uuid=GPU-{name} name=x minor={n} memory=1 cc=9.0 mig=0\n"
    for n, name in enumerate(("one", "two"), 1)
)


@pytest.fixture
def listening(agent, cards, until):
    """The agent, with two cards that tell XIDs when `tell` says so."""
    agent.stop()
    library = cards(agent)
    events = library.fifo("events")
    library.say(f"driver 1\nevents {events}\n{CARDS}")
    agent.keys = "library_seconds = 1"
    agent.start()
    until(library.seen, "the cards")
    told = os.open(events, os.O_RDWR)  # what is told while nobody listens is not lost
    agent.tell = lambda uuid, xid: os.write(told, f"{uuid} {xid} -1 -1\n".encode())
    agent.reason = lambda uuid: library.seen()[uuid]["reason"]
    yield agent
    os.close(told)


@pytest.mark.needs("cc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["SIGKILL", "SIGSTOP"])
def test_a_listener_that_is_harmed_is_replaced_and_what_it_told_stays(
    listening, clients, family, until, how
):
    agent, parts = listening, family(listening)
    agent.tell("GPU-one", 79)
    until(lambda: "XID 79" in agent.reason("GPU-one"), "it hears")
    for xid in (48, 95, 119):
        before = parts.live("listener")
        os.kill(before, how)
        agent.tell("GPU-two", xid)
        if how == signal.SIGSTOP:
            # Whoever has a card open and is stopped is found when the card is to be let go of.
            agent.call("Drain", id="GPU-one", reason="a test")
        until(lambda xid=xid: f"XID {xid}" in agent.reason("GPU-two"), "another one hears", 30)
        until(lambda gone=before: not Path(f"/proc/{gone}").exists(), "nobody is left over")
        assert parts.live("listener") != before
        assert "XID 79" in agent.reason("GPU-one")
        if how == signal.SIGSTOP:
            break  # each one takes as long as a card is waited for
    done = [client.done for client in clients]
    until(lambda: all(c.done > d for c, d in zip(clients, done, strict=True)), "they go on", 30)
    whole(agent, clients, until)


# It ends when it may `go`. What it says is how often it was started.
PROBE = """#!/bin/sh
cd {folder}
echo $$ >> started
while [ ! -e go ]; do sleep 0.05; done
echo $$ >> ended
printf '{{"type": {{"scope": {{"unit": "scope"}}}}, "instance": [{{"id": "scope-0",'
printf '"type": "scope", "attributes": {{"turn": %d}}}}]}}' $(wc -l < started)
"""


class Probe:
    """A site's program, which an agent is started with."""

    def __init__(self, agent):
        self.agent = agent
        self.go, self._program = agent.folder / "go", agent.folder / "probe"
        self.go.touch()
        for name in ("started", "ended"):
            (agent.folder / name).touch()
            (agent.folder / name).chmod(0o666)
        self._program.write_text(PROBE.format(folder=agent.folder), "utf-8")
        self._program.chmod(0o755)
        agent.extra = (
            f'[reporter]\nprogram = ["{self._program}"]\nuser = "daemon"\n'
            "interval_seconds = 1\ntimeout_seconds = 1\n"
        )

    def pids(self, name):
        return (self.agent.folder / name).read_text("ascii").split()

    def turn(self):
        """Say which of its reports is known; 0 is none."""
        found = {one["id"]: one for one in self.agent.call("GetInventory")["instances"]}
        return found["scope-0"]["attributes"]["turn"] if "scope-0" in found else 0

    def problem(self):
        problems = self.agent.call("GetInventory")["problems"]
        return any(one["provider"] == "reported" for one in problems)


@pytest.fixture
def probe(agent, until):
    """A site's program, of which the agent knows a report."""
    agent.stop()
    made = Probe(agent)
    agent.start()
    until(made.turn, "a report")
    return made


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["SIGKILL", "SIGSTOP"])
def test_a_runner_that_is_harmed_is_replaced_and_what_was_reported_stays(
    probe, clients, family, until, how
):
    parts = family(probe.agent)
    for _ in range(3 if how == signal.SIGKILL else 1):
        probe.go.unlink()
        before = len(probe.pids("started"))
        until(lambda b=before: len(probe.pids("started")) > b, "the program runs")
        program, runner, known = probe.pids("started")[-1], parts.live("runner"), probe.turn()
        os.kill(runner, how)
        until(lambda gone=runner: not Path(f"/proc/{gone}").exists(), "it is replaced", 30)
        until(probe.problem, "the agent says so")
        assert probe.turn() == known > 0, "what was reported is gone"
        probe.go.touch()
        until(lambda known=known: probe.turn() > known, "the next one reports", 30)
        assert parts.live("runner") != runner
        assert program not in probe.pids("ended"), "it outlived its runner"
    done = [client.done for client in clients]
    until(lambda: all(c.done > d for c, d in zip(clients, done, strict=True)), "they go on", 30)
    whole(probe.agent, clients, until)


def test_a_binder_that_is_killed_for_want_of_memory_is_replaced_and_nothing_is_lost(
    memory, agent, clients, family, until
):
    """It is one that has just taken over: each page that it writes to is a new one of its own.

    Each time it gets a little further, at first not even to its next page.
    """
    parts = family(agent)
    agent.call("Prepare", job="held", instances=[agent.pairs[0][1]["id"]])
    for room in (0, 96 << 10, 320 << 10):
        until(lambda: len(parts.helpers("binder")) == 2, "there is a spare", 30)
        live, kills = parts.live("binder"), memory.kills()
        (spare,) = set(parts.helpers("binder")) - {live}
        memory.limit(room)
        memory.take(spare)
        os.kill(live, signal.SIGKILL)
        until(lambda gone=spare: not Path(f"/proc/{gone}").exists(), "it is killed, too", 30)
        assert memory.kills() > kills
        assert f"binder {spare}: killed by signal 9" in agent.log.read_text("utf-8")
        done = [client.done for client in clients]
        until(
            lambda done=done: all(c.done > d for c, d in zip(clients, done, strict=True)),
            "they go on",
            30,
        )
    assert "held" in [b["job"] for b in agent.call("ListBindings")["bindings"]]
    whole(agent, clients, until)


def test_a_supervisor_that_is_stopped_costs_no_job_and_is_waited_for(agent, clients, family, until):
    parts = family(agent)
    supervisor = parts.supervisor
    binder = parts.live("binder")
    os.kill(supervisor, signal.SIGSTOP)
    try:
        done = [client.done for client in clients]
        until(lambda: all(c.done > d for c, d in zip(clients, done, strict=True)), "they go on")
        os.kill(binder, signal.SIGKILL)
        time.sleep(1)  # now there is nobody to give a new one
    finally:
        os.kill(supervisor, signal.SIGCONT)
    done = [client.done for client in clients]
    until(lambda: all(c.done > d for c, d in zip(clients, done, strict=True)), "they go on", 30)
    whole(agent, clients, until)


def test_without_its_supervisor_an_agent_answers_what_is_wrong_and_loses_nothing(
    agent, refused, family, until, in_job
):
    gpu, other = agent.instances("gpu")[:2]
    held = agent.call("Prepare", job="held", instances=[gpu["id"]])
    inside = in_job(held["cgroup"]["v2"])
    os.kill(family(agent).supervisor, signal.SIGKILL)
    with pytest.raises(refused) as told:
        until(lambda: not agent.call("Prepare", job="new"), "it is seen")
    assert told.value.error_class in PINNED
    assert inside.opens(gpu["devices"][0]["path"]) == "ENXIO"
    assert inside.opens(other["devices"][0]["path"]) == "EPERM"
    assert "held" in [b["job"] for b in agent.call("ListBindings")["bindings"]]
    agent.stop()
    agent.start()
    assert inside.opens(other["devices"][0]["path"]) == "EPERM"
    assert agent.call("Prepare", job="new")["enforcement"] == "cgroup2"
    inside.end()
    assert agent.call("Release", job="held")["clean"]
