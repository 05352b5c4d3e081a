"""Ending what outlives its job: in its own cgroup alone, where it may be, and when it was asked."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("root", "cgroup1", "cgroup2", "bpf")

ON_REQUEST = '[release]\nkill = "on-request"\nkill_grace_seconds = 1'
ALWAYS = '[release]\nkill = "term-then-kill"\nkill_grace_seconds = 1'
KILL = "term-then-kill"
HOOK = Path(__file__).parents[2] / "hooks" / "release"


def status(pid):
    """Give the capability sets and the filter of a process, as the kernel shows them."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def helper(name, agent):
    """Give the pid of an agent's helper that serves."""
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (process / "comm").read_text() == f"xce-{name}\n":
                env = (process / "environ").read_bytes()
                if str(agent.folder).encode() in env:
                    yield int(process.name)


def gone(pid):
    """Say whether a process is gone, or a zombie."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text("ascii")
    except OSError:
        return True


def test_what_is_left_is_told_to_end_and_then_made_to(serving, process, eventually):
    site = serving(ON_REQUEST)
    cgroup = site.prepare("1", 0)
    inside = os.path.join(cgroup, "deep")
    os.mkdir(inside)
    polite, stubborn = process(cgroup, 12345), process(inside, 12346)
    stubborn.does("ignore")
    released = site.call("Release", job="1", attempt="1", kill=KILL)
    assert (released["clean"], released["killing"]) == (False, True)
    assert {one["pid"] for one in released["holders"]} == {polite.pid, stubborn.pid}
    assert polite.ended() == -signal.SIGTERM
    assert stubborn.ended() == -signal.SIGKILL
    eventually(lambda: not site.bindings())
    assert not os.path.exists(cgroup)
    site.prepare("2", 0)


def test_nobody_is_ended_unless_that_is_asked_for(serving, process):
    site = serving(ON_REQUEST)
    worker = process(site.prepare("1", 0))
    assert site.call("Release", job="1", attempt="1")["killing"] is False
    site.settled()
    assert worker.lives
    # It can be asked for later, too.
    assert site.call("Release", job="1", attempt="1", kill=KILL)["killing"] is True
    assert worker.ended() == -signal.SIGTERM


def test_where_the_configuration_ends_nobody_it_is_released_and_nobody_is_ended(site, process):
    worker = process(site.prepare("1", 0))
    assert worker.does("open", site.nodes[0])
    released = site.call("Release", job="1", attempt="1", kill=KILL)
    assert "[release] kill" in released["not_killed"]
    assert (released["released"], released["killing"]) == (True, False)
    assert [one["pid"] for one in released["holders"]] == [worker.pid]
    assert site.bindings()["1:1"]["state"] == "quarantined"
    site.settled()
    assert worker.lives
    assert not site.call("Release", job="1", attempt="1")["not_killed"]


def test_with_the_policy_every_release_ends_what_is_left(serving, process, eventually):
    site = serving(ALWAYS)
    one, other = process(site.prepare("1", 0)), process(site.prepare("2", 1))
    assert site.call("Release", job="2", attempt="1", kill="none")["killing"] is False
    assert site.call("Reconcile", jobs=[])["unclean"] == [{"job": "1", "attempt": "1"}]
    assert one.ended() == -signal.SIGTERM
    eventually(lambda: list(site.bindings()) == ["2:1"])
    assert other.lives


def test_the_same_user_beside_the_job_and_who_left_it_live_on(
    serving, process, outside, eventually
):
    site = serving(ON_REQUEST)
    cgroup = site.prepare("1", 0)
    inside = process(cgroup, 12345)
    beside, other_job = process(uid=12345), process(site.prepare("2", 1), 12345)
    left = process(cgroup, 12345)
    left.does("open", site.nodes[0])
    (outside / "cgroup.procs").write_text(str(left.pid), "ascii")
    site.call("Release", job="1", attempt="1", kill=KILL)
    assert inside.ended() == -signal.SIGTERM
    # It is reported, and not ended.
    eventually(lambda: site.left("1:1") == [left.pid])
    site.call("Release", job="1", attempt="1", kill=KILL)
    site.settled()
    assert beside.lives
    assert other_job.lives
    assert left.lives


@pytest.mark.parametrize("what", ["agent", "helpers"])
def test_it_goes_on_after_a_restart(serving, process, eventually, what):
    site = serving('[release]\nkill = "on-request"\nkill_grace_seconds = 3')
    stubborn = process(site.prepare("1", 0))
    stubborn.does("ignore")
    assert site.call("Release", job="1", attempt="1", kill=KILL)["killing"] is True
    if what == "agent":
        site.agent.kill()
        site.agent.start()
    else:
        for name in ("binder", "witness"):
            for pid in helper(name, site.agent):
                os.kill(pid, signal.SIGKILL)
    assert stubborn.lives
    assert stubborn.ended() == -signal.SIGKILL
    eventually(lambda: not site.bindings())


def test_a_zombie_is_nobody(serving, process, eventually, outside):
    """Its parent is outside and does not wait for it: it has nothing open any more."""
    site = serving(ON_REQUEST)
    cgroup = site.prepare("1", 0)
    parent = process(cgroup)
    zombie = int(parent.does("zombie"))
    (outside / "cgroup.procs").write_text(str(parent.pid), "ascii")
    released = site.call("Release", job="1", attempt="1", kill=KILL)
    assert (released["clean"], released["killing"]) == (True, False)
    assert gone(zombie)
    assert not site.bindings()
    assert parent.lives


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_frozen_process_is_ended_all_the_same(serving, process, eventually):
    """It stands for one that hangs in the kernel, as far as v2 lets one: SIGKILL gets it.

    The freezer of v1 is a hierarchy of its own, and holds SIGKILL back: see the next test.
    """
    site = serving(ON_REQUEST)
    cgroup = site.prepare("1", 0)
    worker = process(cgroup)
    worker.does("ignore")
    Path(cgroup, "cgroup.freeze").write_text("1", "ascii")
    eventually(lambda: "frozen 1" in Path(cgroup, "cgroup.events").read_text("ascii"))
    assert site.call("Release", job="1", attempt="1", kill=KILL)["killing"] is True
    assert worker.ended() == -signal.SIGKILL
    eventually(lambda: not site.bindings())


@pytest.mark.parametrize("backend", ["cgroup1"], indirect=True)
def test_one_that_cannot_be_ended_stays_quarantined_and_is_told_of(serving, process, refused):
    """Frozen by v1's freezer, which keeps SIGKILL back: as good as hanging in the kernel."""
    freezer = Path("/sys/fs/cgroup/freezer")
    if not (freezer / "cgroup.procs").exists():
        pytest.skip("needs the freezer of v1")
    site = serving(ON_REQUEST)
    worker = process(site.prepare("1", 0))
    ice = freezer / f"xce-test-{os.getpid()}"
    ice.mkdir()
    try:
        (ice / "cgroup.procs").write_text(str(worker.pid), "ascii")
        (ice / "freezer.state").write_text("FROZEN", "ascii")
        site.call("Release", job="1", attempt="1", kill=KILL)
        site.settled()
        assert site.left("1:1") == [worker.pid]
        with pytest.raises(refused, match="Busy"):
            site.prepare("2", 0)
        (ice / "freezer.state").write_text("THAWED", "ascii")
        assert worker.ended() < 0
    finally:
        (ice / "freezer.state").write_text("THAWED", "ascii")
        worker.end()
        ice.rmdir()


def test_a_fork_bomb_is_ended(serving, process, eventually):
    site = serving('[release]\nkill = "on-request"\nkill_grace_seconds = 0')
    cgroup = site.prepare("1", 0)
    bomb = process(cgroup)
    total = int(Path("/proc/loadavg").read_text("ascii").split()[3].partition("/")[2])
    bomb.does("bomb", str(total + 150))
    procs = Path(cgroup, "cgroup.procs")
    eventually(lambda: len(procs.read_text("ascii").split()) > 20)
    assert site.call("Release", job="1", attempt="1", kill=KILL)["killing"] is True
    eventually(lambda: not site.bindings())
    assert not os.path.exists(cgroup)


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
@pytest.mark.parametrize("extra", ["", ON_REQUEST])
def test_the_binder_has_the_means_only_where_the_configuration_has_it(serving, extra):
    """CAP_KILL is bit 5 (linux/capability.h)."""
    site = serving(extra)
    site.prepare("1", 0)
    binders = [status(pid) for pid in helper("binder", site.agent)]
    assert binders
    for shown in binders:
        assert bool(int(shown["CapEff"], 16) >> 5 & 1) is bool(extra)
    # The one that acts has one filter more, which refuses to signal, unless it may.
    most = max(int(shown["Seccomp_filters"]) for shown in binders)
    least = min(int(shown["Seccomp_filters"]) for shown in binders)
    assert (most > least) is not bool(extra)


LEAVES_ONE = (  # which does not keep our pipes open
    "import os, signal\n"
    "if os.fork() == 0:\n"
    "    os.closerange(0, 3)\n"
    "    while True: signal.pause()\n"
)


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
@pytest.mark.parametrize("how", ["hook", "variable", "command", "exec"])
def test_hooks_and_commands_can_ask_for_it(serving, process, eventually, how):
    done, worker, site = asked(serving(ON_REQUEST), process, how)
    assert "being ended" in done.stderr
    if worker:
        assert worker.ended() == -signal.SIGTERM
    eventually(lambda: not site.bindings())


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
@pytest.mark.parametrize("how", ["hook", "variable", "command", "exec"])
def test_hooks_and_commands_release_where_it_may_not_be_and_say_so(
    serving, process, eventually, how
):
    done, _, site = asked(serving(""), process, how)
    (binding,) = site.bindings().values()
    assert binding["state"] == "quarantined"
    (left,) = (one["pid"] for one in binding["holders"])
    try:
        assert "no process was ended: this node ends no processes" in done.stderr
        site.settled()
        assert not gone(left)
    finally:
        os.kill(left, signal.SIGKILL)
    eventually(lambda: not site.bindings())


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_the_variable_of_all_epilogs_keeps_none_from_giving_up_one_card(serving):
    site = serving(ON_REQUEST)
    site.prepare("1", 0, 1)
    env = {**site.agent.env, "XCE_RELEASE_KILL": KILL}
    subprocess.run(
        [str(HOOK), "--job", "1", "--attempt", "1", "--instance", site.cards[0]],
        env=env, check=True, timeout=60,
    )  # fmt: skip
    assert site.bindings()["1:1"]["instances"] == [site.cards[1]]


def asked(site, process, how):
    """Ask for it in one of the ways; give what was said, who was left, if we know it, and where."""
    worker = None
    env = dict(site.agent.env)
    program = [sys.executable, "-m", "xce_nodeagent"]
    if how == "exec":
        command = [
            *program, "exec", "--request", "rusage[gpu=1]", "--kill", "--",
            sys.executable, "-I", "-S", "-c", LEAVES_ONE,
        ]  # fmt: skip
    else:
        worker = process(site.prepare("1", 0))
        command = [str(HOOK), "--job", "1", "--attempt", "1", "--kill"]
        if how == "command":
            command = [*program, "release", *command[1:]]
        elif how == "variable":
            command.pop()
            env["XCE_RELEASE_KILL"] = KILL
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done, worker, site
