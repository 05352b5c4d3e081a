from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from recorded.comparison import Tally

from xce_nodeagent.cli.local import look
from xce_nodeagent.host import Host
from xce_nodeagent.model.inventory import Inventory


class Seen(NamedTuple):
    """A recorded machine, and what the production path makes of it."""

    host: Host
    found: Inventory


@pytest.fixture(scope="session")
def seen(recorded: Callable[[str], Path]) -> Callable[[str], Seen]:
    """Look at a recorded machine as `inventory --sysroot` does."""

    @functools.cache
    def look_at(name: str) -> Seen:
        root = recorded(name)
        return Seen(Host(root), look(str(root), ""))

    return look_at


@pytest.fixture
def tally(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Iterator[Tally]:
    """Count what a test compares; in the end nothing may differ but what is explained."""
    counted = Tally(request.node.callspec.params["name"])
    yield counted
    record_property("recorded", [counted.machine, counted.count, len(counted.explained)])
    assert counted.count, "nothing was compared"
    assert not counted.stale, "what is explained does not differ"
    assert not counted.different, "\n".join(counted.different)
