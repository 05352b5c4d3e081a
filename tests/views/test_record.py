"""A record holds what discovery read: looked at elsewhere, it is the same machine."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from xce_nodeagent.cli import record as writing
from xce_nodeagent.discovery import scan
from xce_nodeagent.errors import BadRequest
from xce_nodeagent.host import Host
from xce_nodeagent.host.recorder import Recorder
from xce_nodeagent.model.record import File, Folder, Link
from xce_nodeagent.providers import all_providers

LOOKS = {"_read", "_names", "_real", "answer"}
BY_THEM = {"read", "read_slowly", "number", "names", "real", "boot_id", "node", "derived", "state"}
NO_LOOKS = {"path", "uptime", "remembering", "__init__"}


def machine(root: Path | str, *, live: bool = False) -> dict:
    found = msgspec.to_builtins(scan(Host(root, live=live), all_providers()))
    return {key: value for key, value in found.items() if key != "source"}


def round_trip(root: Path, target: Path) -> tuple[dict, dict]:
    writing.record(str(target), str(root), anonymize=False)
    return machine(root), machine(target)


def test_the_small_machine_again(small: Path, tmp_path: Path) -> None:
    before, after = round_trip(small, tmp_path / "record")
    assert before["instances"]
    assert before == after


@pytest.mark.needs("recorded")
def test_a_recorded_machine_again(recorded_root: Path, tmp_path: Path) -> None:
    before, after = round_trip(recorded_root, tmp_path / "record")
    assert before == after


def test_this_machine_again(tmp_path: Path) -> None:
    """What netlink and vendors' libraries told is in the record, too."""
    recorder = Recorder("/", live=True, seen=lambda: None)
    before = msgspec.to_builtins(scan(recorder, all_providers()))
    opened = writing._opened(str(tmp_path / "record"))
    try:
        writing._write(recorder.record, opened)
    finally:
        os.close(opened)
    after = machine(tmp_path / "record")
    assert {key: before[key] for key in after} == after
    assert (tmp_path / "record/netlink.json").exists()


def test_the_cards_of_a_recorded_driver_are_shown(small: Path, tmp_path: Path) -> None:
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    card = {"pci_address": "0000:03:00.0", "uuid": uuid, "name": "NVIDIA H100", "minor": 0}
    (small / "nvml.json").write_text(json.dumps(["found", "", {"devices": [card]}]))
    before, after = round_trip(small, tmp_path / "record")
    assert [(one["id"], one["healthy"]) for one in after["instances"][:1]] == [(uuid, True)]
    assert before == after


@pytest.mark.parametrize("text", ["", "{", "[1]", '["found", "", {"devices": 7}]', "\0\xff"])
def test_a_broken_answer_costs_that_answer_alone(small: Path, text: str) -> None:
    for name in ("nvml", "netlink", "os-release"):
        (small / f"{name}.json").write_text(text)
    assert [one["type"] for one in machine(small)["instances"]] == ["gpu", "nic", "nic"]


def test_every_way_to_look_is_recorded() -> None:
    """Who adds a way to look at a host says here how it is recorded."""
    ways = {name for name, _ in inspect.getmembers(Host, inspect.isfunction)}
    assert ways == LOOKS | BY_THEM | NO_LOOKS
    assert set(vars(Recorder)) >= LOOKS


def test_links_and_devices_are_kept_as_they_are(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sys/real/below").mkdir(parents=True)
    (root / "sys/real/below/file").write_text("text\r\n")
    (root / "sys/absolute").symlink_to("/sys/real")
    (root / "sys/up").symlink_to("../../../../../sys/real/below")
    (root / "sys/loop").symlink_to("loop")
    (root / "sys/outside").symlink_to("/etc")
    (root / "dev").mkdir()
    (root / "dev/null").symlink_to(os.devnull)
    recorder = Recorder(root, seen=lambda: None)
    assert recorder.read("/sys/up/file") is None, "a recorded machine's links do not lead out"
    recorder.names("/sys")
    assert recorder.read("/sys/loop/x") is None
    assert recorder.read("/sys/outside/passwd") is None
    recorder.read("/sys/real/below/file")
    assert recorder.record["/sys/real/below/file"] == File("text\n")
    assert recorder.record["/sys/loop"] == Link("loop")
    assert recorder.record["/sys/up"] == Link("real/below")
    assert all("passwd" not in path for path in recorder.record)
    for path, entry in recorder.record.items():
        if isinstance(entry, Link):
            inside = os.path.normpath(os.path.join(os.path.dirname(path), entry.target))
            assert inside.startswith("/")
            assert not entry.target.startswith("/")


def test_a_device_node_is_its_kind_and_numbers() -> None:
    recorder = Recorder("/", seen=lambda: None)
    recorder.names("/dev")
    assert recorder.record["/dev/null"] == File("c 1:3\n")


def test_nothing_is_written_outside_nor_into_a_full_folder(small: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("mine")
    with pytest.raises(BadRequest, match="not empty"):
        writing.record(str(full), str(small), anonymize=False)
    assert [path.name for path in full.iterdir()] == ["mine"]
    with pytest.raises(BadRequest, match="File exists"):
        writing.record(str(full / "mine"), str(small), anonymize=False)
    with pytest.raises(BadRequest, match="null"):
        writing.record("a\0b", str(small), anonymize=False)
    outside = tmp_path / "outside"
    outside.mkdir()
    target = tmp_path / "target"
    opened = writing._opened(str(target))
    try:
        # A link in the record is written last, so no file goes through one.
        writing._write({"/a": Link("../outside"), "/b": Folder(), "/b/f": File("x\n")}, opened)
        with pytest.raises(OSError, match=r"Not a directory|No such file"):
            writing._write({"/c": Link("../outside"), "/c/f": File("x\n")}, opened)
    finally:
        os.close(opened)
    assert list(outside.iterdir()) == []


def test_nothing_is_written_to_a_folder_that_others_can_write_to(
    small: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    for mode in (0o777, 0o770, 0o1777):
        shared.chmod(mode)
        with pytest.raises(BadRequest, match="others can write to it; name a new folder"):
            writing.record(str(shared), str(small), anonymize=False)
    shared.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(shared, 12345, 12345)
        with pytest.raises(BadRequest, match="others can write to it; name a new folder"):
            writing.record(str(shared), str(small), anonymize=False)
    assert list(shared.iterdir()) == []


def test_progress_is_told_after_a_second_and_then_now_and_then() -> None:
    said: list[str] = []
    now = [0.0]
    progress = writing.Progress(said.append, lambda: now[0])
    for _ in range(100):
        now[0] += 0.03
        progress()
    assert progress.count == 100
    assert 3 <= len(said) <= 5
    assert said[0] == "recording: 34 files and folders looked at"


def test_the_command_says_what_it_did(small: Path, tmp_path: Path) -> None:
    def command(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "xce_nodeagent", "inventory", *map(str, arguments)],
            check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    done = command("--sysroot", small, "--record", tmp_path / "one")
    assert done.returncode == 0, done.stderr
    assert f"inventory --sysroot {tmp_path}/one" in done.stdout
    assert "--anonymize" in done.stdout
    done = command("--sysroot", small, "--record", tmp_path / "two", "--anonymize", "--json")
    facts = json.loads(done.stdout)
    assert (facts["folder"], facts["anonymized"]) == (str(tmp_path / "two"), True)
    assert facts["files"] > 40
    shown = command("--sysroot", tmp_path / "one", "--json").stdout
    again = command("--sysroot", small, "--json").stdout
    assert shown == again
    refused = command("--sysroot", small, "--record", tmp_path / "one")
    assert refused.returncode == 64
    assert re.search("not empty.*empty one", refused.stderr, re.DOTALL)
    assert command("--anonymize").returncode == 64
