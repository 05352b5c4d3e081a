"""The benchmark works: its floor does what it says, and a quick run gives the pinned names."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
MAJOR = 121


class Floor:
    """A floor that serves, and the cgroup below which it makes the jobs'."""

    def __init__(self, path: Path, records: Path, cgroup: Path) -> None:
        self.path = path
        self.records = records
        self.cgroup = cgroup

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask once."""
        call = {"method": f"io.xce.NodeAgent.{method}", "parameters": parameters}
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(self.path))
            connection.sendall(json.dumps(call).encode() + b"\0")
            reply = b""
            while not reply.endswith(b"\0"):
                data = connection.recv(65536)
                assert data, reply
                reply += data
        answer: dict[str, Any] = json.loads(reply[:-1])
        return answer["parameters"]


@pytest.fixture
def floor(tmp_path: Path, cgroup2_mount: Path) -> Iterator[Floor]:
    cgroup = cgroup2_mount / f"xce-test-floor-{os.getpid()}"
    cgroup.mkdir()
    answer = {"env": {"A": "1"}, "instances": ["a", "b"]}
    (tmp_path / "answers").write_text(json.dumps({"2": answer}))
    files = [tmp_path / "sock", tmp_path / "records", cgroup, tmp_path / "answers"]
    process = subprocess.Popen([sys.executable, str(HERE / "floor.py"), *map(str, files)])
    try:
        deadline = time.monotonic() + 10
        while not files[0].exists():
            assert process.poll() is None, "the floor ended"
            assert time.monotonic() < deadline, "the floor does not serve"
            time.sleep(0.01)
        yield Floor(files[0], files[1], cgroup)
    finally:
        process.terminate()
        process.wait()
        for directory in cgroup.iterdir():
            if directory.is_dir():
                directory.rmdir()
        cgroup.rmdir()


OPEN = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
for path in sys.argv[2:]:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        print(error.errno)
"""


@pytest.mark.needs("root", "cgroup2", "bpf")
def test_the_floor_really_fences(floor: Floor) -> None:
    """A floor that left out the work would make every ratio worse than it is."""
    nodes = [Path(f"/dev/xce-test-floor-{os.getpid()}-{minor}") for minor in (0, 200)]
    try:
        for node, minor in zip(nodes, (0, 200), strict=True):
            os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(MAJOR, minor))
        reply = floor.call("Prepare", job="j", attempt="1", instances=["a", "b"])
        assert reply["job"] == "j"
        assert reply["env"] == {"A": "1"}
        job = reply["cgroup"]["v2"]
        assert job == str(floor.cgroup / "j")
        command = [sys.executable, "-c", OPEN, job, *map(str, nodes)]
        tried = subprocess.run(command, check=True, capture_output=True, text=True)
        # 6 ENXIO: let through, there is no driver. 1 EPERM: refused.
        assert tried.stdout.split() == ["6", "1"]
    finally:
        for node in nodes:
            node.unlink(missing_ok=True)


@pytest.mark.needs("root", "cgroup2", "bpf")
def test_the_floor_records_and_releases(floor: Floor) -> None:
    reply = floor.call("Prepare", job="j", attempt="1", instances=["a", "b"])
    assert floor.records.stat().st_size == 512
    assert floor.call("Release", job="j", attempt="1")["released"] is True
    assert floor.records.stat().st_size == 1024
    assert not Path(reply["cgroup"]["v2"]).exists()


def test_a_p99_needs_a_thousand_samples() -> None:
    script = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import figures
for count in (999, 1000):
    found = figures.latency("x", range(1, count + 1), [1.0] * count, (2, 3))
    print(*((one.name, one.value, one.ratio, one.verdict) for one in found))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    few, enough = done.stdout.splitlines()
    assert few == "('x_p50', 500, 500.0, 'missed by 24900 %')"
    assert enough.endswith("('x_p99', 990, 990.0, 'missed by 32900 %')")


def test_the_usual_run_gives_every_p99() -> None:
    script = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import bench
usual = bench.USUAL
rounds = usual.cold_rounds, usual.hot_rounds
print(min(*usual.cold_one, *usual.hot_one, *(bench.WIDTH * count for count in rounds)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) >= 1000


PINNED = {
    f"{op}_{heat}_{clients}_{live}_p50"
    for op in ("prepare", "release")
    for heat in ("cold", "hot")
    for clients in ("1c", "8c")
    for live in ("1b", "1000b")
}

PROMISED = {
    "recovery_1000_bindings_longest": 2.0,
    "verify_1000_bindings_longest": 1.0,
    "verify_1000_bindings_share": 1.0,
}
"""What these are to stay below: in seconds, in seconds of CPU, in % of a CPU."""

LEEWAY = 3
# The bench holds the figures, on a machine that does nothing else. Here they are two samples amid
# other tests: on two CPUs with four times their load a start took the 2 s already, so twice that
# would be missed by luck. Three times is still below what a fault would make that looks at all
# bindings, or at all processes, for each binding.
SLOW = 1.0
"""Seconds of a start with no binding above which the limit of starts grows with them: a start with
a thousand took 2.2 times as long under each load that it was measured under."""


@pytest.mark.timeout(240)
@pytest.mark.needs("root", "cgroup2", "bpf")
def test_a_quick_run_gives_the_pinned_names_and_leaves_nothing(
    tmp_path: Path, cgroup2_mount: Path
) -> None:
    before = _traces(cgroup2_mount)
    out = tmp_path / "figures.json"
    command = [sys.executable, str(HERE / "bench.py"), "--quick", "--json", str(out)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    figures = {one["name"]: one for one in json.loads(out.read_text("utf-8"))}
    assert set(figures) >= PINNED, done.stdout
    for figure in figures.values():
        assert set(figure) >= {"name", "value", "unit", "floor", "ratio"}
        assert figure["value"] >= 0
        if figure["name"].endswith("_p99"):
            assert figure["samples"] >= 1000
    if shutil.which("etcd"):
        assert figures["fleet_event_to_reader_p50"]["ratio"] > 0
        assert figures["fleet_quiet_writes"]["value"] == 0
        if "event_to_inventory_p50" in figures:  # a machine with a PCI function to stand behind it
            assert figures["event_to_fleet_p50"]["value"] > 0
    verified = figures["verify_1000_bindings_cpu"]
    assert (verified["unit"], verified["value"] > verified["floor"] > 0) == ("s", True)
    assert {name: figures[name]["target"] for name in PROMISED} == PROMISED
    slower = max(1.0, figures["recovery_1000_bindings"]["floor"] / SLOW)
    allowed = {name: LEEWAY * limit for name, limit in PROMISED.items()}
    allowed["recovery_1000_bindings_longest"] *= slower
    found = {name: figures[name]["value"] for name in PROMISED}
    assert [name for name in found if found[name] >= allowed[name]] == [], (found, slower)
    for name in PINNED:
        assert figures[name]["unit"] == "ms"
        assert figures[name]["ratio"] == pytest.approx(
            figures[name]["value"] / figures[name]["floor"], rel=0.01
        )
    assert _traces(cgroup2_mount) <= before


@pytest.mark.needs("root", "cgroup2", "bpf")
def test_ended_by_a_signal_it_leaves_nothing(cgroup2_mount: Path) -> None:
    before = _traces(cgroup2_mount)
    command = [sys.executable, str(HERE / "bench.py"), "--only", "idle"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        deadline = time.monotonic() + 30
        while not any(trace.endswith("agent.sock") for trace in _traces(cgroup2_mount) - before):
            assert process.poll() is None, process.stdout and process.stdout.read()
            assert time.monotonic() < deadline, "no agent serves"
            time.sleep(0.01)
        started = [pidfd for pid in _below(process.pid) if (pidfd := _pidfd(pid)) is not None]
        assert len(started) > 1, "an agent has helpers"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 143
    try:
        # The pidfd of a process that has ended can be read (pidfd_open(2)).
        assert len(select.select(started, (), (), 5)[0]) == len(started)
    finally:
        for pidfd in started:
            os.close(pidfd)
    assert _traces(cgroup2_mount) <= before


def _below(pid: int) -> list[int]:
    children = [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text("ascii").split()
    ]
    return children + [pid for child in children for pid in _below(child)]


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _traces(cgroup2: Path) -> set[str]:
    """Give all that a benchmark could leave behind, by its names."""
    temporary = Path("/var/tmp")  # noqa: S108  # looks only
    patterns = {
        cgroup2: ("*", "*/*"),
        Path("/dev"): ("*",),
        temporary: ("*", "*/agent-*/run/agent.sock"),
    }
    return {
        str(path)
        for folder, ends in patterns.items()
        for end in ends
        for path in folder.glob(f"xce-bench-{end}")
    }
