"""The table of points, and what is given for a promise kept and broken."""

from __future__ import annotations

import inspect
import io
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console
from soak import missed, page, points, promises, run
from soak.__main__ import verdict
from soak.aim import Aim, Dice
from soak.blow import Tally
from soak.missed import ENOUGH, NEVER, is_come_to
from soak.page import Page
from soak.promises import Cgroup, Hardware, Held, Model, Snapshot, View

import xce_nodeagent

PRODUCT = pathlib.Path(inspect.getfile(xce_nodeagent)).parent
JOB, OTHER = ("1", "a"), ("2", "a")
HARDWARE = Hardware(
    overlaps={"gpu": frozenset({"mig"}), "mig": frozenset({"gpu"}), "nic": frozenset()},
    devices={"gpu": frozenset({"/d/gpu"}), "mig": frozenset({"/d/gpu"}), "nic": frozenset()},
    types={"gpu": "gpu", "mig": "mig", "nic": "nic"},
    nodes={"/d/gpu": (60, 0), "/d/nvidiactl": (60, 255)},
    backend="cgroup2",
    per_job=False,
)
HELD = Held(frozenset({"gpu"}), frozenset(), 0, "/home/job-1")
FENCE = ("xce_fence", frozenset({1, 2}))
CGROUP = Cgroup("1\na", (FENCE,), 7)
VIEW = View("bound", frozenset({"gpu"}), frozenset(), "/home/job-1")
SEEN = Snapshot(
    listed={JOB: VIEW},
    home={"/home/job-1": CGROUP},
    named={},
    anchors=1,
    managed=frozenset({"60:0", "60:255"}),
    stored=frozenset({7}),
    sockets=frozenset(),
    nodes=HARDWARE.nodes,
    opened={JOB: frozenset({"/d/gpu", "/d/nvidiactl"})},
)


def test_a_point_that_is_not_there_any_more_is_told_at_once(monkeypatch):
    shared, _ = Page.make()
    gone = points.Point(999, "agent", "before", "xce_nodeagent.binding.ledger:Ledger.gone", "")
    monkeypatch.setattr(points, "POINTS", (gone,))
    with pytest.raises(LookupError, match=r"Ledger\.gone"):
        points.install(points.Hit(shared))


def test_the_product_has_nothing_of_the_points():
    for path in PRODUCT.rglob("*.py"):
        assert "soak" not in path.read_text("utf-8"), path


def test_a_node_that_is_as_promised_has_no_fault():
    assert promises.faults(Model(facts={JOB: {HELD}}), SEEN, HARDWARE) == []


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("is gone", {"home": {}}),
        ("is left over", {"home": {"/home/job-1": CGROUP, "/home/job-2": CGROUP}}),
        ("its mark", {"home": {"/home/job-1": CGROUP._replace(mark="2\na")}}),
        ("has the programs", {"home": {"/home/job-1": CGROUP._replace(programs=())}}),
        ("has the programs", {"home": {"/home/job-1": CGROUP._replace(programs=(FENCE,) * 2)}}),
        ("without a grant", {"opened": {JOB: frozenset({"/d/gpu", "/d/nvidiactl", "/d/x"})}}),
        ("cannot open", {"opened": {JOB: frozenset({"/d/gpu"})}}),
        ("anchors", {"anchors": 2}),
        ("managed devices", {"managed": frozenset({"60:0"})}),
        ("grants are left", {"stored": frozenset({7, 8})}),
        ("device nodes", {"nodes": {"/d/gpu": (60, 0)}}),
    ],
)
def test_what_the_kernel_has_wrong_is_a_fault(what, changes):
    found = promises.faults(Model(facts={JOB: {HELD}}), SEEN._replace(**changes), HARDWARE)
    assert any(what in one for one in found), found


def test_overlapping_instances_of_two_jobs_are_a_fault():
    answer = {"instances": ["mig"], "cgroup": {"v2": "/home/job-2"}}
    (found,) = Model(facts={JOB: {HELD}}).prepared(OTHER, answer, HARDWARE)
    assert "both hold" in found


def test_an_attempt_whose_release_was_acknowledged_must_not_come_back():
    answer = {"instances": ["gpu"], "cgroup": {"v2": "/home/job-1"}}
    (found,) = Model(dead={JOB}).prepared(JOB, answer, HARDWARE)
    assert "released attempt" in found


@pytest.mark.parametrize(
    ("lost", "state", "listening", "doubtful"),
    [
        (True, "quarantined", {21_700}, True),
        (False, "quarantined", {21_700}, False),
        (True, "bound", {21_700}, False),
        (True, "quarantined", {21_701}, False),
        (True, "quarantined", set(), False),
    ],
)
def test_only_a_lost_ledger_brings_back_what_ended_while_somebody_listens_on_its_port(
    lost, state, listening, doubtful
):
    view = VIEW._replace(state=state, ports=frozenset({21_700}))
    model = Model(ledger_was_lost=lost)
    assert model.is_doubtful(JOB, view, frozenset(listening)) is doubtful
    held = Model(facts={JOB: {HELD}}, ledger_was_lost=True)
    assert not held.is_doubtful(JOB, view, frozenset({21_700}))


def test_without_an_answer_both_are_right_and_nothing_between_them():
    wanted = Held(frozenset({"gpu", "nic"}), frozenset(), 0, "/home/job-1")
    for listed, faults in (
        ({}, 0),
        ({JOB: VIEW._replace(instances=frozenset({"gpu", "nic"}))}, 0),
        ({JOB: VIEW}, 1),
        ({OTHER: VIEW}, 1),
    ):
        assert len(Model(facts={JOB: {None, wanted}}).settle(listed)) == faults, listed


def test_an_open_is_judged_by_what_was_so_all_the_while():
    shared, _ = Page.make()
    number, place = 5, 40

    def count() -> int:
        return shared.count(number, page.LET)

    shared.let(number, 1 << 3)
    before = count()
    assert shared.is_breach(number, place, before)
    assert not shared.is_breach(number, 3, before)
    shared.let(number, 1 << 3)  # said again, it changes nothing, and hides nothing
    assert shared.is_breach(number, place, before)
    shared.let(number, 1 << place)  # given between the open and the look
    assert not shared.is_breach(number, place, before)
    before = count()
    shared.let(number, 0)  # taken
    assert not shared.is_breach(number, place, before)
    assert shared.is_breach(number, place, count())


def test_an_open_in_the_middle_of_a_change_is_not_judged():
    """One goes on being open, one is taken; whichever word is written last before the look."""
    shared, _ = Page.make()
    number, taken, kept = 5, 3, 250
    old, new = 1 << taken | 1 << kept, 1 << 40 | 1 << kept
    seen = []

    class Words:
        """The words of the page; before each that is written, and after it, it is looked."""

        def __getitem__(self, at):
            return words[at]

        def __setitem__(self, at, value):
            look()
            words[at] = value
            look()

    def look():
        now = shared.count(number, page.LET)
        seen.append(shared.is_breach(number, taken, before))
        seen.extend(shared.is_breach(number, kept, let) for let in (before, now))

    words = shared.words
    shared.let(number, old)
    before = shared.count(number, page.LET)
    shared.words = Words()
    shared.let(number, new)
    assert len(seen) > 20
    assert not any(seen)
    assert shared.is_breach(number, taken, shared.count(number, page.LET))


def long_run():
    """Count a run that was long enough, and hit everything but what no run comes to."""
    crashes = {(role, "point"): ENOUGH // len(page.ROLES) + 1 for role in page.ROLES}
    hit = {point.number: 1 for point in points.POINTS if is_come_to(point)}
    return Tally(crashes=crashes, points=hit)


def judged(tally, faults=0, *, stopped=False):
    said = io.StringIO()
    status = verdict(Console(file=said, width=200), tally, faults, stopped=stopped)
    return status, said.getvalue().splitlines()


def test_every_point_that_may_be_left_out_is_one():
    there = {
        (side, name)
        for side, name in NEVER
        for point in points.POINTS
        if point.side == side and point.name.endswith(name)
    }
    assert there == NEVER.keys()
    left_out = [point for point in points.POINTS if not is_come_to(point)]
    assert {point.role for point in left_out} <= set(page.ROLES) - {"agent", "supervisor"}


def test_a_long_run_that_left_nothing_out_is_well():
    assert judged(long_run()) == (0, [])
    assert judged(long_run(), 1) == (1, [])


def test_a_long_run_that_left_a_point_out_says_so_and_fails():
    tally = long_run()
    point = points.at("agent", "join")[0]
    del tally.points[point.number]
    status, (line,) = judged(tally)
    assert status == 1
    assert line == f"after {tally.crashed} crashes the agent was never hit {point}"


def test_a_long_run_that_left_a_role_out_says_so_and_fails():
    tally = long_run()
    tally.crashes["agent", "line"] = tally.crashes.pop(("runner", "point"))
    assert judged(tally) == (1, [f"after {tally.crashed} crashes the runner was never hit"])


def test_a_run_that_was_short_or_was_stopped_may_leave_out_what_it_likes():
    tally = long_run()
    tally.points.clear()
    assert judged(tally, stopped=True) == (130, [])
    tally.crashes = {("agent", "point"): ENOUGH - 1}
    assert judged(tally) == (0, [])


class Even(random.Random):
    """Chance that always falls in the middle: for a point whose turn it is, and for no stop."""

    def random(self):
        return 0.4


@pytest.mark.parametrize("of", sorted(frozenset().union(*(p.of for p in points.POINTS))))
def test_every_point_of_a_work_has_its_turn(of):
    some = [point.number for point in points.POINTS if of in point.of]
    aim = Aim(Dice(Even()), 1.0, turn := len(some) // 3)
    assert [aim.at(of).point for _ in some] == some[turn:] + some[:turn]


def test_what_was_left_out_comes_first():
    tally = long_run()
    for number in (
        left := {points.at("agent", "join")[0].number, points.at("binder", "kill")[0].number}
    ):
        del tally.points[number]
    aim = Aim(Dice(Even()), 1.0, wanted=missed.points(tally))
    assert {aim.at(of).point for of in ("join", "kill") for _ in range(5)} == left


@pytest.mark.needs("root", "cgroup2", "bpf")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing(number):
    process = subprocess.Popen(
        [sys.executable, "-m", "soak", "--seconds", "60"],
        env={"PYTHONPATH": str(pathlib.Path(__file__).parents[1]), "TERM": "dumb"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    name = f"xce-soak-{process.pid}-*"
    cgroup2 = run.mounts()["cgroup2"]
    until = time.monotonic() + 60
    while not list(pathlib.Path("/dev").glob(name)):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said.decode()
    assert b"crashes injected" in said
    for folder in (cgroup2, pathlib.Path("/dev"), pathlib.Path("/dev/shm")):  # noqa: S108  # looks only
        assert not list(folder.glob(name))
