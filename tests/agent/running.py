"""A real agent, as root, with everything of its own: folders, cgroups, device nodes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 20.0


class Refused(Exception):
    """An error answer of the agent."""

    def __init__(self, name: str, parameters: dict[str, Any]) -> None:
        super().__init__(f"{name}: {parameters.get('message')}")
        self.code = parameters.get("code")
        self.error_class = parameters.get("class")
        self.details = parameters.get("details")


class Running:
    """An agent and what it may touch. `call` speaks to its socket, `process_in` runs in a job."""

    def __init__(self, folder: Path, home: Path, other: Path, devices: Path) -> None:
        self.folder, self.home, self.other, self.devices = folder, home, other, devices
        self.config = folder / "config.toml"
        self.keys = ""  # more of [agent]
        self.extra = ""
        self.python = [sys.executable]
        self.in_group = False
        self.program = ["-m", "xce_nodeagent"]
        self.directory: Path | None = None
        self.inherits: tuple[int, ...] = ()
        self.log = folder / "log"
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("XCE_")},
            "XCE_NODEAGENT_CONFIG": str(self.config),
            "XCE_NODEAGENT_STATE_DIR": str(folder / "state"),
            "XCE_NODEAGENT_RUNTIME_DIR": str(folder / "run"),
        }
        self.socket = folder / "run" / "agent.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, profile: str = "dgx-h100") -> None:
        self.config.write_text(
            f"""[agent]
cgroup_root = "{self.home}"
cgroup_allowed_roots = ["{self.other}"]
{self.keys}
[access]
prepare_uids = [12345]
[simulate]
device_directory = "{self.devices}"
{self.extra}
""",
            "utf-8",
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.python, *self.program, "run", "--simulate", profile],
                env=self.env,
                stdout=log,
                stderr=log,
                start_new_session=self.in_group,
                cwd=self.directory,
                pass_fds=self.inherits,
            )
        self.wait()

    def refused_start(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run an agent that is not to come up; give how it ended."""
        return subprocess.run(
            [sys.executable, "-m", "xce_nodeagent", "run", *arguments],
            env=self.env | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def wait(self) -> None:
        """Wait until it serves; fail with its log when it ends instead."""
        assert self.process is not None
        until = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError):
                self.call("ListBindings")
                return
            if self.process.poll() is not None or time.monotonic() > until:
                pytest.fail(f"the agent does not serve:\n{self.log.read_text('utf-8')}")
            select.select([], [], [], 0.02)

    def kill(self) -> None:
        """Kill it in the middle of whatever it does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> int:
        """End it as systemd would."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(PATIENCE)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method; raise Refused for an error answer."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE)
            client.connect(str(self.socket))
            message = {"method": f"io.xce.NodeAgent.{method}", "parameters": parameters}
            client.sendall(json.dumps(message).encode() + b"\0")
            data = b""
            while not data.endswith(b"\0"):
                chunk = client.recv(1 << 16)
                if not chunk:
                    raise ConnectionResetError("the agent closed the connection")
                data += chunk
        answer = json.loads(data[:-1])
        if "error" in answer:
            raise Refused(answer["error"], answer["parameters"])
        return answer["parameters"]

    def instances(self, kind: str) -> list[dict[str, Any]]:
        """Give the simulated instances of a type."""
        found = self.call("GetInventory")["instances"]
        return [i for i in found if i["type"] == kind and i["provider"] == "simulated"]


OPENER = """
import errno, os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write("0")
for line in sys.stdin:
    path, mode = line.split()
    try:
        os.close(os.open(path, os.O_RDWR if mode == "rw" else os.O_RDONLY))
        print("open", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
"""


class InJob:
    """A process in a cgroup that opens what it is told to."""

    def __init__(self, cgroup: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", OPENER, cgroup],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def opens(self, path: str, mode: str = "rw") -> str:
        """Say how it went: `open`, or the error's name; ENXIO means that the fence let it by."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{path} {mode}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def _remove(cgroup: Path) -> None:
    for below in sorted((p for p in cgroup.rglob("*") if p.is_dir()), reverse=True):
        with contextlib.suppress(OSError):
            below.rmdir()
    with contextlib.suppress(OSError):
        cgroup.rmdir()


def children(pid: int) -> list[int]:
    """Give the processes that one has started, and none when it is gone."""
    with contextlib.suppress(OSError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
    return []


def _end(agent: subprocess.Popen[bytes]) -> None:
    """End an agent whose end is not what is tested: a helper that hangs gets one second."""
    with contextlib.ExitStack() as stack:
        helpers = []
        for supervisor in children(agent.pid):
            for helper in children(supervisor):
                with contextlib.suppress(OSError):
                    helpers.append(os.pidfd_open(helper))
                    stack.callback(os.close, helpers[-1])
        agent.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(1)
            return
        for helper in helpers:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(helper, signal.SIGKILL)
        try:
            agent.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()


@contextlib.contextmanager
def serving(mount: Path, kind: Callable[..., Running] = Running) -> Iterator[Running]:
    """Run an agent; nothing of it is left, whatever happens."""
    name = f"xce-test-{os.getpid()}-{secrets.token_hex(4)}"
    top = mount / name
    devices = Path("/dev") / name
    # The agent is another user, and must get to its folder; pytest's own are closed to others.
    folder = Path(tempfile.mkdtemp(prefix="xce-test-"))
    folder.chmod(0o755)
    top.mkdir()
    other = top / "other"
    other.mkdir()
    running = kind(folder, top / "jobs", other, devices)
    try:
        running.start()
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            _end(running.process)
        _remove(top)
        shutil.rmtree(folder)
        for node in sorted(devices.rglob("*"), reverse=True) if devices.exists() else ():
            node.rmdir() if node.is_dir() else node.unlink()
        if devices.exists():
            devices.rmdir()
