"""Every recorded machine through the production path, against what its recording says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from recorded import oracle, pairs, recording
from recorded.comparison import Tally, compare

pytestmark = pytest.mark.needs("recorded")

Look = Callable[[str], Any]


@pytest.mark.parametrize("name", [*recording.HWLOC, *recording.NCCL, *recording.SLICES])
def test_what_a_recording_says_is_found(name: str, seen: Look, tally: Tally) -> None:
    compare(tally, recording.read(name), seen(name))
    pairs.compare(tally, recording.read(name), seen(name).found)


@pytest.mark.parametrize("name", [one for one in recording.TARS if recording.beside(one)])
def test_a_raw_tree_is_what_its_xml_says(name: str, seen: Look, tally: Tally) -> None:
    tally.against = "xml"
    said = recording.read(recording.beside(name))
    compare(tally, said, seen(name))
    pairs.compare(tally, said, seen(name).found)


@pytest.mark.needs("lstopo")
@pytest.mark.parametrize("name", [*recording.HWLOC, *recording.TARS])
def test_lstopo_sees_the_same(name: str, seen: Look, tally: Tally) -> None:
    """It reads the trees that were written here as it reads recorded ones."""
    tally.against = "lstopo"
    said = oracle.lstopo(seen(name).host.root)
    compare(tally, said, seen(name))
    pairs.compare(tally, said, seen(name).found)
