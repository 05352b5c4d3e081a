"""Two real agents of one name: both say so, neither takes the name from the other."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.running import Running, serving
from upstream import etcds

pytestmark = pytest.mark.needs("root", "cgroup2", "etcd")

PATIENCE = 60.0
LEASE = 2
BINDINGS = "/xce/v1/node/twin/binding/"


def eventually(look: Callable[[], Any]) -> Any:
    until = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.05)
    return found


def reported(agent: Running) -> dict[str, str]:
    """Give what doctor says of the store."""
    checks = agent.call("Doctor")["checks"]
    return next(one for one in checks if one["name"] == "report.etcd")


def identity(agent: Running) -> str:
    return (agent.folder / "state" / "agent-id").read_text("ascii").strip()


@contextlib.contextmanager
def named_twin(mount: Path, store: etcds.Etcd) -> Iterator[Running]:
    class Twin(Running):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.keys = 'node = "twin"'
            self.extra = f'[upstream.etcd]\nendpoints = ["{store.url}"]\nlease_seconds = {LEASE}'

    with serving(mount, Twin) as agent:
        yield agent


def shown(agent: Running) -> dict[str, Any]:
    """Give the node as the command `fleet` shows it."""
    done = subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", "fleet", "--json", "--config", str(agent.config)],
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    (node,) = json.loads(done.stdout)["nodes"]
    return node


@pytest.fixture
def etcd() -> Iterator[etcds.Etcd]:
    with etcds.running() as one:
        yield one


def test_both_say_so_and_neither_flaps(cgroup2_mount: Path, etcd: etcds.Etcd) -> None:
    with named_twin(cgroup2_mount, etcd) as first:
        eventually(lambda: reported(first)["state"] == "ok")
        with named_twin(cgroup2_mount, etcd) as second:
            told = eventually(lambda: (one := reported(second))["state"] == "warning" and one)
            assert f"the name twin is that of agent {identity(first)}" in told["text"]
            assert "[agent] node" in told["remedy"]
            told = eventually(lambda: (one := reported(first))["state"] == "note" and one)
            assert f"agent {identity(second)}" in told["text"]
            assert "claims the name twin, too" in told["text"]

            revision, asked = etcd.revision(), etcd.requests()["LeaseKeepAlive"]
            # Each is kept alive in each third of a lease: these are two leases.
            eventually(lambda: etcd.requests()["LeaseKeepAlive"] >= asked + 12)
            assert etcd.revision() == revision
            assert (reported(first)["state"], reported(second)["state"]) == ("note", "warning")
            node = shown(first)
            assert (node["state"], node["faults"]) == ("two agents", [])
            (rival,) = node["rivals"]
            host = os.uname().nodename
            assert rival.startswith(f"agent {identity(second)} of host {host} (boot ")

            # What the second is asked to do on its own host is no matter of the name.
            card = second.instances("gpu")[0]["id"]
            assert second.call("Prepare", job="1", instances=[card])["instances"] == [card]
            assert etcd.keys(BINDINGS) == []

            first.kill()
            eventually(lambda: reported(second)["state"] == "ok")
            eventually(lambda: etcd.keys(BINDINGS))
            node = shown(second)
            assert (node["faults"] + node["rivals"], [one["job"] for one in node["jobs"]]) == (
                [],
                ["1"],
            )
