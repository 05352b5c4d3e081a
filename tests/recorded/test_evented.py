"""Events of recorded machines, by umockdev: what udev tells is heard, and the inventory follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recorded import recording

pytestmark = pytest.mark.needs("umockdev", "recorded")

GPU = "/devices/pci0000:00/0000:00:03.0/0000:02:00.0"
CARD = "/devices/pci0000:00/0000:00:1c.6/0000:6e:00.0"
INTERFACE = f"""
P: {CARD}/net/wlan7
E: INTERFACE=wlan7
E: IFINDEX=7000
E: SUBSYSTEM=net
A: address=02:00:00:00:00:07
A: ifindex=7000
A: iflink=7000
A: operstate=down
A: type=1
L: device=../../../0000:6e:00.0
"""


def _steps(record: Path, *paths: str) -> list[dict[str, Any]]:
    program = Path(__file__).with_name("evented.py")
    done = subprocess.run(
        ["umockdev-wrapper", sys.executable, program, record, *paths],
        check=True, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(step["cold"] for step in steps), steps
    return steps


@pytest.mark.parametrize("name", ["nvidia1060", "desktop-nvidia-intel"])
def test_a_card_is_unbound_bound_removed_and_added(name: str) -> None:
    record = recording.FOLDER / f"umockdev/{name}.umockdev"
    first, unbound, bound, gone, back = _steps(record, GPU)
    own = "gpu-0000:02:00.0"
    assert [step["heard"] for step in (unbound, bound, gone, back)] == [
        [f"{action} pci 0000:02:00.0"] for action in ("unbind", "bind", "remove", "add")
    ]
    assert "no driver is bound" in unbound["found"][own][0]
    assert bound["found"] == first["found"]
    assert gone["found"].keys() == first["found"].keys() - {own}
    assert back["found"] == first["found"]


def test_an_interface_comes_and_goes_and_so_does_its_card(tmp_path: Path) -> None:
    recorded = (recording.FOLDER / "umockdev/wifi.umockdev").read_text("utf-8")
    record = tmp_path / "record"
    record.write_text(f"{recorded.rstrip()}\n{INTERFACE}", "utf-8")
    steps = _steps(record, f"{CARD}/net/wlan7", CARD)
    first, gone, back, *of_card = steps
    assert gone["heard"] == ["remove net wlan7"]
    assert back["heard"] == ["add net wlan7"]
    assert first["found"].keys() - gone["found"].keys() == {"0000:6e:00.0"}
    assert first["found"]["0000:6e:00.0"][1]["netdev"] == "wlan7"
    assert back["found"] == first["found"]
    assert [step["heard"] for step in of_card[:-1]] == [
        [f"{action} pci 0000:6e:00.0"] for action in ("unbind", "bind", "remove")
    ]
    assert {"add pci 0000:6e:00.0", "add net wlan7"} <= set(of_card[-1]["heard"])
    assert of_card[-2]["found"] == gone["found"]
    assert of_card[-1]["found"] == first["found"]
