"""Attackers of every kind, on the real kernel: each has what the page `docs/threats.md` says."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent.running import serving

from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.channel import make_room

AGENT_UID, PREPARER, ALICE, BOB = 61499, 12345, 54321, 54322
PATIENCE = 20.0


def until(condition: Any, what: str) -> Any:
    """Wait for something that will be so; fail when it is not."""
    end = time.monotonic() + PATIENCE
    while not (result := condition()):
        if time.monotonic() > end:
            pytest.fail(f"not within {PATIENCE:g} s: {what}")
        time.sleep(0.01)
    return result


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    return [int(child) for child in text.split()]


# ---- a real agent, and processes in its jobs ------------------------------------------------


@pytest.fixture
def agent(mount: Path) -> Iterator[Any]:
    """An agent that serves, with a simulated machine, for one test."""
    with serving(mount) as running:
        yield running


@pytest.fixture(scope="module")
def steady(cgroup2_mount: Path) -> Iterator[Any]:
    """An agent for tests that leave it as they found it."""
    with serving(cgroup2_mount) as running:
        yield running


# ---- a compromised agent: the supervisor's other end ----------------------------------------


class Helper:
    """The agent's end of a helper's socket, in an attacker's hands."""

    def __init__(self, end: socket.socket, pid: int) -> None:
        self.end, self.pid = end, pid
        make_room(end)
        end.settimeout(PATIENCE)

    def send(self, data: bytes, fds: tuple[int, ...] = ()) -> bool:
        """Send a packet; False when the helper is gone, or its socket takes no descriptors."""
        try:
            socket.send_fds(self.end, [data], list(fds)) if fds else self.end.send(data)
        except (ConnectionError, PermissionError):
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """Give the answer; None when the helper has ended."""
        try:
            data = self.end.recv(4 * ops.MESSAGE_LIMIT)
        except ConnectionResetError:
            return self.receive()
        return msgspec.msgpack.decode(data) if data else None

    def ask(self, request: msgspec.Struct | bytes, *fds: int) -> dict[str, Any] | None:
        """Ask; None when the helper ended over it, which is how a violation is answered."""
        data = request if isinstance(request, bytes) else msgspec.msgpack.encode(request)
        return self.receive() if self.send(data, fds) else None

    def close(self) -> None:
        self.end.close()


class Captured:
    """The helpers' supervisor of a real configuration, with the attacker as its agent.

    `outside` is a cgroup beside the roots, with a process in it; `home` and `other` are the roots.
    """

    def __init__(self, mount: Path) -> None:
        name = f"xce-test-{os.getpid()}-{secrets.token_hex(4)}"
        self.backend = "cgroup1" if (mount / "devices.list").exists() else "cgroup2"
        self.top, self.devices = mount / name, Path("/dev") / name
        self.home, self.other = self.top / "jobs", self.top / "other"
        self.outside = self.top / "outside"
        self.folder = Path(tempfile.mkdtemp(prefix="xce-test-"))
        self.folder.chmod(0o755)
        self.log = self.folder / "log"
        for folder in (self.top, self.other, self.outside, self.outside / "below"):
            folder.mkdir()
        self.bystander = subprocess.Popen(["sleep", "600"])
        (self.outside / "cgroup.procs").write_text(str(self.bystander.pid), "ascii")
        (self.folder / "config.toml").write_text(
            f'[agent]\ncgroup_root = "{self.home}"\ncgroup_allowed_roots = ["{self.other}"]\n'
            f"[access]\nprepare_uids = [{PREPARER}]\n"
            f'[simulate]\ndevice_directory = "{self.devices}"\n',
            "utf-8",
        )
        self.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.end.settimeout(PATIENCE)
        with theirs, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-P", "-m", "xce_nodeagent.daemon.helpers",
                    "--fd", str(theirs.fileno()), "--folder", str(self.folder / "run-helpers"),
                    "--config", str(self.folder / "config.toml"), "--simulate", "dgx-h100",
                ],
                pass_fds=(theirs.fileno(),), stdout=log, stderr=log,
            )  # fmt: skip
        self.given: list[Helper] = []

    def children(self) -> list[int]:
        return children(self.process.pid)

    def ref(self, path: Path | str) -> Any:
        return ops.CgroupRef(self.backend, str(path))

    def next(self, role: str = "binder") -> Helper:
        """Get a helper as the agent does (binding/supply.py)."""
        self.end.send(msgspec.msgpack.encode({"type": "next", "role": role}))
        data, fds, _, _ = socket.recv_fds(self.end, 4096, 1)
        assert fds, data
        answer = msgspec.msgpack.decode(data)
        self.given.append(Helper(socket.socket(fileno=fds[0]), answer["pid"]))
        return self.given[-1]

    def binder(self) -> Helper:
        """Get a binder that has taken over and manages every simulated card."""
        helper = self.next()
        taken = helper.ask(ops.Take())
        assert taken is not None
        assert taken["type"] == "taken", taken
        assert helper.ask(ops.Manage(self.cards())) == {"type": "done"}
        return helper

    def cards(self) -> tuple[Any, ...]:
        """Give the devices of the simulated cards, as their nodes have them."""
        found = [os.stat(path) for path in sorted(self.devices.rglob("*")) if not path.is_dir()]
        numbers = [(os.major(one.st_rdev), os.minor(one.st_rdev)) for one in found if one.st_rdev]
        return tuple(ops.Device("c", *number) for number in numbers)

    def bind(self, path: Path | str, *grants: Any, mark: str = "1\na", **how: Any) -> ops.Bind:
        how = {"make": str(path).startswith(f"{self.home}/"), **how}
        return ops.Bind(mark, self.ref(path), ops.pack(grants), **how)

    def surroundings(self) -> dict[str, Any]:
        """Give all that no binder may ever change."""
        found: dict[str, Any] = {}
        for cgroup in (self.top, self.outside, self.outside / "below", self.other):
            marks = [name for name in os.listxattr(cgroup) if name.startswith("trusted.")]
            listed = cgroup / "devices.list"
            # The home is the binder's: it makes it, and takes it away when nothing is bound.
            folders = {path for path in cgroup.iterdir() if path.is_dir()} - {self.home}
            found[str(cgroup)] = (
                marks,
                listed.read_text("ascii") if listed.exists() else "",
                sorted(path.name for path in folders),
                (cgroup / "cgroup.procs").read_text("ascii").split(),
            )
        for path in ("/", "/etc", "/etc/passwd", "/dev/null", "/dev/mem"):
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(path)
                found[path] = (status.st_mode, status.st_uid, os.listxattr(path))
        found["bystander"] = Path(f"/proc/{self.bystander.pid}/cgroup").read_text("ascii")
        return found

    def logged(self) -> str:
        return self.log.read_text("utf-8")

    def close(self) -> None:
        self.end.close()
        for helper in self.given:
            helper.close()
        try:
            self.process.wait(PATIENCE)
        finally:
            for process in (self.process, self.bystander):
                process.kill()
                process.wait()
            for folder, _, _ in os.walk(self.top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            shutil.rmtree(self.folder)
            shutil.rmtree(self.devices, ignore_errors=True)


@pytest.fixture
def captured(mount: Path) -> Iterator[Captured]:
    """The supervisor of a compromised agent."""
    one = Captured(mount)
    try:
        yield one
    finally:
        one.close()
