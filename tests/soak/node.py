"""A node under test: real processes, real cgroups, real device nodes; and what its callers know.

One node lives for one history. `ask` puts questions to the agent, maybe while a blow falls on one
of its processes; `settle` starts again what has died; `check` compares the kernel with the model.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from soak import caller, kernel, promises
from soak.blow import Blow, Tally
from soak.caller import Call
from soak.crew import PATIENCE, Crew, remove_cgroup
from soak.prison import Prison
from soak.promises import Key, Model, View
from soak.services import Kind, Services
from soak.story import Story

PORTS = (21_700, 21_719)

LONG = 0.5
"""Seconds for which a blow is ready for what comes by itself."""

REPORTER = """[reporter]
program = ["/bin/echo", '{"instance": [{"id": "scope0", "type": "scope"}]}']
interval_seconds = 1
"""
"""What nobody asks for: but its runner is one more process that can die."""


class Node:
    """The node. What is wrong for longer than `patience` seconds is a broken promise."""

    def __init__(self, crew: Crew, tally: Tally, kind: Kind, *, patience: float = 15.0) -> None:
        self.tally = tally
        self.model = Model()
        self.story = Story(str(kind), crew.log, patience)
        self.home = crew.cgroups[kind.backend] / "jobs"
        self.other = crew.cgroups[kind.backend] / "named"
        self._crew = crew
        self._kind = kind
        self._maps: frozenset[int] = frozenset()
        self._folder = crew.folder / "node"
        self._devices = Path("/dev") / crew.name
        self.services = Services(crew, tally, self.story, kind, self._folder)
        self._prison: Prison | None = None

    # ---- life -------------------------------------------------------------------------------

    def open(self) -> None:
        """Start it, and read what hardware there is."""
        self.other.mkdir()
        self.services.open(
            f'[agent]\ncgroup_root = "{self.home}"\ncgroup_allowed_roots = ["{self.other}"]\n'
            f'[release]\nkill = "on-request"\nkill_grace_seconds = {self._kind.grace}\n'
            f'[ports]\nrange = "{PORTS[0]}-{PORTS[1]}"\n'
            f'[simulate]\ndevice_directory = "{self._devices}"\n'
            f"{REPORTER if self._kind.reported else ''}"
        )
        asked = self.one("GetInventory")
        if asked.state != "answered":
            self.story.fail(f"GetInventory: {asked.state} {asked.answer}")
        instances = [i for i in asked.answer["instances"] if i["provider"] == "simulated"]
        self.hardware = promises.Hardware(
            overlaps={i["id"]: frozenset(i.get("overlaps", ())) for i in instances},
            devices={
                i["id"]: frozenset(d["path"] for d in i.get("devices", ())) for i in instances
            },
            types={i["id"]: i["type"] for i in instances},
            nodes=kernel.nodes(self._devices),
            backend=self._kind.backend,
            per_job=self._kind.per_job,
        )
        self._prison = Prison(self._crew, self.tally, self.story, self.hardware)

    @property
    def prison(self) -> Prison:
        assert self._prison is not None
        return self._prison

    def stop(self) -> None:
        """End it as a service manager does, and see that nothing of it is left."""
        self.services.stop()
        self.story.until_right(self._left_over, "after the end: ")

    def _left_over(self) -> list[str]:
        left = [f"{path} is left" for path in (self.home, self._devices) if path.exists()]
        left += [f"process {pid} is left: {self._crew.about(pid)}" for pid in self._crew.living()]
        shared = self._kind.backend == "cgroup2" and not self._kind.per_job
        fenced = kernel.cgroups(self.other, v2=True) if shared else {}
        # What was left to its owner is fenced still, and keeps the maps.
        if shared and not any(cgroup.programs for cgroup in fenced.values()):
            left += [f"map {number} is left" for number in kernel.exists(self._maps)]
        return left

    def close(self) -> None:
        """Let go, whatever state this is in."""
        if self._prison is not None:
            self._prison.close()
        self.services.close()
        for path in (self.home, self.other):
            remove_cgroup(path)
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(self._devices, ignore_errors=True)

    def reboot(self) -> None:
        """What a power cut leaves: the disk. No process, no cgroup, no /run, no node in /dev."""
        self.story.note("reboot")
        self.tally.reboots += 1
        for key in self.prison.whose():
            self.prison.free(key)
        self.services.kill()
        self.prison.end_doomed()
        for path in (self.home, self.other):
            remove_cgroup(path)
        self.other.mkdir()
        shutil.rmtree(self._devices, ignore_errors=True)
        shutil.rmtree(self._folder / "run-helpers", ignore_errors=True)
        self.model.rebooted()
        self.services.reboot()

    # ---- questions --------------------------------------------------------------------------

    def call(self, method: str, **parameters: Any) -> Call:
        """Ask, and do not wait."""
        return Call(str(self.services.socket), method, parameters)

    def one(self, method: str, **parameters: Any) -> Call:
        """Ask one thing and wait for its answer."""
        call = self.call(method, **parameters)
        self.ask([call])
        return call

    def strike(self, blow: Blow, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Call]:
        """Ask while a blow falls, and wait for the answers."""
        self.services.arm(blow)
        made = [self.call(method, **parameters) for method, parameters in calls]
        self.ask(made, blow)
        self.services.disarm(blow)
        return made

    def strike_until(self, blow: Blow, done: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Have a blow ready until it has fallen, or all is done: say that of the bindings."""
        self.services.arm(blow)
        begun = time.monotonic()
        while not blow.fell_on and time.monotonic() < begun + LONG:
            call = self.call("ListBindings")
            self.ask([call], blow)
            self.services.tend(blow, begun)  # also where the answer was there at once
            if call.state != "answered" or done(call.answer["bindings"]):
                break
            time.sleep(0.001)
        self.services.disarm(blow)

    def ask(self, calls: list[Call], blow: Blow | None = None) -> None:
        """Wait until every call is answered or lost."""
        begun = time.monotonic()
        while not caller.wait(calls, 2):
            self.services.tend(blow, begun)
            if blow is None and time.monotonic() > begun + 0.5:
                self.services.struck_late()
            if self.services.ended:
                while not caller.wait(calls, 1000):
                    self.story.in_time(begun + PATIENCE, "a connection outlives the agent")
            self.story.in_time(begun + PATIENCE, f"no answer to {calls[0].method}")
        if blow is None:  # also where the answer was there at once
            self.services.tend(None, begun)
        for call in calls:
            name = f"{call.method} {call.code or call.state}"
            self.tally.answers[name] = self.tally.answers.get(name, 0) + 1
            if call.code == "internal":
                self.story.fail(f"a fault of the agent: {call.answer}")

    # ---- checking ---------------------------------------------------------------------------

    def listed(self) -> dict[Key, View]:
        """Give what ListBindings says."""
        before = self.services.late
        call = self.one("ListBindings")
        self.services.struck_late()
        if call.state == "lost" and self.services.late > before:
            call = self.one("ListBindings")
        if call.state != "answered":
            self.story.fail(f"ListBindings: {call.state} {call.answer}")
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
        self.prison.alarms()
        listed: dict[Key, View] = {}

        def unsettled() -> list[str]:
            listed.clear()
            listening = self.prison.listening()
            listed.update(
                (key, view)
                for key, view in self.listed().items()
                if not self.model.is_doubtful(key, view, listening)
            )
            return [
                f"{key} is {view.state} for ever"
                for key, view in listed.items()
                if view.state in ("releasing", "committed")
                or (view.state == "quarantined" and not self.prison.keeps(key))
            ] + self.prison.doomed()

        self.story.until_right(unsettled)
        self.story.fail_with(self.model.settle(listed))
        for key, facts in list(self.model.facts.items()):
            for fact in filter(None, facts):
                self.prison.allow(key, frozenset() if fact.quarantined else fact.instances)
        for key in self.prison.whose():
            if self.model.of(key) == {None}:
                self.prison.free(key)
        self.story.until_right(
            lambda: promises.faults(self.model, self._snapshot(listed), self.hardware)
        )
        self.prison.alarms()

    def _snapshot(self, listed: dict[Key, View]) -> promises.Snapshot:
        v2 = self._kind.backend == "cgroup2"
        shared = v2 and not self._kind.per_job
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
            sockets=self.prison.sockets(),
            nodes=kernel.nodes(self._devices),
            opened=self.prison.look(),
        )
