"""A node under test: real processes, real cgroups, real device nodes; and what its callers know.

One node lives for one history. `ask` puts questions to the agent, maybe while a `Blow` falls on one
of its processes; `settle` starts again what has died; `check` compares the kernel with the model.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak import caller, kernel, page, points, promises
from soak.caller import Call
from soak.crew import PATIENCE, Crew, Process, remove_cgroup
from soak.promises import Held, Key, Model, View
from soak.zygote import AGENT_UID

PORTS = (21_700, 21_719)


class BrokenPromise(AssertionError):
    """What the node does is not what was promised."""


@dataclass
class Blow:
    """A kill or a stop of one process: at a point, some instructions after it, or from outside.

    `after` is in seconds from the question on, for a blow from outside; `pause` is how long a
    stopped process stays so.
    """

    role: str
    signal: int = signal.SIGKILL
    point: int = 0
    hits: int = 1
    then: int = page.NOW
    number: int = 0
    after: float = 0.0
    pause: float = 0.0
    fell_on: int = 0
    fell_at: float = 0.0
    continued: bool = False

    @property
    def kind(self) -> str:
        if self.signal == signal.SIGSTOP:
            return "stop"
        return ("point", "call", "line")[self.then] if self.point else "outside"

    def __str__(self) -> str:
        where = f"at {points.POINTS[self.point - 1]}, hit {self.hits}" if self.point else "outside"
        more = f", {('', 'call', 'line')[self.then]} {self.number}" if self.then else ""
        return f"{signal.Signals(self.signal).name} of the {self.role} {where}{more}"


@dataclass
class Prisoner:
    """A process of a job that tries every device all the time."""

    process: Process
    number: int
    cgroup: str


@dataclass
class Tally:
    """Counts of a run."""

    crashes: dict[tuple[str, str], int] = field(default_factory=dict)
    steps: int = 0
    starts: int = 0
    checks: int = 0
    opens: int = 0
    reboots: int = 0
    answers: dict[str, int] = field(default_factory=dict)

    def crash(self, role: str, kind: str) -> None:
        self.crashes[role, kind] = self.crashes.get((role, kind), 0) + 1

    @property
    def crashed(self) -> int:
        return sum(self.crashes.values())


class Node:
    """The node. `backend` is cgroup2 or cgroup1; `shape` is systemd (the helpers outlive the

    agent) or hand (they are its children); `per_job` is a kernel that refuses the shared program.
    """

    def __init__(
        self, crew: Crew, tally: Tally, *, backend: str, shape: str, profile: str, per_job: bool
    ) -> None:
        self.crew, self.tally = crew, tally
        self.backend, self.shape, self.profile, self.per_job = backend, shape, profile, per_job
        self.model = Model()
        self.prisoners: dict[Key, Prisoner] = {}
        self.boot = 1
        self.story: list[str] = []
        self._agent: Process | None = None
        self._supervisor: Process | None = None
        self._free = list(range(page.PRISONERS))
        self._maps: frozenset[int] = frozenset()
        self._top = crew.folder / "node"
        self.home = crew.cgroups[backend] / "jobs"
        self.other = crew.cgroups[backend] / "named"
        self._devices = Path("/dev") / crew.name
        self.socket = self._top / "run" / "agent.sock"
        self._notified: socket.socket | None = None
        self._last: Blow | None = None

    # ---- life -------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the folders, start the processes, and read what hardware there is."""
        self._top.mkdir(0o755)
        self.other.mkdir()
        for name in ("run", "state"):
            (self._top / name).mkdir(0o755)
            if self.shape == "systemd":
                os.chown(self._top / name, AGENT_UID, AGENT_UID)
        (self._top / "config.toml").write_text(
            f'[agent]\ncgroup_root = "{self.home}"\ncgroup_allowed_roots = ["{self.other}"]\n'
            f'[ports]\nrange = "{PORTS[0]}-{PORTS[1]}"\n'
            f'[simulate]\ndevice_directory = "{self._devices}"\n',
            "utf-8",
        )
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notified.bind(str(self._top / "notify"))
        (self._top / "notify").chmod(0o666)
        self.start()
        self._read_hardware()

    def _read_hardware(self) -> None:
        asked = self.one("GetInventory")
        inventory = asked.answer
        if asked.state != "answered":
            self.fail(f"GetInventory: {asked.state} {asked.answer}")
        instances = [i for i in inventory["instances"] if i["provider"] == "simulated"]
        nodes = kernel.nodes(self._devices)
        self.paths = sorted(nodes)
        self.place = {path: number for number, path in enumerate(self.paths)}
        self.hardware = promises.Hardware(
            overlaps={i["id"]: frozenset(i.get("overlaps", ())) for i in instances},
            devices={
                i["id"]: frozenset(d["path"] for d in i.get("devices", ())) for i in instances
            },
            types={i["id"]: i["type"] for i in instances},
            nodes=nodes,
            backend=self.backend,
            per_job=self.per_job,
        )

    def _order(self) -> dict[str, Any]:
        top = self._top
        return {
            "env": {
                "XCE_NODEAGENT_CONFIG": str(top / "config.toml"),
                "XCE_NODEAGENT_STATE_DIR": str(top / "state"),
                "XCE_NODEAGENT_RUNTIME_DIR": str(top / "run"),
                "NOTIFY_SOCKET": str(top / "notify"),
            },
            "boot": f"00000000-0000-4000-8000-{self.boot:012d}",
            "simulate": self.profile,
            "shape": self.shape,
            "per_job": self.per_job,
            "folder": str(top / "run-helpers"),
            "log": str(self.crew.log),
        }

    def start_supervisor(self) -> None:
        if self.shape == "systemd":
            order = self._order()
            del order["env"]["NOTIFY_SOCKET"]  # only the agent's word counts
            self._supervisor = self.crew.start("supervisor", **order)
            path = self._top / "run-helpers" / "helpers.sock"
            until = time.monotonic() + PATIENCE
            while not path.exists() and not self._supervisor.ended():
                self._in_time(until, "the supervisor makes no socket")
                time.sleep(0.001)

    def start(self, blow: Blow | None = None) -> bool:
        """Start what is not running, and wait until it serves; False when the blow ended it."""
        if self.shape == "systemd" and (
            self._supervisor is None or self._supervisor.code is not None
        ):
            self.start_supervisor()
        assert self._notified is not None
        self._notified.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while self._notified.recv(4096):
                pass
        self._arm(blow)
        self.tally.starts += 1
        self._agent = self.crew.start("agent", **self._order())
        begun = time.monotonic()
        serving = False
        while not serving and not self._agent.ended():
            self._in_time(begun + PATIENCE, "the agent does not serve")
            self._tend(blow, begun)
            self._notified.settimeout(0.002)
            with contextlib.suppress(TimeoutError, BlockingIOError):
                serving = self._notified.recv(4096).startswith(b"READY=1")
        self._disarm(blow)
        if not serving:
            self._expect_killed("agent", self._agent, blow)
        return serving

    def _expect_killed(self, what: str, process: Process, blow: Blow | None = None) -> None:
        code = process.reap()
        # Whoever brought its own supervisor ends with it, and says so.
        alone = self.shape == "hand" and blow and blow.role == "supervisor" and blow.fell_on > 0
        if code != -signal.SIGKILL and not (alone and code in (69, 75)):
            self.fail(f"the {what} ended by itself: {code}")

    def _in_time(self, until: float, what: str) -> None:
        if time.monotonic() > until:
            self.fail(what)

    def stop(self) -> None:
        """End everything as a service manager does, and see that nothing of it is left."""
        for what, process in (("agent", self._agent), ("supervisor", self._supervisor)):
            if process is not None and process.code is None:
                process.signal(signal.SIGTERM)
                if (code := process.reap()) != 0:
                    self.fail(f"the {what} was told to end, and ended with {code}")
        self._agent = self._supervisor = None
        self._until(self._left_over, "after the end: ")

    def _left_over(self) -> list[str]:
        left = [f"{path} is left" for path in (self.home, self._devices) if path.exists()]
        left += [f"process {pid} is left" for pid in self.crew.living()]
        shared = self.backend == "cgroup2" and not self.per_job
        fenced = kernel.cgroups(self.other, v2=True) if shared else {}
        if shared and not any(cgroup.programs for cgroup in fenced.values()):
            left += [f"map {number} is left" for number in kernel.exists(self._maps)]
        return left

    def close(self) -> None:
        """Let go, whatever state this is in."""
        for prisoner in list(self.prisoners.values()):
            prisoner.process.kill()
        self.prisoners.clear()
        self._kill_services()
        for path in (self.home, self.other):
            remove_cgroup(path)
        if self._notified is not None:
            self._notified.close()
        shutil.rmtree(self._top, ignore_errors=True)
        shutil.rmtree(self._devices, ignore_errors=True)

    def _kill_services(self) -> None:
        for process in (self._agent, self._supervisor):
            if process is not None and process.code is None:
                process.kill()
        self._agent = self._supervisor = None
        # The helpers of a supervisor that was killed are killed by the kernel (PDEATHSIG), and one
        # that came with its agent ends when that has gone.
        until = time.monotonic() + PATIENCE
        while living := self.crew.living():
            for pid in living if time.monotonic() > until - PATIENCE + 0.2 else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._in_time(until, "processes do not end")
            time.sleep(0.001)

    def reboot(self) -> None:
        """What a power cut leaves: the disk. No process, no cgroup, no /run, no node in /dev."""
        self.story.append("reboot")
        self.tally.reboots += 1
        for key in list(self.prisoners):
            self.free(key)
        self._kill_services()
        for path in (self.home, self.other):
            remove_cgroup(path)
        self.other.mkdir()
        shutil.rmtree(self._devices, ignore_errors=True)
        shutil.rmtree(self._top / "run-helpers", ignore_errors=True)
        for path in (self._top / "run").iterdir():
            path.unlink()
        self.boot += 1
        self.model.rebooted()
        self.start()

    # ---- questions --------------------------------------------------------------------------

    def one(self, method: str, **parameters: Any) -> Call:
        """Ask one thing and wait for its answer."""
        call = Call(str(self.socket), method, parameters)
        self.ask([call])
        return call

    def call(self, method: str, **parameters: Any) -> Call:
        """Ask, and do not wait; for `ask`."""
        return Call(str(self.socket), method, parameters)

    def ask(self, calls: Sequence[Call], blow: Blow | None = None) -> None:
        """Wait until every call is answered or lost, while the blow falls."""
        begun = time.monotonic()
        assert self._agent is not None
        while not caller.wait(list(calls), 2):
            self._tend(blow, begun)
            if blow is None and time.monotonic() > begun + 0.5:
                self.struck_late()
            if self._agent.ended():
                while not caller.wait(list(calls), 1000):
                    self._in_time(begun + PATIENCE, "a connection outlives the agent")
            self._in_time(begun + PATIENCE, f"no answer to {calls[0].method}")
        for call in calls:
            name = f"{call.method} {call.code or call.state}"
            self.tally.answers[name] = self.tally.answers.get(name, 0) + 1
            if call.code == "internal":
                self.fail(f"a fault of the agent: {call.answer}")

    # ---- blows ------------------------------------------------------------------------------

    def _arm(self, blow: Blow | None) -> None:
        if blow is not None and blow.point:
            self.crew.page.arm(
                blow.role, blow.point, hits=blow.hits, then=blow.then, number=blow.number,
                signal=blow.signal,
            )  # fmt: skip

    def _disarm(self, blow: Blow | None) -> None:
        if blow is not None:
            self._tend(blow, 0.0)
            self.crew.page.disarm(blow.role)
            self._last = blow

    def struck_late(self) -> bool:
        """See whether a blow fell in the moment in which it was called off."""
        blow = self._last
        if blow is None or not blow.point or blow.fell_on:
            return False
        blow.fell_on = self.crew.page.fired(blow.role)
        if blow.fell_on:
            blow.fell_at = time.monotonic()
            self.tally.crash(blow.role, blow.kind)
            self.story.append(f"{blow}: pid {blow.fell_on}, late")
            self.settle(blow)
        return bool(blow.fell_on)

    def strike(self, blow: Blow, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Call]:
        """Ask while a blow falls; then everything runs again."""
        self._arm(blow)
        made = [self.call(method, **parameters) for method, parameters in calls]
        self.ask(made, blow)
        self._disarm(blow)
        return made

    def _tend(self, blow: Blow | None, begun: float) -> None:
        """Do what is due: strike from outside, let a stopped one go on, replace a supervisor."""
        if blow is not None:
            now = time.monotonic()
            if not blow.fell_on:
                if blow.point:
                    blow.fell_on = self.crew.page.fired(blow.role)
                elif now >= begun + blow.after:
                    blow.fell_on = self._hit(blow)
                if blow.fell_on > 0:
                    blow.fell_at = now
                    self.tally.crash(blow.role, blow.kind)
                    self.story.append(f"{blow}: pid {blow.fell_on}")
            if self._is_stopped(blow) and now >= blow.fell_at + blow.pause:
                self._go_on(blow)
        supervisor = self._supervisor
        if supervisor is not None and supervisor.code is None and supervisor.ended():
            self._expect_killed("supervisor", supervisor)
            self.start_supervisor()

    @staticmethod
    def _is_stopped(blow: Blow) -> bool:
        return blow.signal == signal.SIGSTOP and blow.fell_on > 0 and not blow.continued

    def _go_on(self, blow: Blow) -> None:
        blow.continued = True
        # It is ours or was: a helper that was killed meanwhile may have given its number away.
        if blow.fell_on in self.crew.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(blow.fell_on, signal.SIGCONT)

    def _hit(self, blow: Blow) -> int:
        """Strike from outside; give whom, -1 for nobody."""
        pids = self.pids(blow.role)
        if not pids:
            return -1
        pid = pids[blow.number % len(pids)]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, blow.signal)
            return pid
        return -1

    def pids(self, role: str) -> list[int]:
        """Give the living processes of a role, oldest first."""
        assert self._agent is not None
        if role == "agent":
            return [] if self._agent.ended() else [self._agent.pid]
        if self.shape == "systemd":
            supervisors = [] if not self._supervisor else [self._supervisor.pid]
        else:
            supervisors = [pid for pid, _ in self.crew.children(self._agent.pid)]
        if role == "supervisor":
            return supervisors
        return [
            pid
            for supervisor in supervisors
            for pid, name in self.crew.children(supervisor)
            if name == f"xce-{role}"
        ]

    def settle(self, blow: Blow | None = None) -> None:
        """Let go on what is stopped, start again what has died."""
        if blow is not None and self._is_stopped(blow):
            self._go_on(blow)
        assert self._agent is not None
        # A signal that was sent is not always felt yet.
        if blow is not None and blow.fell_on == self._agent.pid and blow.signal == signal.SIGKILL:
            self._agent.ended(PATIENCE)
        if self.shape == "hand" and not self._agent.ended() and blow and blow.role == "supervisor":
            # Nobody starts a second one under an agent that brought its own.
            self._agent.kill()
        self.struck_late()
        self._tend(None, 0.0)
        if self._agent.ended():
            self._expect_killed("agent", self._agent)
            self.start()

    def restart(self, blow: Blow | None) -> None:
        """Start what has died, while a blow falls; and again, if it was the agent that it hit."""
        assert self._agent is not None
        if self._agent.ended(PATIENCE):
            self._expect_killed("agent", self._agent)
        if not self.start(blow):
            self.start()
        self.settle(blow)

    # ---- prisoners --------------------------------------------------------------------------

    def lock_up(self, key: Key, held: Held) -> None:
        """Start a process in a job's cgroup."""
        if key in self.prisoners or not self._free:
            return
        number = self._free.pop()
        self.crew.page.clear(number)
        self.crew.page.let(number, self._mask(self.hardware.granted(held.instances)))
        process = self.crew.start(
            "prisoner", number=number, cgroup=held.cgroup, backend=self.backend, paths=self.paths,
            log=str(self.crew.log),
        )  # fmt: skip
        self.prisoners[key] = Prisoner(process, number, held.cgroup)
        # On v1 it walks into the cgroup by itself, and must be in it before anything else happens.
        until = time.monotonic() + PATIENCE
        while not self.crew.page.count(number, page.SWEEPS) and not process.ended(0.0005):
            self._in_time(until, f"{key}: its process does not begin")

    def free(self, key: Key) -> None:
        """End a job's process."""
        prisoner = self.prisoners.pop(key, None)
        if prisoner is not None:
            code = prisoner.process.kill()
            self._note_opens(prisoner)
            if code != -signal.SIGKILL:
                self.fail(f"{key}: its process ended with {code}")
            self._free.append(prisoner.number)

    def _note_opens(self, prisoner: Prisoner) -> None:
        sweeps = self.crew.page.count(prisoner.number, page.SWEEPS)
        self.tally.opens += sweeps * len(self.paths)
        if self.crew.page.count(prisoner.number, page.BREACHES):
            path = self.paths[self.crew.page.count(prisoner.number, page.BREACH)]
            self.fail(f"a process in {prisoner.cgroup} opened {path}, which it was not given")

    def _mask(self, paths: frozenset[str]) -> int:
        return sum(1 << self.place[path] for path in paths)

    def allow(self, key: Key, instances: frozenset[str]) -> None:
        """Say what a prisoner may open from now on, while an answer is not there yet."""
        if prisoner := self.prisoners.get(key):
            mask = self._mask(self.hardware.granted(instances))
            self.crew.page.let(prisoner.number, mask)

    def look(self) -> dict[Key, frozenset[str]]:
        """Have every prisoner try every device once, from now on."""
        shared = self.crew.page
        asked = {key: shared.ask(one.number) for key, one in self.prisoners.items()}
        until = time.monotonic() + PATIENCE
        for key, number in asked.items():
            one = self.prisoners[key]
            while not shared.looked(one.number, number):
                if one.process.ended():
                    self.fail(f"{key}: its process ended with {one.process.reap()}")
                self._in_time(until, f"{key}: its process does not look")
                time.sleep(0.0005)
        return {
            key: frozenset(
                path
                for path, place in self.place.items()
                if shared.could(self.prisoners[key].number) >> place & 1
            )
            for key in asked
        }

    def alarms(self) -> None:
        """See whether a prisoner opened what it was not given."""
        for prisoner in self.prisoners.values():
            if self.crew.page.count(prisoner.number, page.BREACHES):
                self._note_opens(prisoner)

    # ---- checking ---------------------------------------------------------------------------

    def listed(self) -> dict[Key, View]:
        """Give what ListBindings says."""
        call = self.one("ListBindings")
        if call.state == "lost" and self.struck_late():
            call = self.one("ListBindings")
        if call.state != "answered":
            self.fail(f"ListBindings: {call.state} {call.answer}")
        return {
            (b["job"], b["attempt"]): View(
                b["state"],
                frozenset(b["instances"]),
                frozenset(port["port"] for port in b["ports"]),
                next(iter(b["cgroup"].values()), ""),
            )
            for b in call.answer["bindings"]
        }

    def check(self) -> None:
        """Compare the node with what was promised; raise BrokenPromise."""
        self.tally.checks += 1
        self.alarms()
        listed: dict[Key, View] = {}

        def unsettled() -> list[str]:
            listed.clear()
            listed.update(self.listed())
            gone = {key for key in listed if key not in self.prisoners}
            return [
                f"{key} is {view.state} for ever"
                for key, view in listed.items()
                if view.state in ("releasing", "committed")
                or (view.state == "quarantined" and key in gone)
            ]

        self._until(unsettled, "")
        self._raise(self.model.settle(listed))
        for key, fact in [(key, fact) for key, facts in self.model.facts.items() for fact in facts]:
            if fact is not None:
                self.allow(key, frozenset() if fact.quarantined else fact.instances)
        for key in list(self.prisoners):
            if self.model.of(key) == {None}:
                self.free(key)
        # What the kernel frees, it frees a moment later.
        self._until(lambda: promises.faults(self.model, self._snapshot(listed), self.hardware), "")
        self.alarms()

    def _snapshot(self, listed: dict[Key, View]) -> promises.Snapshot:
        v2 = self.backend == "cgroup2"
        shared = v2 and not self.per_job
        anchors = kernel.anchors(self.home) if shared else []
        managed = stored = None
        if len(anchors) == 1:
            self._maps = anchors[0]
            managed, stored = kernel.maps(anchors[0])
        return promises.Snapshot(
            listed=listed,
            home=kernel.cgroups(self.home, v2=v2),
            named=kernel.cgroups(self.other, v2=v2),
            anchors=len(anchors) if shared else None,
            managed=managed,
            stored=stored,
            nodes=kernel.nodes(self._devices),
            opened=self.look(),
        )

    def _until(self, wrong: Any, prefix: str) -> None:
        """Wait until nothing is wrong; what still is after a while is a fault."""
        until = time.monotonic() + 15
        while found := wrong():
            if time.monotonic() > until:
                self._raise([prefix + one for one in found])
            time.sleep(0.005)

    def _raise(self, found: list[str]) -> None:
        if found:
            self.fail("\n".join(found))

    def fail(self, why: str) -> None:
        """Report a broken promise, with the story that led to it."""
        tail = "\n  ".join(self.story[-30:])
        log = self.crew.log.read_text("utf-8", "replace")[-3000:]
        raise BrokenPromise(
            f"{why}\non a node with {self.backend}, shape {self.shape}, {self.profile}"
            f"{', a program per job' if self.per_job else ''}\n  {tail}\nlog:\n{log}"
        )


def plain(parameters: dict[str, Any]) -> str:
    """Write a question down."""
    return json.dumps(parameters, sort_keys=True)
