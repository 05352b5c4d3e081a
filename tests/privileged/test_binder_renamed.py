"""A cgroup that its owner renames, makes anew, or could leave: adopted ones, below a root."""

from __future__ import annotations

import os

import pytest

from xce_nodeagent.model.rule import READ_WRITE, Rule
from xce_nodeagent.privileged import binder as binder_module
from xce_nodeagent.privileged import roots
from xce_nodeagent.privileged.ops import Bind, Done, Failed, Join, Unbound, pack

STRANGER = 23456


def give(path, uid=STRANGER):
    for name in (".", "cgroup.procs", "cgroup.threads", "tasks"):
        if os.path.exists(f"{path}/{name}"):
            os.chown(f"{path}/{name}", uid, uid)


@pytest.mark.needs("root", "cgroup1")
@pytest.mark.parametrize("made_again", [False, True])
def test_renamed_cgroup_is_found_and_closed(world1, nodes, prisoner, made_again):
    device = min(nodes)
    world1.start(*nodes)
    named = world1.named("user/job")
    world1.bind(named, Rule(device, READ_WRITE), mark="one")
    world1.bind(world1.named("user/other"), mark="other")
    prisoner.join(named.path)
    assert prisoner.may(nodes[device], device, READ_WRITE)
    moved = f"{world1.roots}/user/moved"
    os.rename(named.path, moved)
    if made_again:
        os.mkdir(named.path)
    assert world1.verify(named, mark="one").state == "differs"
    left = world1.unbind(named, remove=False, mark="one")
    assert left == Unbound(gone=False, pids=(prisoner.pid,), populated=True)
    assert not prisoner.may(nodes[device], device, READ_WRITE)
    prisoner.join(str(world1.base))
    assert world1.unbind(named, remove=False, mark="one") == Unbound(gone=False)
    assert not os.listxattr(moved)
    assert world1.unbind(named, remove=False, mark="one") == Unbound(gone=True)
    assert os.listxattr(f"{world1.roots}/user/other")


@pytest.mark.parametrize("what", [".", "cgroup.procs"])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_cgroup_that_a_user_could_leave_is_not_taken(world, nodes, what, how):
    world.start(*nodes)
    named = world.named("user/deep/job")
    above = os.path.normpath(f"{world.roots}/user/{what}")
    if how == "owner":
        os.chown(above, STRANGER, STRANGER)
    else:
        os.chmod(above, os.stat(above).st_mode | 0o020)
    answer = world.binder.handle(Bind("mark", named, pack(()), make=False))
    assert isinstance(answer, Failed)
    assert answer.code == "bad_cgroup"
    assert "prepare_uids" in answer.message
    assert answer.details["parent"] == f"{world.roots}/user"
    assert not os.listxattr(named.path)


def test_worker_that_may_prepare_may_own_what_is_above(world, nodes):
    world.binder = world.new_binder(owners=(STRANGER,))
    world.start(*nodes)
    named = world.named("worker/job")
    for path in (str(world.roots), f"{world.roots}/worker", named.path):
        give(path)
    world.bind(named)


def test_its_own_cgroup_may_be_the_users(world, nodes):
    world.start(*nodes)
    named = world.named("job")
    give(named.path)
    world.bind(named)


def test_cgroup_with_too_many_below_is_not_taken(world, nodes, monkeypatch):
    monkeypatch.setattr(roots, "WALK_LIMIT", 3)
    world.start(*nodes)
    named = world.named("wide")
    for number in range(4):
        os.mkdir(f"{named.path}/{number}")
    assert world.refusal(Bind("mark", named, pack(()), make=False)) == "bad_cgroup"
    os.rmdir(f"{named.path}/0")
    world.bind(named)


def test_process_of_another_binding_is_not_moved(world, nodes, prisoner):
    world.start(*nodes)
    world.bind(world.job("one"), mark="one")
    world.bind(world.job("two"), mark="two")
    os.mkdir(f"{world.job('one').path}/step")
    pidfd = os.pidfd_open(prisoner.pid)
    try:
        for place in ("", "/step"):
            prisoner.join(world.job("one").path + place)
            request = Join("two", world.job("two"), prisoner.pid)
            assert world.refusal(request, (pidfd,)) == "bad_request"
            again = Join("one", world.job("one"), prisoner.pid)
            assert world.binder.handle(again, (pidfd,)) == Done()
        prisoner.join(str(world.base))
        assert world.binder.handle(request, (pidfd,)) == Done()
        prisoner.join(str(world.base))
    finally:
        os.close(pidfd)


def test_more_are_not_bound_than_can_be_kept(world, nodes, monkeypatch):
    monkeypatch.setattr(binder_module, "BOUND_LIMIT", 2)
    world.start(*nodes)
    world.bind(world.job("one"))
    world.bind(world.job("two"))
    world.bind(world.job("two"))
    assert world.refusal(Bind("mark", world.job("three"), pack(()), make=True)) == "enforcement"
    assert not os.path.exists(world.job("three").path)
    world.unbind(world.job("one"))
    world.bind(world.job("three"))
