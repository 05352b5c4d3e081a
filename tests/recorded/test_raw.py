"""Raw trees through the production path, against what is in their folders."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from recorded import pairs, raw, recording
from recorded.comparison import Tally, compare

pytestmark = pytest.mark.needs("recorded")

Look = Callable[[str], Any]
RAW = [*recording.TARS, *recording.UDEV, *recording.UMOCKDEV, *recording.TTARS]


@pytest.mark.parametrize("name", RAW)
def test_a_raw_tree_is_found_as_it_is(name: str, seen: Look, tally: Tally) -> None:
    tally.against = "folders"
    said = raw.read(seen(name).host.root)
    compare(tally, said, seen(name))
    pairs.compare(tally, said, seen(name).found)


@pytest.mark.needs("umockdev")
@pytest.mark.parametrize("name", recording.UMOCKDEV)
def test_umockdev_shows_the_machine_that_was_written_here(
    name: str, seen: Look, tally: Tally
) -> None:
    """Over a /sys that umockdev makes of its record, as if it were this machine's own."""
    tally.against = "umockdev"
    program = Path(sys.executable).with_name("xce-nodeagent")
    command = ["umockdev-run", "-d", recording.FOLDER / name, "--", program]
    done = subprocess.run(
        [*command, "inventory", "--local", "--json"], capture_output=True, check=True, timeout=60
    )
    live = json.loads(done.stdout)
    here = json.loads(msgspec.json.encode(seen(name).found))
    for part in ("pci", "bridges"):
        keys = here["topology"][part].keys() | live["topology"][part].keys()
        for key in sorted(keys):
            told, other = here["topology"][part].get(key), live["topology"][part].get(key)
            tally.hold(f"{part} {key}", told, other)
    cards, others = (
        {one["id"]: (one["attributes"], one["devices"]) for one in of["instances"]}
        for of in (here, live)
    )
    for key in sorted(cards.keys() | others.keys()):
        tally.hold(f"instance {key}", cards.get(key), others.get(key))


@pytest.mark.parametrize("name", [one for one in recording.UDEV if "DGXA100" in one])
def test_the_command_shows_what_was_found(name: str, seen: Look, tally: Tally) -> None:
    tally.against = "command"
    program = Path(sys.executable).with_name("xce-nodeagent")
    done = subprocess.run(
        [program, "inventory", "--sysroot", seen(name).host.root, "--json"],
        capture_output=True,
        check=True,
        timeout=60,
    )
    shown, found = json.loads(done.stdout), json.loads(msgspec.json.encode(seen(name).found))
    for key in sorted(found.keys() | shown.keys()):
        tally.hold(key, found.get(key), shown.get(key))
