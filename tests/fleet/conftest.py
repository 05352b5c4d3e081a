"""Fleets to show, made as a reader makes them, and views of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec import structs

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "upstream"))

import etcds
import fleets
from filled import filled as filled_store

from xce_nodeagent.cli.fleet.survey import Survey
from xce_nodeagent.cli.fleet.view import FleetView, summary

EVIL = (
    "</title></svg><script>document.title='taken'</script>",
    "\"><img src=http://example.invalid/x onerror=document.title='taken'>",
    "--><style>*{display:none}</style>",
    "\x1b]0;taken\x07 \u202egnp\x00\ufffe\ud800",
)


def block(name, attributes):
    return str(attributes.get("switch_block", ""))


@pytest.fixture(scope="session")
def fleet():
    """A fleet of 200 nodes as the reader has it."""
    return fleets.fleet(200)


@pytest.fixture(scope="session")
def view(fleet) -> FleetView:
    """The same as it is shown."""
    return Survey(block).view(fleet)


@pytest.fixture(scope="session")
def small() -> FleetView:
    """A rack: sixteen nodes, of which one is unhealthy, and one drained."""
    return Survey(block).view(fleets.fleet(16))


@pytest.fixture(scope="session")
def large(view) -> FleetView:
    """A fleet of 10,000 nodes and 76,000 cards."""
    nodes = tuple(
        structs.replace(node, name=f"{node.name}-{copy:02}", block=f"{node.block}-{copy:02}")
        for copy in range(50)
        for node in view.nodes
    )
    return structs.replace(view, nodes=nodes, summary=summary(nodes))


@pytest.fixture(scope="session")
def evil(view) -> FleetView:
    """A fleet in which everything that others may choose is chosen by somebody evil."""
    found = []
    for at, node in enumerate(view.nodes):
        text = EVIL[at % len(EVIL)]
        wrong = tuple(structs.replace(one, id=text, type=text, reason=text) for one in node.wrong)
        jobs = tuple(structs.replace(one, job=text, attempt=text) for one in node.jobs)
        tallies = tuple(structs.replace(one, model=text) for one in node.instances)
        found.append(
            structs.replace(
                node, name=f"{text}{at}", block=text, faults=(text,), wrong=wrong, jobs=jobs,
                instances=tallies, program=text,
            )
        )  # fmt: skip
    return structs.replace(view, nodes=tuple(found), outdated=EVIL[0], cluster=EVIL[1], faults=EVIL)


@pytest.fixture(scope="module")
def etcd():
    """An etcd that the tests of a file share: each takes a prefix of its own."""
    with etcds.running() as one:
        yield one


@pytest.fixture(scope="module")
def filled(etcd, tmp_path_factory):
    """A store with a fleet that no test changes."""
    with filled_store(etcd, tmp_path_factory.mktemp("filled")) as store:
        yield store


@pytest.fixture
def changed(etcd, tmp_path):
    """A store with a fleet that the test changes."""
    with filled_store(etcd, tmp_path) as store:
        yield store
