"""The example of docs/upstream.md does what it says."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import filling
import fleets
import pytest

from xce_nodeagent.model.request import parse
from xce_nodeagent.upstream.assignment import assign
from xce_nodeagent.upstream.keys import Keys

PAGE = Path(__file__).parents[2] / "docs" / "upstream.md"
BEGIN, END = "<!-- run by tests/upstream/test_reading.py -->\n", "<!-- end -->"
NODES = 60


@pytest.mark.needs("etcd")
def test_the_example_of_a_scheduler(etcd) -> None:
    code = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    assert "http://127.0.0.1:2379" in code
    with filling.client(etcd.url) as store:
        filling.fill(store, fleets.state(NODES, Keys()), lease=filling.lease(store))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code).replace("http://127.0.0.1:2379", etcd.url)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    chosen, state = map(str.split, done.stdout.splitlines())
    fleet = fleets.fleet(NODES)
    expected = assign(fleet, parse("rusage[gpu=4:nic=1]"))
    assert chosen == [expected.node, expected.generation, *expected.instances]
    assert state[0] in ("reading", "following")
    assert state[2] == fleet.digest
