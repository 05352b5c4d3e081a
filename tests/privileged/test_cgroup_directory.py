"""One open cgroup: who is in it, its removal, its marks."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys

import pytest

from xce_nodeagent.model.rule import READ_WRITE, Device, Rule
from xce_nodeagent.privileged import cgroup as directory
from xce_nodeagent.privileged.cgroup import Cgroup
from xce_nodeagent.privileged.label import Label
from xce_nodeagent.privileged.ops import Unbound


@pytest.fixture
def opened(world):
    """A cgroup below the allowed root, open."""
    with world.binder._roots.open(world.named("one")) as cgroup:
        yield cgroup


def test_processes_are_seen_in_it_and_below(opened, prisoner):
    assert not opened.populated()
    assert opened.pids() == ()
    prisoner.join(opened.ref.path)
    assert opened.populated()
    assert opened.pids() == (prisoner.pid,)
    os.makedirs(f"{opened.ref.path}/a/b")
    prisoner.join(f"{opened.ref.path}/a/b")
    assert opened.populated()
    assert opened.pids() == (prisoner.pid,)


FOREIGN = """
import os, sys
from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.privileged.cgroup import Cgroup
backend, path = sys.argv[1:]
fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
with Cgroup(CgroupRef(backend, path), fd, -1, path) as cgroup:
    print(cgroup.populated(), cgroup.pids(), cgroup.remove())
"""


def test_process_of_another_pid_namespace_has_no_name_but_keeps_the_cgroup(opened, prisoner):
    prisoner.join(opened.ref.path)
    # The reader is the one in a namespace of its own: on v2 it sees the prisoner as 0.
    unshare = ["unshare", "--pid", "--fork"]
    done = subprocess.run(
        [*unshare, sys.executable, "-c", FOREIGN, opened.ref.backend, opened.ref.path],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    # v1 does not even list it: there only the refused removal tells.
    seen = opened.ref.backend == "cgroup2"
    assert done.stdout == f"{seen} () False\n"


def test_removal_takes_empty_sub_cgroups_along(opened):
    os.makedirs(f"{opened.ref.path}/a/b")
    os.makedirs(f"{opened.ref.path}/c")
    assert opened.remove()
    assert not os.path.exists(opened.ref.path)
    assert opened.remove()


def test_removal_leaves_a_populated_one_as_it_is(opened, prisoner, world):
    os.makedirs(f"{opened.ref.path}/a/b")
    prisoner.join(f"{opened.ref.path}/a/b")
    assert not opened.remove()
    assert os.path.isdir(f"{opened.ref.path}/a/b")
    prisoner.join(str(world.base))
    assert opened.remove()


def nest(opened, levels):
    fd = os.dup(opened.fd)
    for _ in range(levels):  # by descriptor: the path may grow too long
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    return fd


def test_depth_hides_nobody_costs_no_descriptors_and_is_removed(opened, prisoner, world):
    """More levels than a process may have descriptors for."""
    gc.collect()  # what tests before this one left is not to go in the middle of it
    before = os.listdir("/proc/self/fd")
    deepest = nest(opened, 200)
    fd = os.open("cgroup.procs", os.O_WRONLY, dir_fd=deepest)
    os.write(fd, str(prisoner.pid).encode())
    os.close(fd)
    os.close(deepest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + 20, hard))
    try:
        assert len(list(opened.descendants())) == 200
        assert opened.occupants() == (True, (prisoner.pid,))
        assert not opened.remove()
        prisoner.join(str(world.base))
        assert opened.remove()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.listdir("/proc/self/fd") == before
    assert not os.path.exists(opened.ref.path)


def test_walk_gives_at_most_so_many_and_goes_where_it_may(opened):
    for name in ("a/1", "a/2", "b/1"):
        os.makedirs(f"{opened.ref.path}/{name}")

    def names(*limit, **how):
        start = len(opened.ref.path) + 1
        return [below.ref.path[start:] for below in opened.descendants(*limit, **how)]

    assert sorted(names()) == ["a", "a/1", "a/2", "b", "b/1"]
    assert len(names(3)) == 3
    assert sorted(names(enter=lambda one: one.ref.path.endswith("/b"))) == ["a", "b", "b/1"]


def test_more_than_is_looked_at_is_unknown_or_known_to_v2(opened, monkeypatch):
    monkeypatch.setattr(directory, "WALK_LIMIT", 3)
    for number in range(4):
        os.mkdir(f"{opened.ref.path}/{number}")
    v2 = opened.ref.backend == "cgroup2"
    assert opened.occupants() == (False if v2 else None, ())
    assert opened.populated() is not v2  # what is not known may be
    os.rmdir(f"{opened.ref.path}/0")
    assert opened.occupants() == (False, ())


def test_more_than_is_removed_at_once_stays_and_is_no_trouble(world, nodes, monkeypatch):
    monkeypatch.setattr(directory, "REMOVE_LIMIT", 3)
    world.start(*nodes)
    world.bind(world.job())
    for number in range(5):
        os.mkdir(f"{world.job().path}/{number}")
    assert world.unbind(world.job()) == Unbound(gone=False)
    assert not os.listxattr(world.job().path)
    assert world.unbind(world.job()) == Unbound(gone=True)
    assert not os.path.exists(world.job().path)


def test_deep_cgroup_is_released(world, nodes):
    world.start(*nodes)
    named = world.named("deep")
    world.bind(named)
    with world.binder._roots.open(named) as cgroup:
        os.close(nest(cgroup, 80))
        assert world.unbind(named, remove=False) == Unbound(gone=False)
        cgroup.clear()


def test_marks_are_kept_by_the_kernel(opened, world):
    grants = (Rule(Device("c", 60, 1), int(READ_WRITE)), Rule(Device("b", 7, 0), 1))
    assert opened.mark() is None
    opened.set_label(Label("12[3] ä\na", b"{}"))
    opened.record(grants)
    with world.binder._roots.open(opened.ref) as again:
        assert again.label() == Label("12[3] ä\na", b"{}")
        assert again.grants() == tuple(sorted(grants))
    opened.drop_mark()
    assert (opened.mark(), opened.grants()) == (None, ())
    opened.drop_mark()


def test_record_that_is_not_ours_counts_as_nothing_granted(opened):
    os.setxattr(opened.fd, directory.GRANTS, b"\xff" * 16)
    assert opened.grants() == ()


@pytest.mark.needs("root", "cgroup2", "bpf")
def test_threaded_cgroup_does_not_stop_the_walk(world2, prisoner):
    named = world2.named("threads")
    os.mkdir(f"{named.path}/t")
    with open(f"{named.path}/t/cgroup.type", "w") as file:
        file.write("threaded")
    prisoner.join(named.path)
    with world2.binder._roots.open(named) as cgroup:
        assert cgroup.pids() == (prisoner.pid,)


def test_release_names_at_most_64_processes(world, nodes, monkeypatch, prisoner):
    monkeypatch.setattr(directory, "PIDS_LIMIT", 0)
    world.start(*nodes)
    world.bind(world.job())
    prisoner.join(world.job().path)
    assert world.unbind(world.job()) == Unbound(gone=False, pids=(), populated=True)


def test_cgroup_is_closed_with_its_with(world):
    with world.binder._roots.open(world.named("one")) as cgroup:
        assert isinstance(cgroup, Cgroup)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(cgroup.fd)
