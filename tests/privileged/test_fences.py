"""Every back end holds to the one rule algebra, judged by real open() and mknod()."""

from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xce_nodeagent.model.rule import READ_WRITE, Access, Device, Rule, allows
from xce_nodeagent.privileged.ops import Manage, Verified

ACCESSES = (Access.READ, Access.WRITE, READ_WRITE, Access.MKNOD)


def table(prisoner, nodes):
    """What a process may really do with each device."""
    return {
        (device, access): prisoner.may(path, device, access)
        for device, path in nodes.items()
        for access in ACCESSES
    }


def expected(nodes, managed, grants):
    return {
        (device, access): allows(managed, grants, device, access)
        for device in nodes
        for access in ACCESSES
    }


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_kernel_judges_as_the_algebra_does(world, nodes, prisoner, data, request):
    devices = sorted(nodes)
    managed = tuple(sorted(data.draw(st.sets(st.sampled_from(devices)))))
    grants = ()
    if managed:
        rule = st.builds(Rule, st.sampled_from(managed), st.integers(1, 7))
        grants = tuple(data.draw(st.lists(rule, max_size=6)))
    if world.binder._taken is None:
        world.start(*devices)
    job = world.job(f"job-{next(_jobs)}")
    world.ask(Manage(managed))
    world.bind(job, *grants)
    prisoner.join(job.path)
    assert table(prisoner, nodes) == expected(nodes, managed, grants)
    prisoner.join(str(world.base))
    assert world.unbind(job).gone


_jobs = itertools.count()


@pytest.fixture
def two(nodes) -> tuple[Device, Device]:
    first, second, *_ = sorted(nodes)
    return first, second


def test_job_without_grants_is_fenced(world, nodes, prisoner):
    world.start(*nodes)
    world.bind(world.job())
    assert table(prisoner, nodes) == expected(nodes, (), ())  # outside, nothing changes
    prisoner.join(world.job().path)
    assert table(prisoner, nodes) == expected(nodes, nodes, ())


def test_other_devices_stay_as_they_were(world, nodes, prisoner):
    world.start(*nodes)
    world.bind(world.job())
    prisoner.join(world.job().path)
    assert prisoner.open("/dev/null", os.O_RDWR) == "ok"
    assert prisoner.open("/dev/full", os.O_WRONLY) == "ok"
    assert prisoner.mknod(Device("c", 1, 3)) == "ok"


def test_sub_cgroup_made_later_is_fenced_alike(world, nodes, two, prisoner):
    grants = (Rule(two[0], READ_WRITE),)
    world.start(*nodes)
    world.bind(world.job(), *grants)
    prisoner.join(world.job().path)
    prisoner.mkdir(f"{world.job().path}/step")
    prisoner.join(f"{world.job().path}/step")
    assert table(prisoner, nodes) == expected(nodes, nodes, grants)


def test_another_job_and_outside_are_not_touched(world, nodes, two, prisoner):
    world.start(*nodes)
    world.bind(world.job("job-1"), Rule(two[0], READ_WRITE), mark="one")
    world.bind(world.job("job-2"), Rule(two[1], READ_WRITE), mark="two")
    prisoner.join(world.job("job-2").path)
    assert table(prisoner, nodes) == expected(nodes, nodes, (Rule(two[1], READ_WRITE),))
    prisoner.join(str(world.base))
    assert all(table(prisoner, nodes).values())


def test_access_mode_three_needs_read_and_write(world, nodes, two, prisoner):
    # open(2): access mode 3 gives a descriptor for ioctl() alone, and checks for both rights.
    world.start(*nodes)
    world.bind(world.job(), Rule(two[0], Access.READ), Rule(two[1], READ_WRITE))
    prisoner.join(world.job().path)
    assert prisoner.open(nodes[two[0]], 3) == "EPERM"
    assert prisoner.open(nodes[two[1]], 3) == "ENXIO"


def test_block_and_character_devices_differ(world, nodes, prisoner):
    character = min(nodes)
    block = Device("b", character.major, character.minor)
    world.start(*nodes)
    world.bind(world.job())
    prisoner.join(world.job().path)
    assert prisoner.mknod(block) == "ok"
    world.pretend(*nodes, block)
    world.ask(Manage((block,)))
    assert prisoner.mknod(block) == "EPERM"


def test_grow_and_shrink_rule_running_processes_and_steps(world, nodes, two, prisoner):
    world.start(*nodes)
    job = world.job()
    world.bind(job, Rule(two[0], READ_WRITE))
    prisoner.join(job.path)
    prisoner.mkdir(f"{job.path}/step")
    prisoner.join(f"{job.path}/step")
    for grants in (
        (Rule(two[0], READ_WRITE), Rule(two[1], Access.READ)),
        (Rule(two[1], READ_WRITE),),
        (),
        (Rule(two[0], Access.WRITE),),
    ):
        world.bind(job, *grants)
        assert table(prisoner, nodes) == expected(nodes, nodes, grants)


def test_device_plugged_in_is_fenced_for_all_jobs(world, nodes, two, prisoner):
    old, new = two
    world.start(*nodes, managed=(old,))
    world.bind(world.job(), Rule(old, READ_WRITE))
    prisoner.join(world.job().path)
    assert prisoner.may(nodes[new], new, READ_WRITE)
    world.ask(Manage((old, new)))
    assert not prisoner.may(nodes[new], new, READ_WRITE)
    assert prisoner.may(nodes[old], old, READ_WRITE)


def test_restart_neither_opens_nor_closes(world, nodes, two, prisoner):
    grants = (Rule(two[0], READ_WRITE),)
    world.start(*nodes)
    world.bind(world.job(), *grants)
    prisoner.join(world.job().path)
    right = expected(nodes, nodes, grants)
    world.binder.close(tidy=False)
    assert table(prisoner, nodes) == right
    world.restart(world.job())
    assert table(prisoner, nodes) == right
    world.ask(Manage(tuple(nodes)))
    assert table(prisoner, nodes) == right
    world.bind(world.job(), *grants)
    assert table(prisoner, nodes) == right


def test_device_plugged_in_after_a_restart_is_fenced(world, nodes, two, prisoner):
    old, new = two
    world.start(*nodes, managed=(old,))
    world.bind(world.job(), Rule(old, READ_WRITE))
    prisoner.join(world.job().path)
    world.restart(world.job())
    world.ask(Manage((old, new)))
    assert not prisoner.may(nodes[new], new, READ_WRITE)
    assert prisoner.may(nodes[old], old, READ_WRITE)


def test_what_was_revoked_stays_revoked_over_a_restart(world, nodes, two, prisoner):
    world.start(*nodes)
    world.bind(world.job(), Rule(two[0], READ_WRITE))
    prisoner.join(world.job().path)
    assert world.unbind(world.job()).pids == (prisoner.pid,)
    world.restart(world.job())
    world.ask(Manage(tuple(nodes)))
    assert not any(table(prisoner, nodes).values())


def test_left_cgroup_stays_fenced_and_starts_afresh(world, nodes, two, prisoner):
    world.start(*nodes)
    named = world.named("slurm")
    world.bind(named, Rule(two[0], READ_WRITE), mark="one")
    unbound = world.unbind(named, remove=False, mark="one")
    assert (unbound.gone, unbound.pids) == (False, ())
    prisoner.join(named.path)
    assert not any(table(prisoner, nodes).values())
    prisoner.join(str(world.base))
    grants = (Rule(two[1], READ_WRITE),)
    world.bind(named, *grants, mark="two")
    prisoner.join(named.path)
    assert table(prisoner, nodes) == expected(nodes, nodes, grants)


def test_verify_tells_right_from_wrong(world, nodes, two):
    grants = (Rule(two[0], READ_WRITE),)
    right = "unverifiable" if world.backend == "cgroup1" else "ok"
    world.start(*nodes)
    world.bind(world.job(), *grants)
    assert world.verify(world.job(), *grants).state == right
    assert world.verify(world.job(), Rule(two[1], READ_WRITE)).state == "differs"
    assert world.verify(world.job("job-2"), *grants, mark="none").state == "gone"
    assert world.verify(world.job(), *grants, mark="another") == Verified("stray", "mark")
    world.restart(world.job())
    world.ask(Manage(tuple(nodes)))
    assert world.verify(world.job(), *grants).state == right
