"""What is said of a release that was no plain success, and of when a binding was made."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from xce_nodeagent.cli.binding import tell_left_over
from xce_nodeagent.cli.table import job_detail, jobs_table

REF = {"job": "91", "attempt": None}
DONE = {"known": True, "clean": True, "recorded": True, "holders": [], "quarantined": []}
LEFT = [{"pid": 77, "comm": "srv", "what": "listens on tcp 20001", "uid": 5}]


@pytest.fixture
def hook() -> ModuleType:
    path = Path(__file__).parents[2] / "hooks" / "prepare"
    loader = importlib.machinery.SourceFileLoader("xce_hook", str(path))
    spec = importlib.util.spec_from_loader("xce_hook", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_what_is_held_back_of_a_range_is_its_ports(
    capfd: pytest.CaptureFixture[str], hook: ModuleType
) -> None:
    answer = {**DONE, "clean": False, "holders": LEFT, "quarantined": ["GPU-1", "ports"],
              "ports": [20000, 20001, 20005]}  # fmt: skip
    tell_left_over(REF, answer)
    assert "gone: GPU-1, ports 20000-20001, port 20005\n" in capfd.readouterr().err
    hook.tell_left_over(REF, answer)
    assert "77; held back for now: GPU-1, port 20000, port 20001, port 20005" in (
        capfd.readouterr().err
    )


def test_what_the_kernel_has_still_to_take_away_is_no_process(
    capfd: pytest.CaptureFixture[str], hook: ModuleType
) -> None:
    answer = {**DONE, "clean": False, "quarantined": ["GPU-1"]}
    for tell in (tell_left_over, hook.tell_left_over):
        tell(REF, answer)
        told = capfd.readouterr().err
        assert "GPU-1" in told
        assert "process" not in told


def test_a_time_is_written_one_way_in_the_list_and_in_the_detail() -> None:
    binding: dict[str, Any] = {
        "job": "91", "attempt": "", "uid": None, "state": "bound", "reason": "",
        "since": 1.7e9, "last_seen": 1.7e9, "populated": True, "enforcement": "cgroup2",
        "cgroup": {}, "instances": [], "ports": [], "env": {}, "holders": [],
    }  # fmt: skip
    (since,) = (
        line.removeprefix("since").strip()
        for line in job_detail(binding).splitlines()
        if line.startswith("since")
    )
    assert len(since) == len("2023-11-14 22:13:20")
    assert since[:16] in jobs_table([binding])
