"""Prisoners: a process in each job's cgroup that tries every device, all the time.

Some ignore SIGTERM, and some listen on a port of their job. None may be ended by anybody but us:
only who is condemned may be, and who is doomed must be.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from soak import page
from soak.blow import Tally
from soak.crew import PATIENCE, Crew, Process
from soak.promises import Hardware, Held, Key
from soak.story import Story

RESTLESS = 3
"""Of so many slots, one is of a process that tries to open devices without a pause."""


class Prisoner(NamedTuple):
    """A process of a job, its slot in the page, and the port that it listens on, or 0."""

    process: Process
    number: int
    cgroup: str
    inode: int
    port: int = 0


class Prison:
    """The prisoners of a node."""

    def __init__(self, crew: Crew, tally: Tally, story: Story, hardware: Hardware) -> None:
        self._crew, self._tally, self._story = crew, tally, story
        self._hardware = hardware
        self._paths = sorted(hardware.nodes)
        self._place = {path: number for number, path in enumerate(self._paths)}
        self._slots = list(range(page.PRISONERS))
        self._inside: dict[Key, Prisoner] = {}
        self._outside: dict[Key, Prisoner] = {}
        self._condemned: set[Key] = set()
        self._doomed: list[Prisoner] = []

    def __contains__(self, key: Key) -> bool:
        return key in self._inside or key in self._outside

    def keeps(self, key: Key) -> bool:
        """Say whether a job's process stays until we end it, so that its job is never clean."""
        return key in self and key not in self._condemned

    def whose(self) -> list[Key]:
        """Give whose processes there are, in their cgroups and outside."""
        return [*self._inside, *self._outside]

    def is_outside(self, key: Key) -> bool:
        """Say whether a job's process has left its cgroup."""
        return key in self._outside

    def listening(self) -> frozenset[int]:
        """Give the ports on which processes listen that have left their job's cgroup."""
        return frozenset(one.port for one in self._outside.values() if one.port)

    def sockets(self) -> frozenset[int]:
        """Give the cgroups of which a process is outside now, with its sockets."""
        return frozenset(prisoner.inode for prisoner in self._outside.values())

    def lock_up(
        self, key: Key, held: Held, *, stubborn: bool = False, port: int = 0,
        join: Callable[[int], bool] | None = None,
    ) -> None:  # fmt: skip
        """Start a process in a job's cgroup; with `join`, outside, and that is to move it there.

        `join` gets the pid, and says whether it is inside then.
        """
        if key in self or not self._slots:
            return
        number = self._slots.pop()
        self._crew.page.clear(number)
        mask = self._mask(held.instances)
        self._crew.page.let(number, (1 << len(self._paths)) - 1 if join else mask)
        process = self._crew.start(
            "prisoner", number=number, cgroup=held.cgroup, backend=self._hardware.backend,
            paths=self._paths, log=str(self._crew.log), stubborn=stubborn, inside=join is None,
            ports=[port] if port else [], restless=number % RESTLESS == 0,
        )  # fmt: skip
        prisoner = Prisoner(process, number, held.cgroup, os.stat(held.cgroup).st_ino, port)
        if join is None:
            self._inside[key] = prisoner
        # On v1 it walks into the cgroup by itself, and must be in it before anything else happens.
        until = time.monotonic() + PATIENCE
        while not self._crew.page.count(number, page.SWEEPS) and not process.ended(0.0005):
            self._story.in_time(until, f"{key}: its process does not begin")
        if join is not None:
            self._outside[key] = prisoner  # so that it is ended, whatever comes
            if join(process.pid):
                self._crew.page.let(number, mask)
                self._inside[key] = self._outside.pop(key)
            else:
                self.free(key)

    def free(self, key: Key) -> None:
        """End a job's process."""
        prisoner = self._inside.pop(key, None) or self._outside.pop(key, None)
        if prisoner is not None:
            if prisoner.process.ended() and key not in self._condemned:
                self._story.fail(f"{key}: its process ended with {prisoner.process.reap()}")
            self._condemned.discard(key)
            self._bury(prisoner)

    def _bury(self, prisoner: Prisoner) -> None:
        code = prisoner.process.kill()
        self._slots.append(prisoner.number)
        sweeps = self._crew.page.count(prisoner.number, page.SWEEPS)
        self._tally.opens += sweeps * len(self._paths)
        self._alarm(prisoner)
        if code not in (-signal.SIGKILL, -signal.SIGTERM):
            self._story.fail(f"a process in {prisoner.cgroup} ended with {code}")

    def close(self) -> None:
        """End all of them, whatever they saw."""
        every = [*self._inside.values(), *self._outside.values(), *self._doomed]
        self._inside.clear()
        self._outside.clear()
        self._doomed.clear()
        for prisoner in every:
            prisoner.process.kill()

    # ---- who leaves, and who is ended by others ----------------------------------------------

    def escape(self, key: Key) -> None:
        """Move a job's process out of its cgroup, as root may; it may open what it likes then."""
        prisoner = self._inside.pop(key)
        self._crew.page.let(prisoner.number, (1 << len(self._paths)) - 1)
        name = self._hardware.backend
        top = self._crew.own if name == "cgroup2" else self._crew.cgroups[name]
        (top / "cgroup.procs").write_text(str(prisoner.process.pid), "ascii")
        self._outside[key] = prisoner

    def condemn(self, key: Key) -> None:
        """From now on a job's process may be ended, if it is in the job's cgroup."""
        if key in self._inside:
            self._condemned.add(key)

    def pardon(self, key: Key) -> None:
        """It may not be any more."""
        self._condemned.discard(key)

    def doom(self, key: Key) -> None:
        """It must be ended, and by itself; the job may have another one."""
        self._condemned.discard(key)
        if prisoner := self._inside.pop(key, None):
            self._crew.page.let(prisoner.number, 0)
            self._doomed.append(prisoner)

    def doomed(self) -> list[str]:
        """Give who should have been ended and is not."""
        ended = [one for one in self._doomed if one.process.ended()]
        self._doomed = [one for one in self._doomed if not one.process.ended()]
        for one in ended:
            self._bury(one)
        return [f"process {one.process.pid} in {one.cgroup} is not ended" for one in self._doomed]

    def end_doomed(self) -> None:
        """End them ourselves: nobody is there any more who would."""
        while self._doomed:
            self._bury(self._doomed.pop())

    def allow(self, key: Key, instances: frozenset[str]) -> None:
        """Say what a job may open from now on; while no answer is there, all that may be."""
        if prisoner := self._inside.get(key):
            self._crew.page.let(prisoner.number, self._mask(instances))

    def _mask(self, instances: frozenset[str]) -> int:
        return sum(1 << self._place[path] for path in self._hardware.granted(instances))

    def look(self) -> dict[Key, frozenset[str]]:
        """Have every prisoner try every device once, from now on; give what they could open."""
        shared = self._crew.page
        asked = {key: shared.ask(one.number) for key, one in self._inside.items()}
        until = time.monotonic() + PATIENCE
        for key, number in asked.items():
            one = self._inside[key]
            while not shared.looked(one.number, number):
                if one.process.ended():
                    if key in self._condemned:
                        break
                    self._story.fail(f"{key}: its process ended with {one.process.reap()}")
                self._story.in_time(until, f"{key}: its process does not look")
                time.sleep(0.0005)
        could = {
            key: shared.could(self._inside[key].number)
            for key in asked
            if key not in self._condemned
        }
        return {
            key: frozenset(path for path, place in self._place.items() if mask >> place & 1)
            for key, mask in could.items()
        }

    def alarms(self) -> None:
        """See whether anybody opened what he was not given."""
        for prisoner in (*self._inside.values(), *self._outside.values(), *self._doomed):
            self._alarm(prisoner)

    def _alarm(self, prisoner: Prisoner) -> None:
        if self._crew.page.count(prisoner.number, page.BREACHES):
            path = self._paths[self._crew.page.count(prisoner.number, page.BREACH)]
            self._story.fail(
                f"a process in {prisoner.cgroup} opened {path}, which it was not given"
            )
