"""Prisoners: a process in each job's cgroup that tries every device, all the time."""

from __future__ import annotations

import signal
import time
from typing import NamedTuple

from soak import page
from soak.blow import Tally
from soak.crew import PATIENCE, Crew, Process
from soak.promises import Hardware, Held, Key
from soak.story import Story


class Prisoner(NamedTuple):
    """A process of a job, and its slot in the page."""

    process: Process
    number: int
    cgroup: str


class Prison:
    """The prisoners of a node."""

    def __init__(self, crew: Crew, tally: Tally, story: Story, hardware: Hardware) -> None:
        self._crew, self._tally, self._story = crew, tally, story
        self._hardware = hardware
        self._paths = sorted(hardware.nodes)
        self._place = {path: number for number, path in enumerate(self._paths)}
        self._slots = list(range(page.PRISONERS))
        self._inside: dict[Key, Prisoner] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._inside

    def inside(self) -> list[Key]:
        """Give whose processes there are."""
        return list(self._inside)

    def lock_up(self, key: Key, held: Held) -> None:
        """Start a process in a job's cgroup."""
        if key in self._inside or not self._slots:
            return
        number = self._slots.pop()
        self._crew.page.clear(number)
        self._crew.page.let(number, self._mask(held.instances))
        process = self._crew.start(
            "prisoner", number=number, cgroup=held.cgroup, backend=self._hardware.backend,
            paths=self._paths, log=str(self._crew.log),
        )  # fmt: skip
        self._inside[key] = Prisoner(process, number, held.cgroup)
        # On v1 it walks into the cgroup by itself, and must be in it before anything else happens.
        until = time.monotonic() + PATIENCE
        while not self._crew.page.count(number, page.SWEEPS) and not process.ended(0.0005):
            self._story.in_time(until, f"{key}: its process does not begin")

    def free(self, key: Key) -> None:
        """End a job's process."""
        prisoner = self._inside.pop(key, None)
        if prisoner is not None:
            code = prisoner.process.kill()
            self._slots.append(prisoner.number)
            sweeps = self._crew.page.count(prisoner.number, page.SWEEPS)
            self._tally.opens += sweeps * len(self._paths)
            self._alarm(prisoner)
            if code != -signal.SIGKILL:
                self._story.fail(f"{key}: its process ended with {code}")

    def close(self) -> None:
        """End all of them, whatever they saw."""
        while self._inside:
            self._inside.popitem()[1].process.kill()

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
                    self._story.fail(f"{key}: its process ended with {one.process.reap()}")
                self._story.in_time(until, f"{key}: its process does not look")
                time.sleep(0.0005)
        could = {key: shared.could(self._inside[key].number) for key in asked}
        return {
            key: frozenset(path for path, place in self._place.items() if mask >> place & 1)
            for key, mask in could.items()
        }

    def alarms(self) -> None:
        """See whether anybody opened what he was not given."""
        for prisoner in self._inside.values():
            self._alarm(prisoner)

    def _alarm(self, prisoner: Prisoner) -> None:
        if self._crew.page.count(prisoner.number, page.BREACHES):
            path = self._paths[self._crew.page.count(prisoner.number, page.BREACH)]
            self._story.fail(
                f"a process in {prisoner.cgroup} opened {path}, which it was not given"
            )
