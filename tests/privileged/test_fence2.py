"""The fence of cgroup v2: how it is found again, repaired and refused."""

from __future__ import annotations

import contextlib
import os
import time

import pytest

from xce_nodeagent.model.rule import READ_WRITE, Device, Rule
from xce_nodeagent.privileged import bpf, bpfcall, fence2
from xce_nodeagent.privileged.ops import Bind, Manage, Taken, pack

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


@contextlib.contextmanager
def directory(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def attached(path):
    with directory(path) as fd:
        return bpfcall.query(fd).ids


def attach(path, code, name, *, replaces=None):
    """Attach a program as another tool would."""
    program = bpfcall.prog_load(code, name)
    try:
        with directory(path) as fd:
            bpfcall.attach(fd, program, replaces)
    finally:
        os.close(program)


def detach_all(path):
    with directory(path) as fd:
        for program_id in bpfcall.query(fd).ids:
            program = bpfcall.prog_open(program_id)
            bpfcall.detach(fd, program)
            os.close(program)


def ids_of(path):
    """The programs of a cgroup, each with its maps."""
    found = {}
    for program_id in attached(path):
        program = bpfcall.prog_open(program_id)
        found[program_id] = bpfcall.prog_info(program).map_ids
        os.close(program)
    return found


def test_new_binder_finds_everything_again_without_writing(world2, nodes):
    grants = (Rule(min(nodes), READ_WRITE),)
    assert not world2.start(*nodes).recovered
    world2.bind(world2.job(), *grants)
    before = ids_of(world2.home.path), ids_of(world2.job().path)
    taken = world2.restart()
    assert (taken.program, taken.recovered, taken.reason) == ("shared", True, "")
    assert world2.verify(world2.job(), *grants).state == "ok"
    assert (ids_of(world2.home.path), ids_of(world2.job().path)) == before


def test_managed_devices_are_known_after_a_restart(world2, nodes):
    world2.start(*nodes)
    world2.restart()
    world2.bind(world2.job(), Rule(min(nodes), READ_WRITE))


def test_maps_are_found_through_a_job_when_the_home_is_gone(world2, nodes, prisoner):
    device = min(nodes)
    world2.start(*nodes)
    named = world2.named("slurm")
    world2.bind(named, Rule(device, READ_WRITE))
    prisoner.join(named.path)
    os.rmdir(world2.home.path)
    maps = ids_of(named.path)
    assert world2.restart(named).recovered
    assert world2.verify(named, Rule(device, READ_WRITE)).state == "ok"
    (anchor_maps,) = ids_of(world2.home.path).values()
    assert set(anchor_maps) == set(*maps.values())
    world2.ask(Manage(()))
    assert prisoner.may(nodes[max(nodes)], max(nodes), READ_WRITE)


def test_hundred_restarts_and_rebindings_leave_one_program(world2, nodes):
    grants = (Rule(min(nodes), READ_WRITE),)
    world2.start(*nodes)
    world2.bind(world2.job(), *grants)
    for _ in range(100):
        world2.restart(world2.job())
        world2.bind(world2.job(), *grants)
    assert len(attached(world2.job().path)) == 1
    assert len(attached(world2.home.path)) == 1


def test_older_program_is_swapped_on_the_same_maps(world2, nodes, prisoner):
    # What an update of this code does: same name and maps, other instructions.
    device = min(nodes)
    grants = (Rule(device, READ_WRITE),)
    world2.start(*nodes)
    world2.bind(world2.job(), *grants)
    prisoner.join(world2.job().path)
    fence = world2.binder._fences.of(world2.job())
    older = bpf.fence(fence._managed, fence._grants, fence._slots - 1)
    (current,) = attached(world2.job().path)
    replaced = bpfcall.prog_open(current)
    attach(world2.job().path, older, bpf.FENCE_NAME, replaces=replaced)
    os.close(replaced)
    assert "another device program" in world2.verify(world2.job(), *grants).fault
    world2.bind(world2.job(), *grants)
    assert world2.verify(world2.job(), *grants).state == "ok"
    assert len(attached(world2.job().path)) == 1
    assert prisoner.may(nodes[device], device, READ_WRITE)


def test_duplicates_are_reported_then_removed(world2, nodes):
    world2.start(*nodes)
    world2.bind(world2.job())
    fence = world2.binder._fences.of(world2.job())
    copy = bpf.fence(fence._managed, fence._grants, fence._slots)
    attach(world2.job().path, copy, bpf.FENCE_NAME)
    assert "2 device programs" in world2.verify(world2.job()).fault
    world2.bind(world2.job())
    assert len(attached(world2.job().path)) == 1
    assert world2.verify(world2.job()).state == "ok"


def test_detached_program_is_reported_then_put_back_with_its_grants(world2, nodes, prisoner):
    device = min(nodes)
    grants = (Rule(device, READ_WRITE),)
    world2.start(*nodes)
    world2.bind(world2.job(), *grants)
    prisoner.join(world2.job().path)
    detach_all(world2.job().path)
    assert "not attached" in world2.verify(world2.job(), *grants).fault
    world2.bind(world2.job(), *grants)
    assert world2.verify(world2.job(), *grants).state == "ok"
    assert not prisoner.may(nodes[max(nodes)], max(nodes), READ_WRITE)


def test_other_tools_programs_are_left_alone(world2, nodes):
    world2.start(*nodes)
    named = world2.named("container")
    attach(named.path, bpf.anchor(), "other_tool")
    (theirs,) = attached(named.path)
    for _ in range(3):
        world2.bind(named)
    assert world2.verify(named).state == "ok"
    assert len(attached(named.path)) == 2
    assert theirs in attached(named.path)


def test_stale_grants_do_not_come_back_with_the_program(world2, nodes):
    # A tool took the program away and the mark too; the storage of the cgroup is still there.
    device = min(nodes)
    world2.start(*nodes)
    named = world2.named("slurm")
    world2.bind(named, Rule(device, READ_WRITE))
    with world2.binder._roots.open(named) as cgroup:
        cgroup.drop_mark()
        fence = world2.binder._fences.of(world2.job())
        fence.forget(cgroup)
        assert fence.verify(cgroup, ()).state == "ok"


def test_lost_anchor_is_put_back(world2, nodes):
    world2.start(*nodes)
    world2.bind(world2.job())
    detach_all(world2.home.path)
    assert world2.restart(world2.job()).recovered
    assert len(attached(world2.home.path)) == 1
    assert world2.verify(world2.job()).state == "ok"


def test_second_anchor_of_a_crash_is_removed(world2, nodes):
    world2.start(*nodes)
    attach(world2.home.path, bpf.anchor(), bpf.ANCHOR_NAME)
    world2.restart()
    assert len(attached(world2.home.path)) == 1


def test_program_that_tolerates_no_other_is_named(world2, nodes):
    world2.start(*nodes)
    inside = world2.named("slice/job")
    program = bpfcall.prog_load(bpf.anchor(), "lonely_tool")
    with directory(f"{world2.roots}/slice") as fd:
        _attach_alone(fd, program)
    os.close(program)
    answer = world2.binder.handle(Bind("mark", inside, pack(()), make=False))
    assert answer.code == "enforcement"
    assert f"{world2.roots}/slice has a device program (lonely_tool" in answer.message
    assert answer.details["culprit"] == f"{world2.roots}/slice"
    assert "trusted.xce.binding" not in os.listxattr(inside.path)
    assert attached(inside.path) == ()


def _attach_alone(cgroup_fd, program):
    """Attach without ALLOW_MULTI, which our own code cannot do."""
    attr = bpfcall._Attr()
    for place, value in enumerate((cgroup_fd, program, 6, 0)):
        attr[place * 4 : place * 4 + 4] = value.to_bytes(4, "little")
    bpfcall._call(8, attr, "attach alone")


def test_kernel_without_the_shared_program_says_so(make_world):
    world = make_world("per-job")
    taken = world.take()
    assert taken.program == "per-job"
    assert "switched off" in taken.reason


def test_more_grants_than_slots_change_nothing(world2, local_majors):
    devices = tuple(Device("c", local_majors[0], minor) for minor in range(bpf.SLOTS + 1))
    world2.start(*devices)
    grants = tuple(Rule(device, int(READ_WRITE)) for device in devices)
    assert world2.refusal(Bind("mark", world2.job(), pack(grants), make=True)) == "enforcement"
    assert not os.path.exists(world2.job().path)
    world2.bind(world2.job(), *grants[1:])
    assert world2.verify(world2.job(), *grants[1:]).state == "ok"


def test_more_managed_devices_than_the_map_holds_are_refused(world2, local_majors):
    devices = tuple(Device("c", local_majors[0], minor) for minor in range(bpf.MANAGED_LIMIT + 1))
    world2.take()
    world2.pretend(*devices)
    assert world2.refusal(Manage(devices)) == "enforcement"
    world2.ask(Manage(devices[1:]))


def test_no_descriptor_stays_open(world2, nodes):
    before = set(os.listdir("/proc/self/fd"))
    assert isinstance(world2.start(*nodes), Taken)
    world2.bind(world2.job())
    world2.verify(world2.job())
    world2.bind(world2.job())
    world2.unbind(world2.job())
    world2.binder.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_maps_go_with_the_last_use(world2, nodes):
    world2.start(*nodes)
    (maps,) = ids_of(world2.home.path).values()
    world2.binder.close()
    assert not os.path.exists(world2.home.path)
    assert all(_gone(map_id) for map_id in maps)


def _gone(map_id):
    """Wait until the kernel has freed a map: it does so from a work queue, some ms later."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            os.close(bpfcall.map_open(map_id))
        except FileNotFoundError:
            return True
        time.sleep(0.005)
    return False


def test_both_programs_load_where_the_first_does():
    maps = fence2.SharedFence.take(None, ())
    maps.close()
    assert fence2.JobFence("").kind == "per-job"
