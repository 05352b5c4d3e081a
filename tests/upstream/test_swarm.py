"""Many agents' reporters and one store that goes away: in the end it has the newest of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random

import pytest
from upstream import etcds, fleets, swarm

from xce_nodeagent.upstream.etcd import Client
from xce_nodeagent.upstream.fleet import Fleet
from xce_nodeagent.upstream.keys import Keys
from xce_nodeagent.upstream.watcher import Watcher

pytestmark = pytest.mark.needs("etcd")

COUNT, LEASE, CAP = 50, 9, 1.0
PATIENCE = 60.0
OPTIONS = {"processes": 2, "lease": LEASE, "cap": CAP}


def reader(urls: list[str], one: swarm.Swarm) -> Watcher:
    client = Client(urls, Random(0))  # noqa: S311  # which member comes first
    return Watcher(client, Keys(one.prefix), grace=PATIENCE)


def newest(one: swarm.Swarm, following: Watcher) -> Fleet:
    """Wait until the reader has the newest report of each node; give its fleet."""
    one.settle(PATIENCE)
    wanted = one.reports()
    return following.wait_for(
        lambda fleet: (
            {name: node.head and node.head.report for name, node in fleet.nodes.items()} == wanted
        ),
        seconds=PATIENCE,
    )


def last_write(url: str, one: swarm.Swarm) -> tuple[int, int]:
    """Give its revision, and how many keys there are: of theirs, for a test before left leases."""
    asked = Client([url], Random(0))  # noqa: S311  # there is but one member
    keys = list(asked.range(one.prefix.encode(), keys_only=True)[1])
    asked.close()
    return max(key.mod_revision for key in keys), len(keys)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def crowd(etcd: etcds.Etcd) -> Iterator[swarm.Swarm]:
    prefix = f"/swarm-{time.monotonic_ns()}/"
    with swarm.running([etcd.url], COUNT, prefix=prefix, **OPTIONS) as one:
        one.start()
        yield one


def test_a_quiet_fleet_is_kept_alive_and_writes_nothing(
    crowd: swarm.Swarm, etcd: etcds.Etcd
) -> None:
    with reader([etcd.url], crowd) as following:
        before = newest(crowd, following)
        assert len(before.nodes) == COUNT
        assert all(node.available for node in before.nodes.values())
        last, asked = last_write(etcd.url, crowd), etcd.requests()
        until(lambda: etcd.requests()["LeaseKeepAlive"] - asked["LeaseKeepAlive"] >= 2 * COUNT)
        assert last_write(etcd.url, crowd) == last
        assert following.snapshot is before


def test_what_was_told_while_the_store_was_away_gets_there(
    crowd: swarm.Swarm, etcd: etcds.Etcd
) -> None:
    """It forgets what was before, too: whether who follows it reads all again or goes on is one."""
    with reader([etcd.url], crowd) as following:
        newest(crowd, following)
        etcd.kill()
        for number in range(3):
            for at in range(0, COUNT, 2):
                crowd.tell(at, f"away-{number}" if at % 4 else "")
        # All at once: who has nothing new must not take that for a store that answers.
        until(lambda: all(one["failing"] for one in crowd.states().values()))
        etcd.start()
        crowd.settle(PATIENCE)
        etcd.ctl("compact", str(etcd.revision()))
        fleet = newest(crowd, following)
        assert all(node.available for node in fleet.nodes.values())
        for at in range(0, COUNT, 2):
            jobs = [one.job for one in fleet.nodes[fleets.name(at)].bindings]
            assert [job for job in jobs if job.startswith("away")] == ["away-2"] * (at % 4 > 0)


def test_a_store_whose_leader_dies_has_the_newest_of_each() -> None:
    with etcds.cluster(3) as members:
        urls = [one.url for one in members]
        with swarm.running(urls, COUNT, **OPTIONS) as one, reader(urls, one) as following:
            one.start()
            newest(one, following)
            for at in range(COUNT):
                one.tell(at, "before")
            etcds.leader(members).kill()
            for at in range(0, COUNT, 2):
                one.tell(at, "after")
            fleet = newest(one, following)
    told = {at: [b.job for b in fleet.nodes[fleets.name(at)].bindings] for at in range(COUNT)}
    assert all(("after" if at % 2 == 0 else "before") in jobs for at, jobs in told.items())
