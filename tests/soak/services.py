"""The agent and its helpers on a node: started, struck, continued, started again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak.blow import Blow, Tally
from soak.crew import PATIENCE, Crew, Process
from soak.story import Story
from soak.zygote import AGENT_UID

FAREWELL = 2.0
"""Seconds that a process may take for what it had in mind when it was stopped, and to end."""


@dataclass(frozen=True)
class Kind:
    """The kind of a node.

    `backend` is cgroup2 or cgroup1; `shape` is systemd (the helpers outlive the agent) or hand
    (they come with it, and end with it); `per_job` is a kernel that refuses the shared program;
    `grace` is in seconds, between SIGTERM and SIGKILL; `reported`: a program of the site's reports
    an instance, which a runner starts every second.
    """

    backend: str
    shape: str
    profile: str = "dgx-a100-mig"
    per_job: bool = False
    grace: int = 0
    reported: bool = False

    def __str__(self) -> str:
        more = ", a program per job" if self.per_job else ""
        more += ", a reporter" if self.reported else ""
        return f"{self.backend}, shape {self.shape}, {self.profile}{more}, grace {self.grace} s"


class Services:
    """The processes of a node; `folder` is theirs."""

    def __init__(self, crew: Crew, tally: Tally, story: Story, kind: Kind, folder: Path) -> None:
        self._crew, self._tally, self._story, self._kind = crew, tally, story, kind
        self._folder = folder
        self._boot = 1
        self._agent: Process | None = None
        self._supervisor: Process | None = None
        self._notified: socket.socket | None = None
        self._last: Blow | None = None
        self.late = 0
        self.socket = folder / "run" / "agent.sock"

    def open(self, config: str) -> None:
        """Make the folders and start all of it."""
        self._folder.mkdir(0o755)
        for name in ("run", "state"):
            (self._folder / name).mkdir(0o755)
            if self._kind.shape == "systemd":
                os.chown(self._folder / name, AGENT_UID, AGENT_UID)
        (self._folder / "config.toml").write_text(config, "utf-8")
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notified.bind(str(self._folder / "notify"))
        (self._folder / "notify").chmod(0o666)
        self.start()

    def close(self) -> None:
        self.kill()
        if self._notified is not None:
            self._notified.close()

    # ---- starting ---------------------------------------------------------------------------

    def _order(self) -> dict[str, Any]:
        return {
            "env": {
                "XCE_NODEAGENT_CONFIG": str(self._folder / "config.toml"),
                "XCE_NODEAGENT_STATE_DIR": str(self._folder / "state"),
                "XCE_NODEAGENT_RUNTIME_DIR": str(self._folder / "run"),
                "NOTIFY_SOCKET": str(self._folder / "notify"),
            },
            "boot": f"00000000-0000-4000-8000-{self._boot:012d}",
            "simulate": self._kind.profile,
            "shape": self._kind.shape,
            "per_job": self._kind.per_job,
            "folder": str(self._folder / "run-helpers"),
            "log": str(self._crew.log),
        }

    def _start_supervisor(self) -> None:
        order = self._order()
        del order["env"]["NOTIFY_SOCKET"]  # only the agent's word counts
        self._supervisor = self._crew.start("supervisor", **order)
        path = self._folder / "run-helpers" / "helpers.sock"
        until = time.monotonic() + PATIENCE
        while not path.exists() and not self._supervisor.ended():
            self._story.in_time(until, "the supervisor makes no socket")
            time.sleep(0.001)

    def start(self, blow: Blow | None = None) -> bool:
        """Start what is not running, and wait until it serves; False when the blow ended it."""
        gone = self._supervisor is None or self._supervisor.code is not None
        if self._kind.shape == "systemd" and gone:
            self._start_supervisor()
        assert self._notified is not None
        self._notified.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while self._notified.recv(4096):
                pass
        self.arm(blow)
        self._tally.starts += 1
        self._agent = self._crew.start("agent", **self._order())
        begun = time.monotonic()
        serving = False
        self._notified.settimeout(0.002)
        while not serving and not self._agent.ended():
            self._story.in_time(begun + PATIENCE, "the agent does not serve")
            self.tend(blow, begun)
            with contextlib.suppress(TimeoutError):
                serving = self._notified.recv(4096).startswith(b"READY=1")
        self.disarm(blow)
        if not serving:
            self._expect_killed("agent", self._agent, blow)
        return serving

    @property
    def ledger(self) -> Path:
        """Where the ledger is."""
        return self._folder / "state" / "ledger.db"

    def down(self) -> None:
        """Kill the agent, and let it be down."""
        assert self._agent is not None
        self._agent.signal(signal.SIGKILL)
        self._agent.ended(PATIENCE)

    def restart(self, blow: Blow | None) -> None:
        """Start the agent that was killed, while a blow falls; and again, if that hit it."""
        assert self._agent is not None
        if self._agent.ended(PATIENCE):
            self._expect_killed("agent", self._agent)
        if not self.start(blow):
            self.start()
        self.settle(blow)

    def reboot(self) -> None:
        """Begin another boot, with nothing that the one before had in /run."""
        for path in (self._folder / "run").iterdir():
            path.unlink()
        self._boot += 1
        self.start()

    # ---- ending -----------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the agent has ended."""
        return self._agent is None or self._agent.ended()

    def _expect_killed(self, what: str, process: Process, blow: Blow | None = None) -> None:
        code = process.reap()
        # Whoever brought its own supervisor ends with it, and says so.
        by_hand = self._kind.shape == "hand"
        alone = by_hand and blow and blow.role == "supervisor" and blow.fell_on > 0
        if code != -signal.SIGKILL and not (alone and code in (69, 75)):
            self._story.fail(f"the {what} ended by itself: {code}")

    def stop(self) -> None:
        """End everything as a service manager does."""
        for what, process in (("agent", self._agent), ("supervisor", self._supervisor)):
            if process is not None and process.code is None:
                process.signal(signal.SIGTERM)
                if (code := process.reap()) != 0:
                    self._story.fail(f"the {what} was told to end, and ended with {code}")
        self._agent = self._supervisor = None

    def kill(self) -> None:
        """End everything at once."""
        for process in (self._agent, self._supervisor):
            if process is not None and process.code is None:
                process.kill()
        self._agent = self._supervisor = None
        # The helpers of a supervisor that was killed are killed by the kernel (PDEATHSIG); one
        # that came with its agent ends when that has gone, and is not waited for.
        begun = time.monotonic()
        while living := self._crew.living():
            for pid in living if time.monotonic() > begun + 0.2 else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._story.in_time(begun + PATIENCE, "processes do not end")
            time.sleep(0.001)

    # ---- blows ------------------------------------------------------------------------------

    def arm(self, blow: Blow | None) -> None:
        """Have a blow ready."""
        if blow is not None and blow.point:
            self._crew.page.arm(
                blow.role, blow.point, hits=blow.hits, then=blow.then, number=blow.number
            )

    def disarm(self, blow: Blow | None) -> None:
        """Call a blow off, if it has not fallen."""
        if blow is not None:
            self.tend(blow, 0.0)
            self._crew.page.disarm(blow.role)
            self._last = blow

    def struck_late(self) -> bool:
        """See whether a blow fell in the moment in which it was called off."""
        blow = self._last
        if blow is None or not blow.point or blow.fell_on:
            return False
        blow.fell_on = self._come(blow)
        if blow.fell_on:
            self.late += 1
            self._note(blow, ", late")
            self.settle(blow)
        return bool(blow.fell_on)

    def _note(self, blow: Blow, more: str = "") -> None:
        blow.fell_at = time.monotonic()
        self._tally.crash(blow.role, blow.kind)
        if blow.point:
            self._tally.points[blow.point] = self._tally.points.get(blow.point, 0) + 1
        self._story.note(f"{blow}: pid {blow.fell_on}{more}")

    def tend(self, blow: Blow | None, begun: float) -> None:
        """Do what is due: strike from outside, let a stopped one go on, replace a supervisor."""
        if blow is not None:
            now = time.monotonic()
            if not blow.fell_on:
                if blow.point:
                    blow.fell_on = self._come(blow)
                elif now >= begun + blow.after:
                    blow.fell_on = self._hit(blow)
                if blow.fell_on > 0:
                    self._note(blow)
            if blow.stopped and now >= blow.fell_at + blow.pause:
                self.go_on(blow)
        supervisor = self._supervisor
        if supervisor is not None and supervisor.code is None and supervisor.ended():
            self._expect_killed("supervisor", supervisor)
            self._start_supervisor()

    def _come(self, blow: Blow) -> int:
        """Strike who has come to the point and waits there; give whom, 0 for nobody."""
        pid = self._crew.page.fired(blow.role)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, blow.signal)
                until = time.monotonic() + PATIENCE
                while blow.signal == signal.SIGSTOP and not _is_stopped(pid):
                    self._story.in_time(until, f"process {pid} does not stop")
            self._crew.page.let_go(blow.role)
        return pid

    def _hit(self, blow: Blow) -> int:
        """Strike from outside; give whom, -1 for nobody."""
        pids = self.pids(blow.role)
        if not pids:
            return -1
        pid = pids[blow.number % len(pids)]
        try:
            os.kill(pid, blow.signal)
        except ProcessLookupError:
            return -1
        return pid

    def go_on(self, blow: Blow) -> None:
        """Continue a process that was stopped."""
        blow.continued = True
        # It is ours or was: a helper that was killed meanwhile may have given its number away.
        if blow.fell_on in self._crew.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(blow.fell_on, signal.SIGCONT)

    def outlive(self, blow: Blow) -> None:
        """Wait for the end of who was struck and goes on: nobody listens to it any more."""
        until = time.monotonic() + FAREWELL
        while _state(blow.fell_on) not in "ZX" and time.monotonic() < until:
            time.sleep(0.001)

    def settle(self, blow: Blow | None = None) -> None:
        """Let go on what is stopped, start again what has died."""
        if blow is not None and blow.stopped:
            self.go_on(blow)
        assert self._agent is not None
        # A signal that was sent is not always felt yet, and who is not seen to have ended is not
        # started again.
        for process in (self._agent, self._supervisor):
            if process and blow and (process.pid, signal.SIGKILL) == (blow.fell_on, blow.signal):
                process.ended(PATIENCE)
        by_hand = self._kind.shape == "hand"
        if by_hand and not self._agent.ended() and blow and blow.role == "supervisor":
            # Nobody starts a second one under an agent that brought its own.
            self._agent.kill()
        self.struck_late()
        self.tend(None, 0.0)
        if self._agent.ended():
            self._expect_killed("agent", self._agent)
            self.start()

    def pids(self, role: str) -> list[int]:
        """Give the living processes of a role, oldest first."""
        assert self._agent is not None
        if role == "agent":
            return [] if self._agent.ended() else [self._agent.pid]
        if self._kind.shape == "systemd":
            supervisors = [] if self._supervisor is None else [self._supervisor.pid]
        else:
            supervisors = [pid for pid, _ in self._crew.children(self._agent.pid)]
        if role == "supervisor":
            return supervisors
        return [
            pid
            for supervisor in supervisors
            for pid, name in self._crew.children(supervisor)
            if name == f"xce-{role}"
        ]


def _is_stopped(pid: int) -> bool:
    return _state(pid) in "TZX"


def _state(pid: int) -> str:
    """Give the state of a process as proc(5) has it: X, too, for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return "X"
    return text.rpartition(")")[2].split()[0]
