"""The processes of the harness, and the folders and cgroups that they live in.

Everything that is started here lives in one cgroup of v2 that was made for it. Whatever happens,
Ctrl-C too, the end is the same: that cgroup is killed, and what was made is removed.
"""

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
from pathlib import Path
from typing import Any, Self

from soak.page import Page

PATIENCE = 60.0
"""Seconds after which the harness takes a process for hung. The machine may be shared and slow."""


class Process:
    """A process that the zygote forked. Its pid stays its own until it is reaped."""

    def __init__(self, crew: Crew, pid: int) -> None:
        self._crew = crew
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._pidfd, select.POLLIN)
        self.code: int | None = None

    def ended(self, seconds: float = 0.0) -> bool:
        """Say whether it has ended, or does so within a time."""
        return self.code is not None or bool(self._poll.poll(seconds * 1000))

    def signal(self, number: int) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def reap(self) -> int:
        """Wait for its end, and give its exit code; that of a signal is negative."""
        if self.code is None:
            if not self.ended(PATIENCE):
                raise TimeoutError(f"process {self.pid} does not end")
            self.code = self._crew.order({"do": "reap", "pid": self.pid})["code"]
            os.close(self._pidfd)
        return self.code

    def kill(self) -> int:
        self.signal(signal.SIGKILL)
        return self.reap()


class Crew:
    """The zygote, and what all nodes of a run share."""

    def __init__(self, cgroup2: Path, cgroup1: Path | None, *, plant: str = "") -> None:
        self._plant = plant
        self.name = f"xce-soak-{os.getpid()}-{secrets.token_hex(3)}"
        # The ledger's folder is in memory: a kill loses nothing that was written, on no disk.
        memory = Path("/dev/shm")  # noqa: S108  # a folder of our own is made in it
        self.folder = (memory if memory.is_dir() else Path(tempfile.gettempdir())) / self.name
        self.cgroups = {"cgroup2": cgroup2 / self.name}
        if cgroup1 is not None:
            self.cgroups["cgroup1"] = cgroup1 / self.name
        self.own = self.cgroups["cgroup2"] / "own"
        self.log = self.folder / "log"
        self._control: socket.socket | None = None
        self._zygote: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        for path in self.cgroups.values():
            path.mkdir()
        self.own.mkdir()
        self.folder.mkdir(0o755)
        self.page, descriptor = Page.make()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("XCE_")}
        with theirs, self.log.open("ab") as log:
            self._zygote = subprocess.Popen(
                [
                    sys.executable, "-m", "soak.zygote", str(theirs.fileno()), str(descriptor),
                    str(self.cgroups["cgroup2"]), self._plant,
                ],
                pass_fds=(theirs.fileno(), descriptor), stdout=log, stderr=log,
                env=environment | {"PYTHONPATH": os.pathsep.join(paths)}, start_new_session=True,
            )  # fmt: skip
        os.close(descriptor)
        (self.own / "cgroup.procs").write_text(str(self._zygote.pid), "ascii")
        self._control.settimeout(PATIENCE)
        if not self._control.recv(4096):
            raise RuntimeError(f"the zygote does not start: {self.log.read_text('utf-8')}")

    def order(self, order: dict[str, Any]) -> dict[str, Any]:
        """Have the zygote do something."""
        assert self._control is not None
        # An interruption waits: in between, this answer would be taken for the next order's.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            self._control.send(json.dumps(order).encode())
            data = self._control.recv(1 << 16)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if not data:
            raise RuntimeError(f"the zygote has ended: {self.log.read_text('utf-8')[-4000:]}")
        answer: dict[str, Any] = json.loads(data)
        return answer

    def start(self, do: str, **order: Any) -> Process:
        answer = self.order({"do": do, **order})
        return Process(self, answer["pid"])

    def children(self, pid: int) -> list[tuple[int, str]]:
        """Give the children of a process and their names."""
        found = []
        with contextlib.suppress(OSError):
            for word in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
                with contextlib.suppress(OSError):
                    found.append((int(word), Path(f"/proc/{word}/comm").read_text().strip()))
        return found

    def about(self, pid: int) -> str:
        """Describe a process: its name, its state, its parent."""
        try:
            return " ".join(Path(f"/proc/{pid}/stat").read_text("utf-8").split()[1:4])
        except OSError:
            return "it has ended meanwhile"

    def living(self) -> set[int]:
        """Give the processes that are in our own cgroup, without the zygote."""
        pids = {int(line) for line in (self.own / "cgroup.procs").read_text().split()}
        return pids - {self._zygote.pid if self._zygote else 0}

    def close(self) -> None:
        """End everything, and remove what was made. Never raises for what is gone already."""
        top = self.cgroups["cgroup2"]
        with contextlib.suppress(OSError):
            _kill_all(top)
        if self._control is not None:
            self._control.close()
        if self._zygote is not None:
            self._zygote.kill()
            self._zygote.wait()
        for path in self.cgroups.values():
            remove_cgroup(path)
        shutil.rmtree(self.folder, ignore_errors=True)


def _kill_all(top: Path) -> None:
    """Kill everybody in a cgroup that is ours, and below it; wait until they are gone."""
    kill = top / "cgroup.kill"
    until = time.monotonic() + PATIENCE
    while "populated 1" in (top / "cgroup.events").read_text():
        if kill.exists():
            kill.write_text("1", "ascii")
        else:  # before Linux 5.14
            for procs in top.rglob("cgroup.procs"):
                for word in procs.read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(word), signal.SIGKILL)
        if time.monotonic() > until:
            raise TimeoutError(f"{top} does not become empty")
        time.sleep(0.002)


def remove_cgroup(path: Path) -> None:
    """Remove a cgroup with all below it; a process that was killed may still be on its way out."""
    until = time.monotonic() + PATIENCE
    while path.exists():
        for folder, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        if time.monotonic() > until:
            raise TimeoutError(f"{path} cannot be removed")
        if path.exists():
            time.sleep(0.002)
