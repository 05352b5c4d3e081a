"""The end of a binder: what it tidies up, and what it leaves as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.plan import CgroupRef
from xce_nodeagent.model.rule import READ_WRITE, Device, Rule
from xce_nodeagent.privileged.ops import Manage


@pytest.fixture
def simulated(scratch, local_majors):
    directory = scratch / "sim"
    nodes = tuple(
        DeviceNode(f"{directory}/gpu{minor}", "c", local_majors[0], minor) for minor in range(2)
    )
    yield nodes
    for node in nodes:
        Path(node.path).unlink(missing_ok=True)


def with_nodes(world, simulated):
    directory = os.path.dirname(simulated[0].path)
    world.binder = world.new_binder(simulated=simulated, device_directory=directory)
    return directory


def test_simulated_nodes_are_made_managed_and_removed(world, simulated, prisoner):
    directory = with_nodes(world, simulated)
    world.take()
    world.ask(Manage(tuple(Device.of(node) for node in simulated)))
    first, second = (Device.of(node) for node in simulated)
    world.bind(world.job(), Rule(first, READ_WRITE))
    prisoner.join(world.job().path)
    assert prisoner.may(simulated[0].path, first, READ_WRITE)
    assert not prisoner.may(simulated[1].path, second, READ_WRITE)
    prisoner.join(str(world.base))
    world.unbind(world.job())
    world.binder.close()
    assert not os.path.exists(directory)
    assert not os.path.exists(world.home.path)


def test_close_with_a_bound_cgroup_leaves_all_as_it_is(world, simulated, prisoner):
    directory = with_nodes(world, simulated)
    world.take()
    world.ask(Manage(tuple(Device.of(node) for node in simulated)))
    named = world.named("slurm")
    world.bind(named)
    prisoner.join(named.path)
    world.binder.close()
    assert os.path.isdir(directory)
    assert os.path.isdir(world.home.path)
    assert not prisoner.may(simulated[0].path, Device.of(simulated[0]), READ_WRITE)
    with_nodes(world, simulated)
    world.take(named)
    prisoner.join(str(world.base))
    world.unbind(named, remove=False)
    world.binder.close()
    assert not os.path.exists(directory)


def test_close_counts_jobs_below_the_home_that_nobody_told_it_of(world, nodes):
    world.start(*nodes)
    world.bind(world.job())
    world.restart()
    world.binder.close()
    assert os.path.isdir(world.job().path)


def test_close_can_be_repeated(world, nodes):
    world.start(*nodes)
    world.binder.close()
    world.binder.close()
    assert world.refusal(Manage(())) == "not_ready"


def test_known_cgroup_outside_the_roots_is_passed_over(world, nodes):
    outside = CgroupRef(world.backend, str(world.base / "outside"))
    os.mkdir(outside.path)
    os.setxattr(outside.path, "trusted.xce.binding", b"mark")
    world.take(outside, world.job("never"))
    world.pretend(*nodes)
    world.ask(Manage(tuple(nodes)))
    world.binder.close()
    assert not os.path.exists(world.home.path)
