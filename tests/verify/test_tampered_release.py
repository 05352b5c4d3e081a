"""A release after another root's hand: what the job was given is not given on while it has it."""

from __future__ import annotations

import asyncio
import os

import pytest

V2 = pytest.param("cgroup2", marks=pytest.mark.needs("root", "cgroup2", "bpf"))
PER_JOB = pytest.param("per-job", marks=pytest.mark.needs("root", "cgroup2", "bpf"))
V1 = pytest.param("cgroup1", marks=pytest.mark.needs("root", "cgroup1"))


@pytest.fixture(params=[V2, PER_JOB, V1])
def stage(request, make_stage):
    return make_stage(request.param)


@pytest.fixture(params=["made", "named"])
def path(request, stage):
    """The cgroup of a job: one of ours, or one of the caller's."""
    stage.bind(None if request.param == "made" else stage.world.named("slurm/job"))
    return stage.path


def release(stage):
    return asyncio.run(stage.executor.take_back(stage.binding))


@pytest.mark.parametrize("mark", [None, b"someone\nelse", b"", b"\xff\xfe"])
def test_job_whose_mark_was_lost_or_changed_is_closed_and_its_process_is_seen(stage, path, mark):
    trier = stage.trying()
    if mark is None:
        os.removexattr(path, "trusted.xce.binding")
    else:
        os.setxattr(path, "trusted.xce.binding", mark)
    unbound = release(stage)
    assert (unbound.gone, unbound.populated) == (False, True)
    assert unbound.pids == (trier.process.pid,)
    told = trier.later()
    assert not told["given"] + told["stolen"], told
    again = release(stage)
    assert again.pids == (trier.process.pid,)


def test_cgroup_that_another_live_binding_has_is_left_to_it(stage, path):
    first = stage.binding
    trier = stage.trying()
    stage.bind(stage.world.named("other"), job="2")
    os.setxattr(path, "trusted.xce.binding", b"2\n")
    stage.binding = first
    assert release(stage).gone
    assert not trier.later()["refused"]  # not ours to close


def test_cgroup_that_was_made_anew_is_nobodys_and_left_alone(stage, path):
    os.rmdir(path)
    os.mkdir(path)
    trier = stage.trying()
    assert release(stage).gone
    told = trier.later()
    assert told["given"]
    assert told["stolen"]  # it is no job's, and so not fenced
