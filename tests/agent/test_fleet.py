"""Round trip: from agents on several hosts by way of a store to a job on the chosen one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent.running import Refused, Running, serving
from msgspec import structs
from upstream import etcds, filling
from upstream.network import STORE, Host, network

from xce_nodeagent.model.request import parse
from xce_nodeagent.upstream.assignment import assign
from xce_nodeagent.upstream.fleet import Fleet, Node
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.watcher import Watcher

PATIENCE = 60.0
"""Seconds until a wait is given up."""

pytestmark = [
    pytest.mark.needs("root", "netns", "etcd"),
    pytest.mark.parametrize("backend", ["cgroup2"], indirect=True),
]


def on(host: Host, node: str, profile: str, store: str) -> type[Running]:
    """Give an agent of a host of its own."""

    class Elsewhere(Running):
        def __init__(self, folder: Path, home: Path, other: Path, devices: Path) -> None:
            super().__init__(folder, home, other, devices)
            self.keys = f'node = "{node}"'
            self.extra = f'[upstream.etcd]\nendpoints = ["{store}"]\nlease_seconds = 2'
            self.python = [*host.within, sys.executable]

        def start(self, profile: str = profile) -> None:
            super().start(profile)

    return Elsewhere


@contextlib.contextmanager
def fleet(mount: Path) -> Iterator[tuple[dict[str, Running], list[Host], etcds.Etcd]]:
    """Run two hosts of two kinds, and a store that both reach."""
    with network(2) as hosts, etcds.folder() as folder, contextlib.ExitStack() as stack:
        client, peer = etcds.free_ports(2)
        store = etcds.Etcd(
            folder, url=f"http://{STORE}:{client}", peer=f"http://127.0.0.1:{peer}"
        ).start()
        stack.callback(store.kill)
        agents = {
            node: stack.enter_context(serving(mount, on(host, node, profile, store.url)))
            for host, node, profile in zip(
                hosts, ("small", "large"), ("gb200", "dgx-h100"), strict=True
            )
        }
        yield agents, hosts, store


def lasting(found: Fleet) -> dict[str, Node]:
    """Give the nodes without what each reader saw for itself: who lives."""
    return {
        name: structs.replace(node, since=0.0, available=True) for name, node in found.nodes.items()
    }


def all_well(found: Fleet) -> bool:
    return set(found.nodes) == {"small", "large"} and all(n.eligible for n in found.nodes.values())


def jobs(reader: Watcher, *wanted: str) -> Fleet:
    """Wait until the fleet's jobs are these, and bound."""

    def told(found: Fleet) -> bool:
        held = [one for node in found.nodes.values() for one in node.bindings]
        return sorted(one.job for one in held if one.state == "bound") == sorted(wanted)

    return reader.wait_for(lambda found: all_well(found) and told(found), seconds=PATIENCE)


def run(agents: dict[str, Running], found: Fleet, job: str, request: str) -> str:
    """Do what a scheduler does: choose from the fleet, and prepare there; give the node."""
    chosen = assign(found, parse(request))
    bound = agents[chosen.node].call(
        "Prepare", job=job, attempt="1", instances=chosen.instances, generation=chosen.generation
    )
    assert set(bound["instances"]) == set(chosen.instances)
    return chosen.node


def test_from_the_agents_to_the_store_to_a_choice_and_back(mount: Path) -> None:
    with fleet(mount) as (agents, _, store), filling.watching(store.url, Keys()) as reader:
        found = reader.wait_for(all_well, seconds=PATIENCE)
        assert {node.totals["gpu"].free for node in found.nodes.values()} == {4, 8}
        assert run(agents, found, "a", "rusage[gpu=4]") == "small"
        found = jobs(reader, "a")
        assert found.nodes["small"].totals["gpu"].free == 0
        assert run(agents, found, "b", "rusage[gpu=3:nic=2]") == "large"
        found = jobs(reader, "a", "b")

        chosen = assign(found, parse("rusage[gpu=2]"))
        card = next(one for one in chosen.instances)
        agents["large"].call("Drain", id=card, reason="it changed after the choice")
        with pytest.raises(Refused) as refused:
            agents["large"].call(
                "Prepare", job="c", instances=chosen.instances, generation=chosen.generation
            )
        assert refused.value.code == "stale"
        found = reader.wait_for(
            lambda one: one.nodes["large"].totals["gpu"].drained == 1 and all_well(one),
            seconds=PATIENCE,
        )
        again = assign(found, parse("rusage[gpu=2]"))
        assert card not in again.instances
        assert run(agents, found, "c", "rusage[gpu=2]") == "large"
        found = jobs(reader, "a", "b", "c")

        for agent in agents.values():
            agent.kill()
        with filling.watching(store.url, Keys()) as later:
            same = later.wait_for(lambda one: len(one.nodes) == 2, seconds=PATIENCE)
        assert same.digest == found.digest
        assert lasting(same) == lasting(found)
        held = {
            instance: (one.job, one.attempt, one.uid)
            for node in same.nodes.values()
            for one in node.bindings
            for instance in one.instances
        }
        inventories = [node.inventory for node in same.nodes.values()]
        shown = {
            one.id: [(by.job, by.attempt) for by in one.held_by or ()]
            for inventory in inventories
            for one in (inventory.instances if inventory else ())
            if one.held_by
        }
        assert len(held) == 4 + 5 + 2
        assert shown == {one: [by[:2]] for one, by in held.items()}


def test_a_host_that_is_cut_off_is_away_and_its_jobs_stay_known(mount: Path) -> None:
    with (
        fleet(mount) as (agents, hosts, store),
        filling.watching(store.url, Keys(), grace=0.5) as reader,
    ):
        run(agents, reader.wait_for(all_well, seconds=PATIENCE), "a", "rusage[gpu=4]")
        jobs(reader, "a")
        hosts[0].plug(on=False)
        gone = reader.wait_for(lambda one: not one.nodes["small"].available, seconds=PATIENCE)
        assert [one.job for one in gone.nodes["small"].bindings] == ["a"]
        assert gone.nodes["large"].eligible
        agents["small"].call("Release", job="a", attempt="1")  # nothing on a job's path waits
        hosts[0].plug(on=True)
        jobs(reader)
