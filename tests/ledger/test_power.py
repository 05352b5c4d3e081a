"""What is acknowledged outlives a cut of the power: it is on the disk, not only in the page cache.

The agents are real. What they do to their disk is recorded, and disk.py says what a disk surely
has after that; a SIGKILL would prove nothing, for the kernel still writes what was left to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from agent.reboot import shut_down
from agent.running import Refused, serving
from ledger.disk import Disk, Done, Recorded, built

from xce_nodeagent.binding.ledger import Ledger

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf", "cc")

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()

NO_SYNC = """
import sqlite3
class Lazy(sqlite3.Connection):
    def execute(self, text, *values):
        return super().execute(text.replace("synchronous=FULL", "synchronous={}"), *values)
plain = sqlite3.connect
sqlite3.connect = lambda *a, **k: plain(*a, factory=Lazy, **k)
"""
PLANTS = {
    "": "",
    "SQLite never syncs": NO_SYNC.format("OFF"),
    "SQLite syncs in checkpoints": NO_SYNC.format("NORMAL"),
    "no folder is synced": """
from xce_nodeagent.binding import aside, database, store
for module in (aside, database, store):
    module.sync_folder = lambda path: None
""",
    "nothing is synced by us": """
from xce_nodeagent.binding import database, store
from xce_nodeagent.host import durable
for module in (database, store, durable):
    module.sync_file = lambda path: None
""",
}
"""Faults for the process of an agent, by name: see `plant`."""

START = """
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.cli.main import main
Ledger.__init__.__kwdefaults__["log_bytes"] = 1 << 18
main()
"""
"""An agent with a smaller log: the 16 MiB would be read for every cut, and say no more."""


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder where a sync costs nothing, if there is one."""
    where = Path("/dev/shm")  # noqa: S108  # a folder of our own is made in it
    with tempfile.TemporaryDirectory(dir=where if os.access(where, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorder, where every user can load it."""
    return built(tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def plant() -> str:
    """The fault that the agent has: none, unless a test is about one."""
    return ""


@pytest.fixture
def agent(cgroup2_mount: Path, library: Path, memory: Path, plant: str) -> Iterator[Any]:
    """An agent whose disk is recorded from the first file on."""

    def recorded(*places: Path) -> Recorded:
        running = Recorded(library, memory, *places)
        running.extra = '[release]\nkill = "on-request"\n'
        running.program = ["-P", "-c", f"{PLANTS[plant]}\n{START}"]
        return running

    with serving(cgroup2_mount, recorded) as running:
        yield running


def uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def cards(agent: Any) -> list[str]:
    return [instance["id"] for instance in agent.instances("gpu")]


class Kept(NamedTuple):
    """What a folder with a ledger says."""

    bound: dict[str, set[str]]
    drained: set[str]
    over: set[str]
    doubted: bool


def events(folder: Path) -> tuple[list[tuple[str, str]], int]:
    """Read a ledger as SQLite sees it: the kind and the subject of each event, the generation."""
    try:
        with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as db:
            rows = db.execute("SELECT body FROM events ORDER BY seq").fetchall()
            number = db.execute("SELECT value FROM meta WHERE key='generation'").fetchone()
    except sqlite3.Error:
        return [], 0
    bodies = [json.loads(body) for (body,) in rows]
    return [(body["type"], body.get("job") or body["id"]) for body in bodies], int(
        number[0] if number else 0
    )


def kept(folder: Path) -> Kept:
    """Open the ledger in a folder as an agent would."""
    path = folder / "ledger.db"
    ledger = Ledger(path, BOOT, time.time, uptime=uptime, log_bytes=0, reserve_bytes=0)
    with contextlib.closing(ledger):
        live = ledger.book.live.values()
        return Kept(
            {one.job: set(one.instances) for one in live if one.state in ("committed", "bound")},
            set(ledger.book.drained),
            {one.job for one in live if one.state in ("releasing", "quarantined")}
            | {job for job, _ in ledger.book.over},
            ledger.doubted,
        )


class Told:
    """What an agent acknowledged. After each answer the power is cut, and the disk looked at."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.bound: dict[str, set[str]] = {}
        self.drained: set[str] = set()
        self.over: set[str] = set()
        self._events = 0

    def prepare(self, job: str, card: str, event: str = "committed", **more: Any) -> dict[str, Any]:
        self.bound.setdefault(job, set()).add(card)
        return self._say("Prepare", event, job=job, attempt="1", instances=[card], **more)

    def shrink(self, job: str, card: str) -> None:
        self.bound[job].remove(card)
        self._say("Release", "changed", job=job, attempt="1", instances=[card])

    def release(self, job: str, **more: Any) -> dict[str, Any]:
        del self.bound[job]
        self.over.add(job)
        return self._say("Release", "release_intended", job=job, attempt="1", **more)

    def drain(self, card: str) -> None:
        self.drained.add(card)
        self._say("Drain", "drained", id=card, reason="fan")

    def undrain(self, card: str) -> None:
        self.drained.remove(card)
        self._say("Undrain", "undrained", id=card)

    def inventory(self) -> None:
        told = self.agent.call("GetInventory")["generation"]
        number = events(self.agent.cut())[1]
        assert number >= int(told.rpartition(":")[2]), f"{told} was told, {number} is on the disk"

    def _say(self, method: str, event: str, **what: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.agent.call(method, **what)
        on_disk, _ = events(self.agent.cut())
        fresh, subject = on_disk[self._events :], what.get("job") or what["id"]
        self._events = len(on_disk)
        assert (event, subject) in fresh, f"{event} of {subject} is not on the disk: {fresh}"
        found = kept(self.agent.cut())
        assert (found.bound, found.drained, found.over) == (self.bound, self.drained, self.over)
        assert not found.doubted
        return answer


def history(agent: Any, in_job: Any) -> Told:
    """Have a bit of everything acknowledged."""
    one, two, three, four, *_, last = cards(agent)
    told = Told(agent)
    told.inventory()
    told.prepare("a", one)
    told.prepare("a", two, "changed", add=True)
    told.shrink("a", one)
    told.drain(last)
    told.inventory()
    told.prepare("b", three)
    told.release("b")
    cgroup = told.prepare("c", four)["cgroup"]["v2"]
    assert in_job(cgroup).opens("/dev/null") == "open"  # it is in there now
    assert told.release("c", kill="term-then-kill")["killing"]
    told.undrain(last)
    told.inventory()
    told.drain(four)
    return told


def covered(agent: Any) -> int:
    """Count the answers of Prepare and Release; fail where one came before the log was synced."""
    answers = [one for one in agent.answers if b'"env"' in one.data or b'"released"' in one.data]
    early = [one.data[:99] for one in answers if one.unsynced]
    assert not early, f"answered before the log was synced: {early}"
    return len(answers)


def test_what_is_acknowledged_is_on_the_disk_when_the_answer_comes(agent, in_job):
    history(agent, in_job)
    assert covered(agent) == 7
    agent.kill()
    agent.cut()
    assert agent.disk.lacks(agent.state) == [], "the record is not whole"


@pytest.mark.parametrize("plant", [plant for plant in PLANTS if plant])
def test_what_is_not_synced_would_be_found(agent, in_job, plant):
    with pytest.raises(AssertionError, match="on the disk"):
        history(agent, in_job)
    with contextlib.suppress(Refused):
        agent.call("Prepare", job="z", attempt="1", instances=[])
    agent.cut()
    if plant.startswith("SQLite"):
        with pytest.raises(AssertionError, match="before the log was synced"):
            covered(agent)


def test_after_a_cut_every_acknowledged_thing_is_there(agent, in_job, refused):
    told = history(agent, in_job)
    for boot in ("the same", "another"):
        # Jobs outlive an agent, and only it; the disk is what a cut leaves in both cases.
        agent.kill() if boot == "the same" else shut_down(agent)
        agent.put_back()
        agent.start()
        assert {i["id"] for i in agent.instances("gpu") if i["drained"]} == told.drained
        for job in told.over:
            with pytest.raises(refused, match=r"was released|is being released"):
                agent.call("Prepare", job=job, attempt="1", instances=[])
        views = {v["job"]: set(v["instances"]) for v in agent.call("ListBindings")["bindings"]}
        # Its cgroup went with its boot, and it with its cgroup.
        expected = told.bound if boot == "the same" else {}
        assert {job: views[job] for job in views.keys() - told.over} == expected
        (check,) = (c for c in agent.call("Doctor")["checks"] if c["name"] == "ledger")
        assert check["state"] == "ok", check["text"]


def test_a_ledger_that_was_closed_is_on_the_disk_when_it_is_written_to_again(agent):
    one, two, *_ = cards(agent)
    told = Told(agent)
    told.drain(one)
    agent.stop()  # the log goes, and the next start makes another
    agent.start()
    told.prepare("a", two)


def harm(log: Path) -> None:
    """Damage a log in its middle, but none of the events."""
    content = bytearray(log.read_bytes())
    # The page with this event comes a second time, with the next one.
    at = content.index(b'"job":"b"')
    content[at : at + 8] = b"rubbish!"
    log.write_bytes(content)


def cut_everywhere(agent: Any, folder: Path, bound: Any, drained: set[str]) -> int:
    """Look at whatever a cut may have left since the disk was looked at last; count the ways."""
    ways = 0
    for done in agent.done():
        for names in agent.disk.possible("ledger.db") if done.kind not in "wt" else ():
            agent.disk.lay(names, folder)
            found = kept(folder)
            assert (found.bound, found.drained) == (bound, drained), f"lost with {sorted(names)}"
            ways += 1
    return ways


def test_a_first_start_that_is_cut_short_leaves_what_another_can_start_with(agent, memory):
    assert cut_everywhere(agent, memory, {}, set()) > 20
    assert not kept(agent.cut()).doubted


def written_anew(agent: Any, folder: Path) -> int:
    """Have an agent write its ledger anew, and look at whatever a cut may leave; count the ways."""
    one, two, three, four, *_ = cards(agent)
    bound = {"a": {two}, "b": {three}, "c": {four}}
    agent.call("Drain", id=one, reason="fan")
    for job, held in bound.items():
        agent.call("Prepare", job=job, attempt="1", instances=list(held))
        if job == "a":
            agent.stop()  # the log is folded in, and has only the others then
            agent.start()
    agent.kill()
    agent.cut()
    harm(agent.state / "ledger.db-wal")
    agent.disk = Disk(agent.state)
    agent.start()
    ways = cut_everywhere(agent, folder, bound, {one})
    assert any(name.startswith("ledger.db.damaged-") for name in agent.disk.sure)
    return ways


def test_a_ledger_that_is_written_anew_is_whole_whenever_the_power_is_cut(agent, memory):
    assert written_anew(agent, memory) > 50


@pytest.mark.parametrize("plant", ["no folder is synced"])
def test_a_ledger_that_is_not_whole_in_between_would_be_found(agent, memory, plant):
    with pytest.raises(AssertionError, match="lost with"):
        written_anew(agent, memory)


def test_a_ledger_that_is_lost_under_its_agent_is_on_the_disk_with_the_next_answer(agent):
    one, two, *_ = cards(agent)
    agent.call("Prepare", job="a", attempt="1", instances=[one])
    agent.cut()
    (agent.state / "ledger.db").unlink()
    agent.disk.take(Done("u", 0, 0, b"ledger.db", b""))
    agent.call("Prepare", job="b", attempt="1", instances=[two])
    assert kept(agent.cut()).bound == {"a": {one}, "b": {two}}
