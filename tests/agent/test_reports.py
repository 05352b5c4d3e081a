"""A real agent reports to several places at once, and no job waits for any of them."""

from __future__ import annotations

import contextlib
import json
import time
import uuid

import pytest
from upstream import etcds
from upstream.receivers import receiver
from upstream.states import chance

from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.keys import Keys

PATIENCE = 20.0

pytestmark = [
    pytest.mark.needs("root", "cgroup2", "bpf"),
    pytest.mark.parametrize("backend", ["cgroup2"], indirect=True),
]


@pytest.fixture
def reports(agent):
    """A folder that the agent may write in; the agent is not running."""
    agent.stop()
    folder = agent.folder / "reports"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def eventually(look):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with contextlib.suppress(OSError, KeyError):
            if found := look():
                return found
        time.sleep(0.02)
    return pytest.fail("it did not come to pass")


def checks(agent):
    return {check["name"]: check for check in agent.call("Doctor")["checks"]}


def jobs(entries):
    return sorted(name for name in entries if name.startswith("binding/"))


def test_a_file_and_a_receiver_have_inventory_and_bindings(agent, reports):
    path = reports / "report.json"
    with receiver() as there:
        agent.extra = f'[upstream.file]\npath = "{path}"\n[upstream.http]\nurl = "{there.url}"'
        agent.start()
        card = agent.instances("gpu")[0]["id"]
        agent.call("Drain", id=card, reason="worn")
        answer = agent.call("Prepare", job="7", attempt="a", request="rusage[gpu=1]")
        name = agent.call("GetInventory")["node"]
        there.wait(lambda: jobs(there.nodes[name].entries) == ["binding/7/a"])
        there.wait(lambda: there.nodes[name].entries["binding/7/a"]["state"] == "bound")
        kept = there.nodes[name]
        assert kept.entries["binding/7/a"]["instances"] == answer["instances"]
        found = kept.inventory()
        assert found.by_id()[card].reason == "worn"
        assert found.generation == agent.call("GetInventory")["generation"]
        assert there.kinds().count("full") == 1

        def whole():
            told = json.loads(path.read_text("utf-8"))
            return told if [one["job"] for one in told["bindings"]] == ["7"] else None

        told = eventually(whole)
        held = {one["id"]: one["held_by"] for one in told["instances"]}
        assert held[answer["instances"][0]] == [{"job": "7", "attempt": "a"}]
        assert held[card] == []
        shown = checks(agent)
        assert shown["report.file"]["state"] == shown["report.http"]["state"] == "ok"
        assert str(path) in shown["report.file"]["text"]

        own = (agent.folder / "state" / "agent-id").read_text("ascii").strip()
        assert kept.head["agent"] == told["report"]["agent"] == str(uuid.UUID(own))
        agent.call("Release", job="7", attempt="a")
        agent.stop()  # what changed last is told before the end
        assert jobs(there.nodes[name].entries) == []
        assert json.loads(path.read_text("utf-8"))["bindings"] == []
        agent.start()
        there.wait(lambda: there.kinds().count("full") == 2)
        again = there.nodes[name].head
        assert again["agent"] == own
        assert again["started"] > kept.head["started"]


def test_after_an_outage_the_receiver_gets_the_newest_and_nothing_in_between(agent, reports):
    with receiver() as there:
        agent.extra = f'[upstream.http]\nurl = "{there.url}"'
        agent.start()
        name = agent.call("GetInventory")["node"]
        there.wait(lambda: name in there.nodes)
        port = there.port
    for number in range(30):
        agent.call("Prepare", job=str(number), request="rusage[gpu=1]")
        if number < 29:
            agent.call("Release", job=str(number))
    told = eventually(lambda: (one := checks(agent)["report.http"])["state"] == "warning" and one)
    assert "refused" in told["text"]
    assert "no report gets there since" in told["text"]
    with receiver(port=port) as there:
        # At most a minute lies between two tries.
        there.wait(lambda: jobs(there.nodes[name].entries) == ["binding/29/"], 80)
        assert [one for body in there.bodies for one in jobs(body.get("entries", ()))] == [
            "binding/29/"
        ]
        eventually(lambda: checks(agent)["report.http"]["state"] == "ok")


def test_no_job_waits_for_a_receiver_that_hangs_nor_does_the_end(agent, reports):
    path = reports / "report.json"
    with receiver() as there:
        there.gate.clear()
        agent.extra = f'[upstream.file]\npath = "{path}"\n[upstream.http]\nurl = "{there.url}"'
        agent.start()
        assert there.held.wait(PATIENCE)
        for number in range(20):
            assert agent.call("Prepare", job=str(number), request="rusage[gpu=1]")["instances"]
            assert agent.call("Release", job=str(number))["released"]
        agent.call("Prepare", job="last", request="rusage[gpu=1]")
        assert there.bodies == [], "the receiver has answered nothing yet"

        def last():
            return [one["job"] for one in json.loads(path.read_text("utf-8"))["bindings"]]

        eventually(lambda: last() == ["last"])
        assert agent.stop() == 0
        assert there.bodies == []


@pytest.mark.needs("etcd")
def test_a_store_a_receiver_and_a_file_at_once(agent, reports):
    path = reports / "report.json"
    with etcds.running() as store, receiver() as there:
        agent.extra = (
            f'[upstream.file]\npath = "{path}"\n[upstream.http]\nurl = "{there.url}"\n'
            f'[upstream.etcd]\nendpoints = ["{store.url}"]\nlease_seconds = 30'
        )
        agent.start()
        agent.call("Prepare", job="7", request="rusage[gpu=1]")
        name = agent.call("GetInventory")["node"]
        keys = Keys()
        reader = Client([store.url], chance(1))

        def stored():
            _, found = reader.range(keys.node(name))
            entries = {keys.parse(one.key).entry for one in found}
            return entries if jobs(entries) == ["binding/7/"] else None

        entries = eventually(stored)
        there.wait(lambda: jobs(there.nodes[name].entries) == ["binding/7/"])
        assert entries == {"head", *there.nodes[name].entries}
        eventually(lambda: json.loads(path.read_text("utf-8"))["bindings"])
        shown = checks(agent)
        assert {shown[f"report.{kind}"]["state"] for kind in ("file", "http", "etcd")} == {"ok"}
        reader.close()
