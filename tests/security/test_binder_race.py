"""A captured agent with a friend who moves cgroups about while the binder works on them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from xce_nodeagent.privileged import ops
from xce_nodeagent.privileged.ops import Rule

pytestmark = [pytest.mark.needs("root", "cgroup1", "cgroup2", "bpf"), pytest.mark.timeout(120)]

MARK = "trusted.xce.binding"
SECONDS = 3.0


@contextlib.contextmanager
def busy(act):
    """Let a thread do something again and again; what the kernel refuses is no matter."""
    over = threading.Event()

    def go():
        while not over.is_set():
            with contextlib.suppress(OSError):
                act()

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def marked(folder):
    """Give what below a folder bears a mark."""
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_dir()):
        with contextlib.suppress(OSError):
            if MARK in os.listxattr(path):
                found.append(path)
    return found


def hammered(captured, path, grants):
    """Bind, verify and release a cgroup as fast as it goes; give the codes that came."""
    helper = captured.binder()
    codes = set()
    until = time.monotonic() + SECONDS
    ref = captured.ref(path)
    while time.monotonic() < until:
        for request in (
            captured.bind(path, *grants, make=False, populated=True),
            ops.Verify("1\na", ref, ops.pack(())),
            ops.Unbind("1\na", ref, remove=False),
        ):
            answer = helper.ask(request)
            assert answer is not None, captured.logged()
            codes.add(answer.get("code") or answer["type"])
    helper.close()
    return codes


@pytest.mark.parametrize("backend", ["cgroup1"], indirect=True)
def test_a_way_that_is_swapped_all_the_time_leads_nowhere_else(captured):
    """Only v1 renames. Two ways change places, and at times there is none of that name."""
    one, other, aside = (captured.other / name for name in ("a", "b", "c"))
    for way in (one, other):
        (way / "job").mkdir(parents=True)
    card = Rule(captured.binder() and captured.cards()[0], 6)
    before = captured.surroundings()

    def swap():
        os.rename(one, aside)
        os.rename(other, one)
        os.rename(aside, other)

    with busy(swap):
        codes = hammered(captured, one / "job", [card])
    assert "done" in codes
    assert codes <= {"done", "unbound", "verified", "bad_cgroup", "conflict", "enforcement"}
    assert captured.process.poll() is None
    clear(captured)
    after = captured.surroundings()
    folders = str(captured.other)
    assert {**after, folders: ()} == {**before, folders: ()}
    for way in ("a", "b", "c"):
        with contextlib.suppress(OSError):
            os.rmdir(captured.other / way / "job")


def clear(captured):
    """Release what is bound now that nothing moves any more: it is found, and no mark is left."""
    helper = captured.binder()
    for path in marked(captured.other):
        assert path.name == "job", path
        assert helper.ask(ops.Unbind("1\na", captured.ref(path), remove=False)) is not None
    assert marked(captured.top) == []


def test_a_cgroup_that_is_made_and_removed_all_the_time_is_bound_or_not(captured):
    path = captured.other / "job"
    captured.binder()
    before = captured.surroundings()

    def flicker():
        path.mkdir()
        path.rmdir()

    with busy(flicker):
        codes = hammered(captured, path, [])
    assert codes <= {"done", "unbound", "verified", "bad_cgroup", "conflict", "enforcement"}
    with contextlib.suppress(FileNotFoundError):
        path.rmdir()
    assert marked(captured.top) == []
    assert captured.surroundings() == before


def test_no_link_can_be_put_where_cgroups_are(captured):
    for target in ("/etc", str(captured.outside)):
        for place in (captured.other / "link", captured.home / "link"):
            captured.binder()
            with pytest.raises(PermissionError):
                os.symlink(target, place)


def test_a_process_that_ends_meanwhile_is_told_and_none_other_is_moved(captured):
    """Ended processes, as many as it takes to see each side of the move: no other one is moved."""
    helper = captured.binder()
    job = captured.home / "job-1"
    assert helper.ask(captured.bind(job)) == {"type": "done"}
    for _ in range(100):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        pidfd = os.pidfd_open(pid)
        answer = helper.ask(ops.Join("1\na", captured.ref(job), pid), pidfd)
        os.close(pidfd)
        os.waitpid(pid, 0)
        assert answer is not None
        assert answer.get("code", "moved") in ("bad_request", "bad_cgroup", "moved"), answer
    assert Path(job, "cgroup.procs").read_text("ascii") == ""
