"""Where the demo plays: an agent with folders, a cgroup and device nodes of its own."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

PROGRAM = Path(sys.executable).with_name("xce-nodeagent")
INSIDE = Path(__file__).with_name("inside.py")
PATIENCE = 20.0
"""Seconds in which an agent serves, or has ended."""


def hierarchy() -> Path | None:
    """Find a mounted hierarchy that can fence devices: v2, or else v1's devices controller."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text("utf-8").splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2" or (kind == "cgroup" and "devices" in options.split(",")):
            found[kind] = Path(where)
    return found.get("cgroup2") or found.get("cgroup")


class Stage:
    """Made when the block begins, gone when it ends; `left` says afterwards what is not."""

    def __init__(self, *, fenced: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="xce-demo-"))
        self.folder.chmod(0o755)  # the agent, which is another user, must get through
        self.devices = Path("/dev/xce-sim") / self.folder.name
        top = hierarchy() if fenced else None
        self.cgroup = top / self.folder.name if top else None
        self.process: subprocess.Popen[bytes] | None = None
        self.seen: set[tuple[int, str]] = set()
        lines = ["[agent]", 'enforcement = "required"' if self.cgroup else 'enforcement = "off"']
        if self.cgroup:
            lines.append(f'cgroup_root = "{self.cgroup}/jobs"')
        lines += ["[access]", f"prepare_uids = [{os.geteuid()}]"]
        lines += ["[simulate]", f'device_directory = "{self.devices}"']
        self.config = self.folder / "config.toml"
        self.config.write_text("\n".join(lines) + "\n", "utf-8")
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("XCE_")},
            "XCE_NODEAGENT_CONFIG": str(self.config),
            "XCE_NODEAGENT_STATE_DIR": str(self.folder / "state"),
            "XCE_NODEAGENT_RUNTIME_DIR": str(self.folder / "run"),
            "COLUMNS": str(_columns()),
        }

    @property
    def log(self) -> Path:
        """What the agent says."""
        return self.folder / "log"

    def __enter__(self) -> Self:
        if self.cgroup:
            self.cgroup.mkdir()
            self.devices.parent.mkdir(exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.process is not None:
            self._look()
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
        self._after = self._find()
        if kind is not None and self.log.exists():
            tail = self.log.read_text("utf-8", "replace").splitlines()[-20:]
            sys.stderr.write("\n".join(["the agent's log ends with:", *tail, ""]))
        self._clear()

    # ---- the agent --------------------------------------------------------------------------

    def start(self) -> float:
        """Start the agent; give the seconds until it serves."""
        began = time.monotonic()
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [PROGRAM, "run", "--simulate", "dgx-h100"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env,
            )  # fmt: skip
        while True:
            if self.run("jobs", "--json", check=False).returncode == 0:
                break
            if self.process.poll() is not None or time.monotonic() - began > PATIENCE:
                raise SystemExit(f"the agent does not serve:\n{self.log.read_text('utf-8')}")
        self._look()
        return time.monotonic() - began

    def agent(self) -> int:
        """Give the agent's pid."""
        assert self.process is not None
        return self.process.pid

    def identity(self) -> str:
        """Say as whom the agent runs, and with what rights."""
        status = Path(f"/proc/{self.agent()}/status").read_text("utf-8")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        uid = int(fields["Uid"].split()[1])
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = "an account of its own"
        rights = int(fields["CapEff"], 16)
        return f"{name} (uid {uid}), {'no capabilities' if not rights else 'with capabilities'}"

    def kill(self) -> None:
        """Kill the agent at once."""
        assert self.process is not None
        self._look()
        os.kill(self.agent(), signal.SIGKILL)
        self.process.wait()
        self.process = None

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of the program and give what it printed."""
        done = subprocess.run(
            [PROGRAM, *words], check=False, capture_output=True, text=True, env=self.env, timeout=30
        )
        if check and done.returncode:
            raise SystemExit(f"xce-nodeagent {words[0]}: exit {done.returncode}\n{done.stderr}")
        return done

    def json(self, *words: str) -> Any:
        """Run a command that prints JSON."""
        return json.loads(self.run(*words).stdout)

    # ---- the job ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def job(self, prepared: dict[str, Any], nodes: list[str]) -> Iterator[subprocess.Popen[str]]:
        """Run the job's process inside its cgroup and with its environment."""
        env = {**self.env, **prepared["env"], "DEMO_CGROUPS": ":".join(prepared["cgroup"].values())}
        with subprocess.Popen(
            [sys.executable, INSIDE, *nodes],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        ) as process:  # fmt: skip
            assert process.stdin
            assert process.stdout
            self.seen.add((process.pid, _started(process.pid)))
            if process.stdout.readline() != "ready\n":
                raise SystemExit("the job's process could not start in its cgroup")
            yield process
            process.stdin.close()
            process.wait(PATIENCE)

    @staticmethod
    def attempt(job: subprocess.Popen[str]) -> dict[str, str]:
        """Let the job's process try all nodes; give node to `open` or the errno's name."""
        assert job.stdin
        assert job.stdout
        job.stdin.write("try\n")
        job.stdin.flush()
        tried: dict[str, str] = json.loads(job.stdout.readline())
        return tried

    def outside(self, nodes: list[str]) -> dict[str, str]:
        """Try all nodes in a process that is in no job."""
        with self.job({"env": {}, "cgroup": {}}, nodes) as process:
            return self.attempt(process)

    # ---- afterwards -------------------------------------------------------------------------

    def _look(self) -> None:
        """Remember every process that the agent has."""
        if self.process is not None:
            pids = {self.process.pid, *_descendants(self.process.pid)}
            self.seen |= {(pid, _started(pid)) for pid in pids}

    def _find(self) -> dict[str, list[object]]:
        cgroups: list[object] = []
        if self.cgroup:
            cgroups = [Path(at) / one for at, inner, _ in os.walk(self.cgroup) for one in inner]
        running = [pid for pid, started in sorted(self.seen) if started == _started(pid) != ""]
        sockets = [path for path in self.folder.rglob("*") if path.is_socket()]
        nodes = sorted(self.devices.iterdir()) if self.devices.exists() else []
        return {
            "cgroup": cgroups,
            "process": [*running],
            "device node": [*nodes],
            "socket": [*sockets],
        }

    def left(self) -> dict[str, list[object]]:
        """Give what was left behind when the agent had ended."""
        return self._after

    def _clear(self) -> None:
        """Take away what should not be there any more, and the stage itself."""
        for pid in self._after["process"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(str(pid)), signal.SIGKILL)
        if self.cgroup:
            for at, _, _ in os.walk(self.cgroup, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(at)
        shutil.rmtree(self.devices, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.devices.parent.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)


def _columns() -> int:
    """Give the width that tables may have; where nobody looks, enough for every column."""
    return shutil.get_terminal_size().columns - 5 if sys.stdout.isatty() else 110


def _descendants(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text("ascii").split():
                found |= {int(child), *_descendants(int(child))}
    return found


def _started(pid: int) -> str:
    """Give when a process started, in ticks since the boot (proc(5)); nothing when it is gone.

    Together with the pid it names one process for ever.
    """
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(") ")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""
