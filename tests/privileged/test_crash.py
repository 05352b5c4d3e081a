"""The binder dies at every point of an operation, for real: a fork of it ends before the n-th call.

A profile hook counts the calls that leave Python for C; between two of these, nothing changes in
the kernel but what one system call does.
"""

from __future__ import annotations

import os
import sys

import pytest

from xce_nodeagent.model.rule import READ_WRITE, Rule, allows
from xce_nodeagent.privileged.cgroup import Cgroup
from xce_nodeagent.privileged.ops import Bind, BinderRequest, Manage, Unbind, pack

DIED, DONE = 9, 0


def dies_before_call(world, request: BinderRequest, number: int) -> bool:
    """Let a fork of the binder carry out a request up to a call; say if it died on the way."""
    child = os.fork()
    if child == 0:
        left = number

        def count(frame, event, argument):
            nonlocal left
            if event == "c_call":
                left -= 1
                if left == 0:
                    os._exit(DIED)

        try:
            sys.setprofile(count)
            world.binder.handle(request)
        finally:
            os._exit(DONE)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in {DIED, DONE}
    return os.waitstatus_to_exitcode(status) == DIED


def every_death(world, request):
    """Give the numbers of the calls before which the request can die.

    All of them for the shared program; the slower back ends take every second and fourth.
    """
    step = 2 if world.backend == "cgroup1" else 1 if world.shared else 4
    number = 1
    while dies_before_call(world, request, number):
        yield number
        number += step
    assert number > 20  # it did not end at once


def opened(prisoner, nodes):
    return {device for device, path in nodes.items() if prisoner.may(path, device, READ_WRITE)}


def of(grants, nodes):
    return {device for device in nodes if allows(nodes, grants, device, READ_WRITE)}


@pytest.mark.timeout(120)
def test_change_of_grants(world, nodes, prisoner):
    first, second, *_ = sorted(nodes)
    before, after = (Rule(first, 6),), (Rule(second, 6),)
    job = world.job()
    world.start(*nodes)
    world.bind(job, *before)
    prisoner.join(job.path)
    prisoner.mkdir(f"{job.path}/step")
    prisoner.join(f"{job.path}/step")
    request = Bind("mark", job, pack(after), make=True)
    for number in every_death(world, request):
        assert opened(prisoner, nodes) <= of(before + after, nodes), number
        world.restart(job)
        world.ask(Manage(tuple(nodes)))
        assert opened(prisoner, nodes) <= of(before + after, nodes), number
        world.ask(request)
        assert opened(prisoner, nodes) == of(after, nodes), number
        world.bind(job, *before)
        assert opened(prisoner, nodes) == of(before, nodes), number


@pytest.mark.timeout(120)
def test_first_binding(world, nodes, prisoner):
    grants = (Rule(min(nodes), 6),)
    job = world.job()
    world.start(*nodes)
    request = Bind("mark", job, pack(grants), make=True)
    for number in every_death(world, request):
        if os.path.exists(job.path) and "trusted.xce.binding" in os.listxattr(job.path):
            state = world.verify(job, *grants).state
            assert state in {"ok", "differs", "unverifiable"}, number
        world.restart()
        world.ask(Manage(tuple(nodes)))
        world.ask(request)
        prisoner.join(job.path)
        assert opened(prisoner, nodes) == of(grants, nodes), number
        prisoner.join(str(world.base))
        assert world.unbind(job).gone
    world.unbind(job)


@pytest.mark.timeout(120)
def test_release_with_a_process_left(world, nodes, prisoner):
    grants = (Rule(min(nodes), 6),)
    job = world.job()
    world.start(*nodes)
    world.bind(job, *grants)
    prisoner.join(job.path)
    request = Unbind("mark", job, remove=True)
    for number in every_death(world, request):
        closed = not opened(prisoner, nodes)
        world.restart(job)
        world.ask(Manage(tuple(nodes)))
        # What a release closed stays closed, though the binder that closed it is gone.
        assert not (closed and opened(prisoner, nodes)), number
        assert world.unbind(job).pids == (prisoner.pid,)
        assert not opened(prisoner, nodes)
        assert world.refusal(Bind("mark", job, pack(grants), make=True)) == "conflict"
        prisoner.join(str(world.base))
        assert world.unbind(job).gone
        world.bind(job, *grants)
        prisoner.join(job.path)
        assert opened(prisoner, nodes) == of(grants, nodes)


@pytest.mark.needs("root", "cgroup1")
def test_death_before_the_sub_cgroups_are_opened_is_made_good(world1, nodes, prisoner):
    # v1 only: the job's own cgroup has the device, the step below does not have it yet.
    device = min(nodes)
    world1.start(*nodes)
    world1.bind(world1.job())
    prisoner.join(world1.job().path)
    prisoner.mkdir(f"{world1.job().path}/step")
    prisoner.join(f"{world1.job().path}/step")

    class Dying(Cgroup):
        def descendants(self, depth=1):
            raise KeyboardInterrupt

    with world1.binder._roots.open(world1.job()) as cgroup:
        dying = Dying(cgroup.ref, os.dup(cgroup.fd), cgroup.parent, cgroup.name)
        fence = world1.binder._fences.of(world1.job())
        with dying, pytest.raises(KeyboardInterrupt):
            fence.bind(dying, (Rule(device, 6),), made=False)
    assert opened(prisoner, nodes) == set()
    world1.bind(world1.job(), Rule(device, 6))
    assert opened(prisoner, nodes) == {device}
