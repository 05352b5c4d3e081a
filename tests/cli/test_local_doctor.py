"""What the command finds by itself where no agent runs, and how its lines fit a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from xce_nodeagent.cli import local
from xce_nodeagent.cli.width import folded
from xce_nodeagent.daemon import portchecks
from xce_nodeagent.host import Host


def environ(folder: Path) -> dict[str, str]:
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("XCE_")},
        "XCE_NODEAGENT_CONFIG": str(folder / "config.toml"),
        "XCE_NODEAGENT_STATE_DIR": str(folder / "state"),
        "XCE_NODEAGENT_RUNTIME_DIR": str(folder / "run"),
    }


@pytest.fixture
def folder() -> Iterator[Path]:
    """Have the folders of an agent that has run once, and a configuration."""
    # The agent is another user, and must get to its folder; pytest's own are closed to others.
    tmp_path = Path(tempfile.mkdtemp(prefix="xce-test-"))
    tmp_path.chmod(0o755)
    for name, file in (("state", "ledger.db"), ("state", "agent.lock"), ("run", "agent.lock")):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / file).touch(0o600)
    (tmp_path / "config.toml").touch()
    yield tmp_path
    shutil.rmtree(tmp_path)


def checks(folder: Path) -> list[dict[str, str]]:
    return local.checks_without("no agent: none", environ(folder))


def faults(folder: Path) -> dict[str, str]:
    return {one["name"]: one["remedy"] for one in checks(folder) if one["state"] == "fault"}


@pytest.mark.needs("root")
@pytest.mark.parametrize("name", ["ledger.db", "agent.lock"])
def test_a_file_of_another_user_s_is_found_without_an_agent(folder: Path, name: str) -> None:
    uid = local._account("xce-nodeagent")
    for path in folder.rglob("*"):
        if path.name != "config.toml":
            os.chown(path, uid, uid)
    assert name not in faults(folder)
    os.chown(folder / "state" / name, 0, 0)
    assert f"chown -R {uid}" in faults(folder)[name]
    os.chown(folder / "state" / name, uid, uid)
    (folder / "state" / name).chmod(0)
    assert "chmod u+rw" in faults(folder)[name]


def test_a_profile_that_there_is_not_is_one_fault_with_its_file(folder: Path) -> None:
    (folder / "config.toml").write_text('[simulate]\nprofile = "nope"\n')
    about = [one for one in checks(folder) if "nope" in one["text"] or "no profile" in one["text"]]
    assert [(one["name"], one["state"]) for one in about] == [("simulate", "fault")]
    assert str(folder / "config.toml") in about[0]["text"]
    assert "configuration" not in {one["name"] for one in checks(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", "run"],
        env=environ(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 78
    assert done.stderr.count("nope") == 1
    assert str(folder / "config.toml") in done.stderr


def test_the_port_range_is_looked_at_without_an_agent(folder: Path) -> None:
    assert "ports" not in {one["name"] for one in checks(folder)}
    first, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()
    ports = int(first), int(first) + 9
    (folder / "config.toml").write_text(f'[ports]\nrange = "{ports[0]}-{ports[1]}"\n')
    found = [one for one in checks(folder) if one["name"] == "ports"]
    # What it says of such ports, and why, is tested with an agent's doctor.
    assert found == msgspec.to_builtins(portchecks.checks(Host(port_range=ports)))
    assert found[0]["text"].startswith(f"{ports[0]}-{ports[1]}: ")


@pytest.mark.needs("root")
def test_a_lock_of_another_user_s_is_to_be_given_back(folder: Path) -> None:
    os.chown(folder / "run" / "agent.lock", local._account("xce-nodeagent"), -1)
    (folder / "config.toml").write_text('[agent]\nenforcement = "off"\n')
    done = subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", "run"],
        env=environ(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 78
    assert f"chown -R {local._account('xce-nodeagent')} {folder / 'state'}" in done.stderr
    assert "XCE_NODEAGENT_STATE_DIR" not in done.stderr


@pytest.mark.parametrize("width", [40, 80, 133])
def test_lines_of_the_doctor_fit_a_terminal(folder: Path, width: int) -> None:
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    env = {k: v for k, v in environ(folder).items() if k not in {"COLUMNS", "LINES"}}
    child = subprocess.Popen(
        [sys.executable, "-m", "xce_nodeagent", "doctor"], env=env, stdout=side, stderr=side
    )
    os.close(side)
    told = b""
    try:
        while data := os.read(main, 1 << 16):
            told += data
    except OSError:  # the other end is closed
        pass
    os.close(main)
    assert child.wait(60) == 69
    lines = told.decode().splitlines()
    assert len(lines) > 5
    # A path is whole, whatever the width.
    assert not [line for line in lines if len(line) > width and " " in line[14:].strip()]


def test_a_folded_line_has_all_that_it_had() -> None:
    line = "environment  CARDS=" + ",".join(f"GPU-{number:036}" for number in range(4))
    parts = folded(line, 13, 60).split("\n")
    assert len(parts) == 4
    assert max(map(len, parts)) <= 60
    assert "".join([parts[0], *(part.strip() for part in parts[1:])]) == line
    assert folded(line, 13, None) == line
