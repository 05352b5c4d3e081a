"""Two runs of the tests on one host make no nodes of the same minors."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from faults.minors import COUNT, FIRST, claimed


def test_each_has_a_range_of_its_own_and_gives_it_back(tmp_path: Path) -> None:
    with claimed(tmp_path) as one, claimed(tmp_path) as other:
        assert abs(one - other) >= COUNT
    with claimed(tmp_path) as again:
        assert again == one
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_killed_keeps_none(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from faults.minors import claimed\n"
        "with claimed(pathlib.Path(sys.argv[1])) as first:\n"
        "    print(first, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    tests = Path(__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=tests, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        theirs = int(run.stdout.readline())
        with claimed(tmp_path) as mine:
            assert mine != theirs
        run.kill()
        run.wait(20)
    with claimed(tmp_path) as mine:
        assert mine == theirs


def test_what_is_in_use_is_said_when_there_is_no_more(tmp_path: Path) -> None:
    with ExitStack() as stack:
        taken = [stack.enter_context(claimed(tmp_path)) for _ in FIRST]
        assert sorted(taken) == list(FIRST)
        with pytest.raises(RuntimeError, match="in use by other runs"):
            stack.enter_context(claimed(tmp_path))
