"""Everything that the benchmark starts, and how it ends again: processes, cgroups, folders."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from client import Client, Refused, Target, message

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PATIENCE = 30.0
"""Seconds in which an agent serves, or has ended."""
PR_SET_CHILD_SUBREAPER = 36


def cgroup2_mount() -> Path | None:
    """Find where cgroup v2 is mounted."""
    for line in Path("/proc/self/mounts").read_text("utf-8").splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    return None


def disk() -> Path:
    """Find a folder for temporary files on a real disk: in a tmpfs fdatasync costs nothing."""
    candidates = [Path("/var/tmp"), Path(tempfile.gettempdir()), ROOT]  # noqa: S108  # mkdtemp in it
    for candidate in candidates:
        if os.access(candidate, os.W_OK) and _file_system(candidate) not in ("tmpfs", "ramfs"):
            return candidate
    tried = ", ".join(map(str, candidates))
    raise SystemExit(f"no writable folder on a disk for the ledger; tried {tried}")


def _file_system(path: Path) -> str:
    best = ("", "")
    for line in Path("/proc/self/mounts").read_text("utf-8").splitlines():
        _, where, kind, *_ = line.split()
        inside = str(path.resolve()).startswith(where.rstrip("/") + "/") or where == "/"
        if inside and len(where) >= len(best[0]):
            best = (where, kind)
    return best[1]


def children(pid: int) -> list[int]:
    """Give all descendants of a process, parents first."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text("ascii").split():
                found += [int(child), *children(int(child))]
    return found


class Place:
    """A folder, a cgroup and processes of this run's own; all are gone when the block ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="xce-bench-", dir=disk()))
        self.folder.chmod(0o755)  # the agent, with a user of its own, must get through
        self.cgroup: Path | None = None
        self.devices = Path(f"/dev/{self.folder.name}")
        mount = cgroup2_mount()
        if os.geteuid() == 0 and mount is not None:
            self.cgroup = mount / self.folder.name
            self.cgroup.mkdir()
        # Whoever outlives its parent becomes ours, so that nothing can be left behind.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + PATIENCE
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                for pid in children(os.getpid()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                time.sleep(0.01)
        if self.cgroup is not None:
            _remove_cgroups(self.cgroup)
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.devices, ignore_errors=True)


def _remove_cgroups(top: Path) -> None:
    for directory, _, _ in os.walk(top, topdown=False):
        # A process that was killed just now may still be leaving.
        for _ in range(100):
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.01)
            else:
                break
        else:
            print(f"could not remove {directory}", file=sys.stderr)


@contextlib.contextmanager
def running(
    command: list[str], log: Path, env: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process until the block ends; SIGTERM first, SIGKILL after a while."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(env)
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serving(
    socket: Path, process: subprocess.Popen[bytes], log: Path, question: bytes = b""
) -> None:
    """Wait until a process answers on its socket; raise RuntimeError, with its log, if not."""
    deadline = time.monotonic() + PATIENCE
    why = "no socket appeared"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            why = f"it ended with status {process.returncode}"
            break
        try:
            if not question:
                Client(str(socket)).close()
                return
            with Client(str(socket)) as client:
                client.call(question)
        except (OSError, Refused) as error:
            why = str(error)
            time.sleep(0.02)
        else:
            return
    tail = "\n".join(log.read_text("utf-8", "replace").splitlines()[-20:])
    name = " ".join(map(str, process.args))  # type: ignore[arg-type]  # it is a list here
    raise RuntimeError(f"{name}: {why}\n{tail}")


@contextlib.contextmanager
def floor(place: Place, name: str, answers: Mapping[int, Any]) -> Iterator[Target]:
    """Run a floor that answers a job of N instances with `answers[N]`."""
    if place.cgroup is None:
        raise SystemExit("the floor needs root and cgroup v2")
    home = place.folder / f"floor-{name}"
    home.mkdir()
    cgroup = place.cgroup / f"floor-{name}"
    cgroup.mkdir()
    (home / "answers.json").write_text(json.dumps({str(n): one for n, one in answers.items()}))
    socket, log = home / "sock", home / "log"
    files = [str(socket), str(home / "records"), str(cgroup), str(home / "answers.json")]
    command = [sys.executable, str(HERE / "floor.py"), *files]
    with running(command, log, os.environ) as process:
        serving(socket, process, log)
        yield Target(f"floor-{name}", str(socket), 0)


class Agent:
    """A real agent: its socket, its processes and what it has."""

    def __init__(self, socket: Path, process: subprocess.Popen[bytes]) -> None:
        self.socket = socket
        self.process = process

    def processes(self) -> dict[int, str]:
        """Give its processes: pid to a name."""
        found: dict[int, str] = {}
        for pid in [self.process.pid, *children(self.process.pid)]:
            with contextlib.suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/comm").read_text("utf-8").strip()
        return found

    def inventory(self) -> dict[str, Any]:
        """Ask it for the inventory."""
        with Client(str(self.socket)) as client:
            answer = client.call(message("GetInventory"))[1]
        found: dict[str, Any] = answer.get("inventory", answer)
        return found


def hanging_library(place: Place) -> dict[str, str]:
    """Make a stand-in for NVIDIA's library that hangs; give the variables by which it is found."""
    folder = place.folder / "nvml"
    folder.mkdir()
    return stub(folder, "hang nvmlDeviceGetCount_v2\n")


def stub(folder: Path, told: str) -> dict[str, str]:
    """Make a stand-in for NVIDIA's library, and what it tells; give the variables of both."""
    source = HERE.parent / "machines/nvml/nvml_stub.c"
    compiler = ["cc", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(source)]
    subprocess.run(compiler, check=True)
    data = folder / "data"
    data.write_text(told, "ascii")
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)
    return {"LD_LIBRARY_PATH": str(folder), "XCE_NVML_DATA": str(data)}


@contextlib.contextmanager
def agent(
    place: Place,
    name: str,
    *,
    profile: str,
    ports: tuple[int, int],
    python_path: Path | None = None,
    library: Mapping[str, str] | None = None,
    extra: Sequence[str] = (),
    again: bool = False,
    before: Sequence[str] = (),
) -> Iterator[Agent]:
    """Run the product, with folders, cgroups and device nodes of its own.

    `again`: it may have run before, and finds what it left. `library` are the variables that give
    it a vendor's library, which may take an hour; `extra` are more lines of the configuration;
    `before` is a program that becomes the agent.
    """
    home = place.folder / f"agent-{name}"
    home.mkdir(exist_ok=again)
    home.chmod(0o755)
    lines = ["[agent]"] + (["library_seconds = 3600"] if library else [])
    if place.cgroup is None:
        lines.append('enforcement = "off"')
    else:
        cgroup = place.cgroup / f"agent-{name}"
        cgroup.mkdir(exist_ok=again)
        lines += ['enforcement = "required"', f'cgroup_root = "{cgroup}"']
        place.devices.mkdir(exist_ok=True)
    lines += ["[access]", f"prepare_uids = [{os.geteuid()}]"]
    lines += ["[ports]", f'range = "{ports[0]}-{ports[1]}"', "[simulate]"]
    lines += [f'profile = "{profile}"', f'device_directory = "{place.devices / name}"', *extra]
    config = home / "config.toml"
    config.write_text("\n".join(lines) + "\n", "utf-8")
    env = dict(os.environ)
    env["XCE_NODEAGENT_STATE_DIR"] = str(home / "state")
    env["XCE_NODEAGENT_RUNTIME_DIR"] = str(home / "run")
    env.pop("XCE_NODEAGENT_SOCKET", None)
    env.pop("XCE_NODEAGENT_CONFIG", None)
    env |= library or {}
    if python_path is not None:
        env["PYTHONPATH"] = str(python_path)
    socket, log = home / "run" / "agent.sock", home / "log"
    program = Path(sys.executable).parent / "xce-nodeagent"
    command = [*before, sys.executable, str(program), "run", "--config", str(config)]
    with running(command, log, env) as process:
        serving(socket, process, log, message("GetInventory"))
        yield Agent(socket, process)
