"""What went wrong elsewhere with a job's device rules."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from xce_nodeagent.privileged import bpf, bpfcall

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")


def nodes(agent, kind="gpu"):
    """Give each instance's last device node: of a slice, its own capability."""
    return {one["id"]: one["devices"][-1]["path"] for one in agent.instances(kind)}


def opens_only(inside, paths, given):
    for instance, path in paths.items():
        assert inside.opens(path) == ("ENXIO" if instance in given else "EPERM"), instance
    return True


def programs(cgroup):
    descriptor = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return bpfcall.query(descriptor).ids
    finally:
        os.close(descriptor)


def detach_all(cgroup):
    descriptor = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for program_id in bpfcall.query(descriptor).ids:
            program = bpfcall.prog_open(program_id)
            bpfcall.detach(descriptor, program)
            os.close(program)
    finally:
        os.close(descriptor)


@pytest.mark.needs("cgroup1")
def test_daemon_reload_opens_the_v1_rules(agent1, in_job):
    """openpbs#1700: a reload wrote `a` over the rules. They are asserted again, unasked."""
    answer = agent1.call("Prepare", job="1", request="rusage[gpu=1]")
    cgroup = answer["cgroup"]["devices"]
    paths = nodes(agent1)
    inside = in_job(cgroup)
    Path(cgroup, "devices.allow").write_text("a", "ascii")
    assert opens_only(inside, paths, paths)
    agent1.kill()
    agent1.start()
    assert opens_only(inside, paths, answer["instances"])


def test_daemon_reload_strips_the_rules(agent, in_job):
    """nvidia-container-toolkit#48, runc#4568: a reload drops rules that systemd did not make.

    Whoever takes our program away finds it back at the next look; and what a reload of the real
    systemd does is in tests/systemd.
    """
    answer = agent.call("Prepare", job="1", attempt="a", request="rusage[gpu=1]")
    cgroup = answer["cgroup"]["v2"]
    paths = nodes(agent)
    inside = in_job(cgroup)
    for look_again in (
        lambda: agent.call("Prepare", job="1", attempt="a", request="rusage[gpu=1]"),
        lambda: (agent.kill(), agent.start()),
    ):
        agent.call("Prepare", job="other")  # so that the outcome is recorded
        detach_all(cgroup)
        assert opens_only(inside, paths, paths)
        look_again()
        assert opens_only(inside, paths, answer["instances"])
        assert len(programs(cgroup)) == 1
        agent.call("Release", job="other")


def test_the_64th_update_is_refused_with_e2big(agent, in_job):
    """runc#2366: each update appended a program, until a cgroup's 64 places were full."""
    first, second, *_ = nodes(agent)
    agent.call("Prepare", job="1", attempt="a", instances=[first])
    cgroup = str(agent.home / "job-1")
    paths = nodes(agent)
    inside = in_job(cgroup)
    before = programs(cgroup)
    for _ in range(500):
        agent.call("Prepare", job="1", attempt="a", instances=[second], add=True)
        agent.call("Release", job="1", attempt="a", instances=[second])
    assert programs(cgroup) == before
    assert len(before) == 1
    assert opens_only(inside, paths, [first])


def test_the_verifier_log_is_too_small():
    """Slurm 23.02: a program was refused for want of room for the log of its verification.

    It is loaded without a log; only one that is refused is loaded again, for its words.
    """
    moves = [bpf.Insn(0xB7, dst=0, imm=number % 2) for number in range(4000)]
    bad = [bpf.Insn(0xBF, dst=0, src=9), bpf.Insn(0x95)]  # reads a register that nobody wrote
    with pytest.raises(OSError, match="R9 !read_ok"):
        bpfcall.prog_load(bpf.assemble([*moves, *bad]), "xce_test")
    os.close(bpfcall.prog_load(bpf.assemble([*moves, bpf.Insn(0x95)]), "xce_test"))


def test_only_one_mig_slice_per_job_works(agent, in_job):
    """Slurm 23.02: the wrong slices were open, and of several only one."""
    agent.stop()
    agent.start("dgx-a100-mig")
    slices = agent.instances("mig")
    card = slices[0]["parent"]
    of_card = [one["id"] for one in slices if one["parent"] == card]
    other = next(one["id"] for one in slices if one["parent"] != card)
    wanted = [*of_card[:2], other]
    answer = agent.call("Prepare", job="1", instances=wanted)
    assert set(answer["instances"]) == set(wanted)
    inside = in_job(answer["cgroup"]["v2"])
    for one in slices:
        for node in one["devices"][1:]:  # the first is the card's
            expected = "ENXIO" if one["id"] in wanted else "EPERM"
            assert inside.opens(node["path"]) == expected, one["id"]
    assert answer["env"]["CUDA_VISIBLE_DEVICES"].split(",") == answer["instances"]


@pytest.mark.parametrize("profile", ["gb200", "dgx-a100-mig"])
def test_nodes_that_configure_the_driver_are_open_to_jobs(agent, in_job, profile):
    """CVE-2024-42511 (IMEX channels of others), nvidia-container-toolkit#1740 (MIG config)."""
    agent.stop()
    agent.start(profile)
    control = agent.call("GetInventory")["control"]["simulated"]
    never = [one["node"]["path"] for one in control if not one["granted"]]
    assert never
    everything = agent.call("Prepare", job="1", request="rusage[gpu=1]")
    nothing = agent.call("Prepare", job="2")
    for answer in (everything, nothing):
        inside = in_job(answer["cgroup"]["v2"])
        assert {inside.opens(path) for path in never} == {"EPERM"}


@pytest.mark.needs("cc")
def test_nodes_absent_at_boot_leave_the_first_job_unfenced(driver, gpu, in_job, eventually):
    """OAR#193, bibigrid#705: jobs older than the driver were never fenced from its cards."""
    agent = driver.running
    driver.start("init 9")
    inside = in_job(agent.call("Prepare", job="1")["cgroup"]["v2"])
    driver.write(gpu("1B", "GPU-a", 0))
    eventually(driver.cards)
    assert inside.opens(driver.node("GPU-a")) == "EPERM"
    later = agent.call("Prepare", job="2", request="rusage[gpu=1]")
    assert in_job(later["cgroup"]["v2"]).opens(driver.node("GPU-a")) == "ENXIO"


@pytest.mark.needs("cc")
def test_a_prepare_succeeds_though_a_node_that_cuda_needs_is_absent(driver, gpu, refused):
    """k8s-device-plugin#222, dra-driver#1380: nvidia-uvm came later; the job was told success."""
    agent = driver.running
    devices = driver.folder / "devices"
    devices.write_text(
        "".join(
            line
            for line in devices.read_text("ascii").splitlines(keepends=True)
            if "nvidia-uvm" not in line
        ),
        "ascii",
    )
    driver.start(gpu("1B", "GPU-a", 0))
    with pytest.raises(refused) as caught:
        agent.call("Prepare", job="1", instances=["GPU-a"])
    assert caught.value.code == "unhealthy"
    assert "nvidia-uvm" in str(caught.value)


def test_startup_is_refused_while_processes_move(agent, in_job):
    """Slurm 25.11.5: EBUSY at the start while processes moved between cgroups."""
    answer = agent.call("Prepare", job="1", attempt="a", request="rusage[gpu=1]")
    top = Path(answer["cgroup"]["v2"])
    below = top / "step"
    below.mkdir()
    inside = in_job(str(top))
    pid = str(inside.process.pid)
    stop = threading.Event()

    def move():
        while not stop.is_set():
            for folder in (below, top):
                (folder / "cgroup.procs").write_text(pid, "ascii")

    mover = threading.Thread(target=move)
    mover.start()
    try:
        for _ in range(3):
            agent.kill()
            agent.start()
            assert opens_only(inside, nodes(agent), answer["instances"])
    finally:
        stop.set()
        mover.join()


def test_empty_cgroups_pile_up(agent):
    """LSF, galaxy#6293, torque#359: cgroups of ended jobs stayed until there was no room."""
    for number in range(200):
        agent.call("Prepare", job=str(number), request="rusage[gpu=1]")
        if number % 10 == 0:
            (agent.home / f"job-{number}" / "step" / "task").mkdir(parents=True)
        assert agent.call("Release", job=str(number))["clean"] is True
    assert [path for path in agent.home.iterdir() if path.is_dir()] == []
