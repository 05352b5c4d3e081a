"""The fence of cgroup v1, where it has a nature of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from xce_nodeagent.model.rule import READ_WRITE, Access, Rule
from xce_nodeagent.privileged.ops import Bind, Manage, pack

pytestmark = pytest.mark.needs("root", "cgroup1")


def write(cgroup, name, *lines):
    for line in lines:
        with open(f"{cgroup.path}/{name}", "w") as file:
            file.write(line)


def shown(cgroup):
    with open(f"{cgroup.path}/devices.list") as file:
        return set(file.read().splitlines())


@pytest.fixture
def narrow(world1, nodes):
    """A cgroup that refuses by default, as a container's, with the nodes listed one by one."""
    world1.start(*nodes)
    cgroup = world1.named("container")
    write(cgroup, "devices.deny", "a")
    write(cgroup, "devices.allow", "c 1:3 rwm")
    write(cgroup, "devices.allow", *(f"{device} rwm" for device in nodes))
    return cgroup


def test_cgroup_that_refuses_by_default_is_narrowed_and_can_be_verified(
    world1, nodes, narrow, prisoner
):
    device = min(nodes)
    grants = (Rule(device, READ_WRITE),)
    world1.bind(narrow, *grants)
    assert shown(narrow) == {"c 1:3 rwm", f"{device} rw"}
    assert world1.verify(narrow, *grants).state == "ok"
    prisoner.join(narrow.path)
    assert prisoner.may(nodes[device], device, READ_WRITE)
    assert not prisoner.may(nodes[max(nodes)], max(nodes), READ_WRITE)
    write(narrow, "devices.allow", f"{max(nodes)} r")
    assert f"{max(nodes)} r is open" in world1.verify(narrow, *grants).fault
    write(narrow, "devices.deny", f"{max(nodes)} r", f"{device} w")
    assert f"{device} w is not allowed" in world1.verify(narrow, *grants).fault
    world1.bind(narrow, *grants)
    assert world1.verify(narrow, *grants).state == "ok"


def test_whole_major_that_is_open_cannot_be_fenced_and_is_refused(world1, nodes, narrow):
    major = min(nodes).major
    write(narrow, "devices.allow", f"c {major}:* rw")
    answer = world1.binder.handle(Bind("mark", narrow, pack(()), make=False))
    assert answer.code == "enforcement"
    assert f"c {major}:0 rw is open to it without a grant" in answer.message
    assert "trusted.xce.binding" not in os.listxattr(narrow.path)


def test_device_that_the_cgroup_above_refuses_cannot_be_granted(world1, nodes):
    device = min(nodes)
    world1.start(*nodes)
    inside = world1.named("slice/job")
    write(world1.named("slice"), "devices.deny", f"{device} rwm")
    answer = world1.binder.handle(Bind("mark", inside, pack((Rule(device, 6),)), make=False))
    assert answer.code == "enforcement"
    assert f"devices.allow '{device} rw': the cgroup above does not allow it" in answer.message


def test_a_step_s_own_narrowing_stays_when_the_job_is_bound_again(world1, nodes, prisoner):
    first, second, *_ = sorted(nodes)
    grants = (Rule(first, READ_WRITE), Rule(second, READ_WRITE))
    world1.start(*nodes)
    world1.bind(world1.job(), *grants)
    step = world1.job("job-1/step")
    os.mkdir(step.path)
    write(step, "devices.deny", f"{first} rwm")
    prisoner.join(step.path)
    world1.bind(world1.job(), *grants)
    assert not prisoner.may(nodes[first], first, READ_WRITE)
    assert prisoner.may(nodes[second], second, READ_WRITE)


def test_repair_closes_what_another_tool_opened(world1, nodes, prisoner):
    first, second, *_ = sorted(nodes)
    world1.start(*nodes)
    world1.bind(world1.job(), Rule(first, READ_WRITE))
    prisoner.join(world1.job().path)
    write(world1.job(), "devices.allow", "a")  # as systemd does at a daemon-reload
    assert prisoner.may(nodes[second], second, READ_WRITE)
    world1.bind(world1.job(), Rule(first, READ_WRITE))
    assert not prisoner.may(nodes[second], second, READ_WRITE)
    assert prisoner.may(nodes[first], first, READ_WRITE)
    assert not prisoner.may(nodes[first], first, Access.MKNOD)


def test_binding_again_never_closes_what_is_granted(world1, nodes, scratch):
    """A process opens its device all the time while the binding is repeated and changed."""
    first, second, *_ = sorted(nodes)
    world1.start(*nodes)
    world1.bind(world1.job(), Rule(first, READ_WRITE))
    code = (
        "import errno, os, sys\n"
        "open(sys.argv[1] + '/cgroup.procs', 'w').write('0')\n"
        "print('in', flush=True)\n"
        "os.set_blocking(0, False)\n"
        "wrong = tries = 0\n"
        "while True:\n"
        "    try: os.open(sys.argv[2], os.O_RDWR)\n"
        "    except OSError as error: wrong += error.errno != errno.ENXIO\n"
        "    tries += 1\n"
        "    if tries % 64 == 0 and sys.stdin.buffer.read(1): break\n"
        "print(tries, wrong)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, world1.job().path, str(nodes[first])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout.readline() == b"in\n"
        for round_ in range(200):
            more = (Rule(second, READ_WRITE),) if round_ % 2 else ()
            world1.bind(world1.job(), Rule(first, READ_WRITE), *more)
        child.stdin.write(b".")
        child.stdin.close()
        tries, wrong = map(int, child.stdout.read().split())
    assert tries > 100
    assert wrong == 0


def test_device_no_longer_managed_stays_denied_to_those_bound_before(world1, nodes, prisoner):
    device = min(nodes)
    world1.start(*nodes)
    world1.bind(world1.job())
    world1.ask(Manage(()))
    prisoner.join(world1.job().path)
    assert not prisoner.may(nodes[device], device, READ_WRITE)
    world1.bind(world1.job("job-2"), mark="two")
    prisoner.join(world1.job("job-2").path)
    assert prisoner.may(nodes[device], device, READ_WRITE)


def test_recorded_grants_of_another_binding_differ(world1, nodes):
    world1.start(*nodes)
    world1.bind(world1.job(), Rule(min(nodes), READ_WRITE))
    fault = world1.verify(world1.job()).fault
    assert f"recorded as {min(nodes)} rw; they should be none" in fault
