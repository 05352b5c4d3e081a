"""Helpers that are stopped and killed, over and over, while clients prepare and release."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

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
