"""Where a hierarchy cannot be fenced (`best-effort`), what was never bound can be released."""

import ctypes
import os
import struct

import pytest

from xce_nodeagent.privileged import bpf, bpfcall
from xce_nodeagent.privileged.ops import Bind, Unbind, pack

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")

BPF = 321
ATTACH, DETACH, DEVICE = 8, 9, 6


def _attach_alone(path, command=ATTACH):
    """Put a program on a cgroup that tolerates no other below: as a container runtime may."""
    program = bpfcall.prog_load(bpf.anchor(), "foreign")
    folder = os.open(path, os.O_RDONLY)
    attributes = struct.pack("=IIII", folder, program, DEVICE, 0).ljust(128, b"\0")
    try:
        answer = ctypes.CDLL(None).syscall(BPF, command, attributes, len(attributes))
        assert answer == 0
    finally:
        os.close(folder)
        os.close(program)


@pytest.fixture
def unfenced(world2):
    _attach_alone(world2.base)
    return world2


def test_what_was_never_bound_is_released(unfenced):
    assert "cgroup2" not in unfenced.take().backends
    job, named = unfenced.job(), unfenced.named("theirs")
    for cgroup in (job, named):
        make = cgroup == job
        bind = Bind("1\na", cgroup, pack(()), make=make)
        assert unfenced.refusal(bind) in {"enforcement", "not_ready"}
        assert unfenced.unbind(cgroup, mark="1\na", remove=make).gone
    assert not os.path.exists(job.path)
    assert os.path.exists(named.path), "it is its owner's"


def test_what_was_bound_before_is_not_free_before_nobody_is_in_it(world2, nodes, prisoner):
    world2.start(*nodes)
    job, named = world2.job(), world2.named("theirs")
    world2.bind(job)
    world2.bind(named)
    prisoner.join(job.path)
    # The fences of others are not ours to take: here they go, so that theirs can come.
    world2.binder.close(tidy=False)
    for path in (job.path, named.path, world2.home.path):
        folder = os.open(path, os.O_RDONLY)
        for number in bpfcall.query(folder).ids:
            program = bpfcall.prog_open(number)
            bpfcall.detach(folder, program)
            os.close(program)
        os.close(folder)
    _attach_alone(world2.base)
    world2.binder = world2.new_binder()
    assert "cgroup2" not in world2.take(job, named).backends
    assert world2.refusal(Unbind("mark", job, remove=True)) == "enforcement"
    assert world2.refusal(Unbind("mark", named, remove=False)) == "enforcement"
    prisoner.join(str(world2.base))
    assert world2.unbind(job).gone
    assert not os.path.exists(job.path)
