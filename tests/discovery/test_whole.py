"""A file that is replaced: whole or as it was, and nothing is left beside it for long."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from xce_nodeagent.host.whole import replace

KILLED = """
import resource, signal, sys
from pathlib import Path
from xce_nodeagent.host.whole import replace

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
replace(Path(sys.argv[1]), b"y" * 100)
"""
"""A writer that the kernel kills in the middle of its write."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writers_that_are_killed_leave_one_file_which_the_next_takes_away(tmp_path) -> None:
    path = tmp_path / "report.json"
    replace(path, b"x")
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
        assert done.returncode == -signal.SIGXFSZ
    assert path.read_bytes() == b"x"
    assert names(tmp_path) == [".report.json.new", "report.json"]
    replace(path, b"y")
    assert path.read_bytes() == b"y"
    assert names(tmp_path) == ["report.json"]


def test_what_somebody_put_in_the_way_is_not_followed(tmp_path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    (tmp_path / ".mine.new").symlink_to(theirs)
    (tmp_path / "mine").symlink_to(theirs)
    replace(tmp_path / "mine", b"mine")
    assert theirs.read_text() == "theirs"
    assert not (tmp_path / "mine").is_symlink()
    assert (tmp_path / "mine").read_bytes() == b"mine"


@pytest.mark.parametrize("sync", [False, True])
def test_a_folder_in_its_place_is_a_fault_and_nothing_is_left(tmp_path, sync) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(IsADirectoryError):
        replace(tmp_path / "file", b"x", sync=sync)
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("asked", "got"), [({}, 0o600), ({"mode": 0o644}, 0o644), ({"mode": None}, 0o640)]
)
def test_who_may_read_it_is_what_was_asked_under_any_umask(tmp_path, asked, got) -> None:
    before = os.umask(0o027)
    try:
        replace(tmp_path / "file", b"", **asked)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == got


def test_a_name_of_its_own_leaves_another_writer_s_alone(tmp_path) -> None:
    (tmp_path / ".file.new").write_text("another's")
    replace(tmp_path / "file", b"x", beside="file.1")
    assert names(tmp_path) == [".file.new", "file"]
    (tmp_path / "file.1").write_text("another's, too")
    with pytest.raises(FileExistsError):
        replace(tmp_path / "file", b"y", beside="file.1")
    assert (tmp_path / "file").read_bytes() == b"x"
    assert (tmp_path / "file.1").read_text() == "another's, too"
