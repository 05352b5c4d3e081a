"""The binder's operations: what they answer, what they refuse, and what they leave behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xce_nodeagent.errors import Enforcement
from xce_nodeagent.model.rule import READ_WRITE, Device, Rule
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.ops import (
    Bind,
    Join,
    Manage,
    Take,
    Unbind,
    Unbound,
    Verify,
    pack,
)


def test_take_tells_what_can_be_enforced(world):
    taken = world.take()
    assert world.backend in taken.backends
    assert (taken.pid, taken.home, taken.recovered) == (os.getpid(), world.home, False)
    assert world.take() == taken


def test_lock_is_taken_before_anything_is_touched(world):
    def refuse():
        assert not os.path.exists(world.home.path)
        raise Enforcement("the binder before does not end when it is killed")

    world.binder = world.new_binder(take_lock=refuse)
    assert world.refusal(Take()) == "enforcement"
    assert not os.path.exists(world.home.path)
    assert world.refusal(Manage(())) == "not_ready"


def test_nothing_is_done_before_take(world):
    job = world.job()
    for request in (
        Manage(()),
        Bind("mark", job, pack(()), make=True),
        Unbind("mark", job, remove=True),
        Verify("mark", job, pack(())),
        Join("mark", job, 2),
    ):
        assert world.refusal(request) == "not_ready"
    world.binder.close()
    assert not os.path.exists(world.home.path)


def test_bind_before_the_first_manage_is_refused(world):
    world.take()
    assert world.refusal(Bind("mark", world.job(), pack(()), make=True)) == "not_ready"
    assert not os.path.exists(world.job().path)


def test_backend_that_is_not_there_says_so(world, tmp_path):
    # A host without this hierarchy: its mountinfo does not list it.
    (tmp_path / "self").mkdir()
    other = "cgroup2" if world.backend == "cgroup1" else "cgroup"
    lines = Path("/proc/self/mountinfo").read_text("utf-8").splitlines(keepends=True)
    kept = "".join(line for line in lines if f" - {other} " in line)
    (tmp_path / "self/mountinfo").write_text(kept, "utf-8")
    (tmp_path / "self/cgroup").write_text("", "utf-8")
    (tmp_path / "devices").write_text("", "utf-8")
    world.binder = world.new_binder(home=None, proc=tmp_path)
    taken = world.take()
    assert world.backend not in taken.backends
    world.ask(Manage(()))
    named = world.named("job")
    assert world.refusal(Bind("mark", named, pack(()), make=False)) == "enforcement"


# ---- devices --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "device",
    [
        Device("c", 1, 3),  # /dev/null
        Device("c", 5, 0),  # /dev/tty
        Device("c", 10, 229),  # fuse: a misc device that is not in the table
        Device("b", 7, 0),  # a block device
        Device("c", 4095, 0),  # nobody's
        Device("c", -1, 0),
        Device("c", 1 << 12, 0),
        Device("c", 60, 1 << 20),
    ],
)
def test_device_of_another_driver_is_a_violation(world, device):
    world.take()
    with pytest.raises(Violation, match=str(device)):
        world.binder.handle(Manage((device,)))


def test_devices_of_the_drivers_in_the_tables_are_managed(world, tmp_path):
    (tmp_path / "self").mkdir()
    for name in ("self/mountinfo", "self/cgroup"):
        (tmp_path / name).write_text(Path("/proc", name).read_text("utf-8"), "utf-8")
    (tmp_path / "devices").write_text(
        "Character devices:\n 10 misc\n195 nvidia\n195 nvidiactl\n226 drm\n231 infiniband_verbs\n"
        "509 nvidia-caps\n\nBlock devices:\n253 nvidia\n",
        "utf-8",
    )
    (tmp_path / "misc").write_text("125 rdma_cm\n229 fuse\n", "utf-8")
    world.binder = world.new_binder(proc=tmp_path)
    world.take()
    good = ((195, 0), (195, 255), (226, 128), (231, 192), (509, 1), (10, 125))
    world.ask(Manage(tuple(Device("c", *numbers) for numbers in good)))
    for kind, major, minor in (("c", 10, 229), ("b", 253, 0), ("b", 195, 0), ("c", 511, 0)):
        with pytest.raises(Violation):
            world.binder.handle(Manage((Device(kind, major, minor),)))


def test_grant_of_what_is_not_managed_is_a_violation(world, nodes):
    first, second, *_ = sorted(nodes)
    world.start(*nodes, managed=(first,))
    with pytest.raises(Violation, match=f"{second}, which is not managed"):
        world.binder.handle(Bind("mark", world.job(), pack((Rule(second, 6),)), make=True))
    assert not os.path.exists(world.job().path)


@pytest.mark.parametrize("access", [0, 8, -1, 1 << 16])
def test_grant_of_no_or_unknown_access_is_a_violation(world, nodes, access):
    world.start(*nodes)
    with pytest.raises(Violation, match="access"):
        world.binder.handle(Bind("mark", world.job(), pack((Rule(min(nodes), access),)), make=True))


@pytest.mark.parametrize("mark", ["", "x" * 5000])
def test_mark_that_cannot_be_one_is_a_violation(world, nodes, mark):
    world.start(*nodes)
    for request in (
        Bind(mark, world.job(), pack(()), make=True),
        Unbind(mark, world.job(), remove=True),
        Verify(mark, world.job(), pack(())),
        Join(mark, world.job(), 2),
    ):
        with pytest.raises(Violation, match="a mark of"):
            world.binder.handle(request)


# ---- bind and unbind ------------------------------------------------------------------------


def test_bind_marks_the_cgroup_and_can_be_repeated(world, nodes):
    world.start(*nodes)
    for _ in range(3):
        world.bind(world.job("job-12[3]"), mark="12[3]\t1")
    path = world.job("job-12[3]").path
    assert os.getxattr(path, "trusted.xce.binding") == b"12[3]\t1\n bound\n"


def test_made_cgroup_of_another_mark_is_a_conflict(world, nodes):
    world.start(*nodes)
    world.bind(world.job(), mark="one")
    assert world.refusal(Bind("two", world.job(), pack(()), make=True)) == "conflict"
    assert os.getxattr(world.job().path, "trusted.xce.binding") == b"one\n bound\n"


def test_crash_between_making_and_marking_is_made_good(world, nodes):
    world.start(*nodes)
    os.mkdir(world.job().path)
    world.bind(world.job())
    os.mkdir(world.job("job-2").path)
    assert world.unbind(world.job("job-2")).gone
    assert not os.path.exists(world.job("job-2").path)


def test_populated_stranger_in_the_home_is_not_taken(world, nodes, prisoner):
    world.start(*nodes)
    os.mkdir(world.job().path)
    prisoner.join(world.job().path)
    assert world.refusal(Bind("mark", world.job(), pack(()), make=True)) == "bad_cgroup"
    assert world.unbind(world.job()).gone
    assert os.path.exists(world.job().path)


def test_unbind_removes_with_sub_cgroups_and_can_be_repeated(world, nodes):
    world.start(*nodes)
    world.bind(world.job())
    os.makedirs(f"{world.job().path}/step/task")
    assert world.unbind(world.job()) == Unbound(gone=True)
    assert not os.path.exists(world.job().path)
    assert world.unbind(world.job()) == Unbound(gone=True)


def test_unbind_of_another_s_cgroup_leaves_it_alone(world, nodes):
    world.start(*nodes)
    grants = (Rule(min(nodes), READ_WRITE),)
    world.bind(world.job(), *grants, mark="one")
    assert world.unbind(world.job(), mark="two") == Unbound(gone=True, stray="one")
    assert world.verify(world.job(), *grants, mark="one").state in {"ok", "unverifiable"}


def test_unbind_of_what_was_never_bound_leaves_it_alone(world, nodes):
    world.start(*nodes)
    named = world.named("theirs")
    assert world.unbind(named) == Unbound(gone=True)
    assert os.path.isdir(named.path)


def test_unbind_of_a_populated_cgroup_closes_it_and_names_who_is_left(world, nodes, prisoner):
    device = min(nodes)
    world.start(*nodes)
    world.bind(world.job(), Rule(device, READ_WRITE))
    prisoner.join(world.job().path)
    assert prisoner.may(nodes[device], device, READ_WRITE)
    for _ in range(2):
        assert world.unbind(world.job()) == Unbound(
            gone=False, pids=(prisoner.pid,), populated=True
        )
        assert not prisoner.may(nodes[device], device, READ_WRITE)
    prisoner.join(str(world.base))
    assert world.unbind(world.job()) == Unbound(gone=True)


def test_left_cgroup_keeps_its_mark_until_it_is_empty(world, nodes, prisoner):
    world.start(*nodes)
    named = world.named("slurm")
    world.bind(named)
    prisoner.join(named.path)
    left = world.unbind(named, remove=False)
    assert left == Unbound(gone=False, pids=(prisoner.pid,), populated=True)
    assert os.getxattr(named.path, "trusted.xce.binding") == b"mark\n released\n"
    prisoner.join(str(world.base))
    assert world.unbind(named, remove=False) == Unbound(gone=False)
    assert not os.listxattr(named.path)
    assert world.unbind(named, remove=False) == Unbound(gone=True)


def test_cgroup_that_vanished_is_an_answer(world, nodes):
    world.start(*nodes)
    named = world.named("slurm/job")
    world.bind(named)
    os.rmdir(named.path)
    os.rmdir(world.roots / "slurm")
    assert world.verify(named).state == "gone"
    assert world.unbind(named, remove=False).gone
    world.bind(world.job())
    os.rmdir(world.job().path)
    world.ask(Manage(()))
    assert world.verify(world.job()).state == "gone"
    world.bind(world.job())


@pytest.mark.needs("root", "cgroup2", "bpf")
@pytest.mark.parametrize("remove", [True, False])
def test_unbind_tells_of_threads_that_no_pid_names(world2, nodes, prisoner, remove):
    """In a threaded cgroup there is no process, and rmdir says EBUSY."""
    world2.start(*nodes)
    named = world2.named("theirs/threads")
    Path(named.path, "cgroup.type").write_text("threaded", "ascii")
    world2.bind(named)
    prisoner.join(os.path.dirname(named.path))
    Path(named.path, "cgroup.threads").write_text(str(prisoner.pid), "ascii")
    assert world2.unbind(named, remove=remove) == Unbound(gone=False, pids=(), populated=True)
    Path(os.path.dirname(named.path), "cgroup.threads").write_text(str(prisoner.pid), "ascii")
    assert world2.unbind(named, remove=remove) == Unbound(gone=remove)
    prisoner.join(str(world2.base))


def test_cgroup_that_was_made_again_differs_and_can_be_bound_again(world, nodes, prisoner):
    """The owner of an adopted cgroup removed it and made it anew: same path, nothing of ours."""
    device, other = sorted(nodes)[:2]
    grants = (Rule(device, READ_WRITE),)
    world.start(*nodes)
    named = world.named("slurm/job")
    world.bind(named, *grants)
    assert world.verify(named, *grants).state in {"ok", "unverifiable"}
    for whole in (False, True):
        os.rmdir(named.path)
        if whole:
            os.rmdir(os.path.dirname(named.path))
        again = world.named("slurm/job")
        assert again == named
        prisoner.join(named.path)
        assert prisoner.may(nodes[other], other, READ_WRITE)
        assert world.verify(named, *grants).state == "differs"
        refused = Bind("mark", named, pack(grants), make=False)
        assert world.refusal(refused) == "bad_cgroup"
        world.ask(Bind("mark", named, pack(grants), make=False, populated=True))
        assert world.verify(named, *grants).state in {"ok", "unverifiable"}
        assert prisoner.may(nodes[device], device, READ_WRITE)
        assert not prisoner.may(nodes[other], other, READ_WRITE)
        prisoner.join(str(world.base))
    os.rmdir(named.path)
    world.named("slurm/job")
    world.bind(named, *grants)  # an empty one needs no leave
    assert world.verify(named, *grants).state in {"ok", "unverifiable"}
    assert world.unbind(named, remove=False) == Unbound(gone=False)


def test_mark_that_was_taken_away_is_seen(world, nodes):
    world.start(*nodes)
    world.bind(world.job())
    os.removexattr(world.job().path, "trusted.xce.binding")
    assert world.verify(world.job()).state == "differs"


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_binder_killed_anywhere_never_opens_what_was_not_given(world, nodes, prisoner, data):
    """Random operations and restarts; after each, what is open is at most what was given last."""
    if world.binder._taken is None:
        world.start(*nodes)
        world.bind(world.job())
        prisoner.join(world.job().path)
    rule = st.builds(Rule, st.sampled_from(sorted(nodes)), st.integers(1, 7))
    for _ in range(data.draw(st.integers(1, 4))):
        grants = tuple(data.draw(st.lists(rule, max_size=4)))
        match data.draw(st.sampled_from(["bind", "restart", "manage", "revoke"])):
            case "bind":
                world.bind(world.job(), *grants)
                world.given = grants
            case "restart":
                world.restart(world.job())
                world.ask(Manage(tuple(nodes)))
            case "manage":
                world.ask(Manage(tuple(nodes)))
            case "revoke":
                world.unbind(world.job())
                assert not any(prisoner.may(path, one, 4) for one, path in nodes.items())
                refused = Bind("mark", world.job(), pack(grants), make=True)
                assert world.refusal(refused) == "conflict"
                prisoner.join(str(world.base))
                assert world.unbind(world.job()).gone
                world.bind(world.job())
                prisoner.join(world.job().path)
                world.given = ()
        given = getattr(world, "given", ())
        for device, path in nodes.items():
            may = {rule.access & 6 for rule in given if rule.device == device}
            assert prisoner.may(path, device, READ_WRITE) == (6 in may or {2, 4} <= may)
