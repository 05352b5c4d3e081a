"""The cards that may be opened are opened, and no others: the stand-in tells who was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROBE = """
import json, sys
from xce_nodeagent.host import nvml
print(json.dumps(nvml.probe(*json.loads(sys.argv[1]))))
"""
ONE, TWO, THREE = "0000:1b:00.0", "0000:2b:00.0", "0000:3b:00.0"

pytestmark = pytest.mark.needs("cc")


class Machine:
    def __init__(self, library: Path, folder: Path) -> None:
        self._library, self._folder = library, folder
        self.keys = {ONE: "", TWO: "", THREE: ""}

    def probe(self, only: list[str] | None, skip: tuple[str, ...] = ()) -> dict[str, Any]:
        """Give the devices' facts by their addresses."""
        data = self._folder / "data"
        lines = []
        for address, keys in self.keys.items():
            self._node(address).write_bytes(b"")
            known = f"gpu bus=0000{address.upper()} uuid=GPU-{address[5:7]} minor=1 name=x mig=0"
            lines.append(f"{known} node={self._node(address)} {keys}\n")
        data.write_text("".join(lines), "ascii")
        done = subprocess.run(
            [sys.executable, "-c", PROBE, json.dumps([skip, None, only])],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(self._library.parent),
                "XCE_NVML_DATA": str(data),
            },
            stdout=subprocess.PIPE,
            timeout=60,
            check=True,
        )
        state, reason, facts = json.loads(done.stdout)
        assert (state, reason) == ("found", "")
        return {device["pci_address"]: device for device in facts["devices"]}

    def opened(self) -> set[str]:
        return {address for address in self.keys if self._node(address).stat().st_size}

    def _node(self, address: str) -> Path:
        return self._folder / address[5:7]


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> Machine:
    return Machine(library, tmp_path)


def test_without_a_word_all_are_opened(machine: Machine) -> None:
    assert machine.probe(None).keys() == {ONE, TWO, THREE} == machine.opened()


@pytest.mark.parametrize("only", [[], [TWO], [ONE, THREE]])
def test_those_that_may_be(machine: Machine, only: list[str]) -> None:
    told = machine.probe(only)
    assert set(only) == told.keys() == machine.opened()
    assert all(one["uuid"] == f"GPU-{address[5:7]}" for address, one in told.items())


def test_one_that_is_lost_gone_or_left_alone_keeps_none_from_being_asked(machine: Machine) -> None:
    machine.keys[ONE] = "lost=1"
    gone = "0000:4b:00.0"
    told = machine.probe([ONE, TWO, THREE, gone], (THREE,))
    assert told[ONE]["lost"] == "GPU is lost"
    assert told[gone]["lost"] == "Not Found"
    assert told[THREE] == {"pci_address": THREE, "skipped": True}
    assert told[TWO]["uuid"] == "GPU-2b"
    assert machine.opened() == {TWO}
