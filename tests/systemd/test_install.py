"""The units as they are put in place, and the jobs' home, which needs no agent."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.needs("nspawn", "cgroup2"), pytest.mark.timeout(600)]

UNITS = ("xce-nodeagent.service", "xce-nodeagent-helpers.service", "xce-nodeagent-jobs.service")
JOBS = UNITS[2]
HOME = f"/sys/fs/cgroup/system.slice/{JOBS}"


@pytest.fixture(scope="module")
def fresh(machine):
    machine.run("/opt/xce-nodeagent/systemd/install")
    return machine


def start_job(machine, name):
    """Start a process in a cgroup of the jobs' home; give what `cgroup.procs` says then."""
    procs = f"{HOME}/{name}/cgroup.procs"
    machine.run("mkdir", f"{HOME}/{name}")
    # A subshell in the background is the job: it moves itself before it becomes `sleep`.
    machine.run(
        "sh", "-c",
        f"(echo $(exec sh -c 'echo $PPID') >{procs}; exec sleep 300) </dev/null >/dev/null 2>&1 &",
    )  # fmt: skip
    machine.wait("the job runs", lambda: machine.run("cat", procs).stdout != "")
    return machine.run("cat", procs).stdout


def test_units_are_without_fault(fresh):
    said = fresh.run("systemd-analyze", "verify", *(f"/etc/systemd/system/{u}" for u in UNITS))
    assert (said.stdout, said.stderr) == ("", "")


def test_installing_twice_changes_nothing_that_an_admin_wrote(fresh):
    config = "/etc/xce-nodeagent/config.toml"
    fresh.run("sh", "-c", f"echo '# mine' >>{config}")
    fresh.run("/opt/xce-nodeagent/systemd/install")
    assert fresh.run("tail", "-n1", config).stdout == "# mine\n"


def test_accounts_and_folders_are_there(fresh):
    assert fresh.run("stat", "-c", "%U %G %a", "/run/xce-nodeagent").stdout.split() == [
        "xce-nodeagent", "xce-nodeagent", "755",
    ]  # fmt: skip
    assert {"video", "render"} <= set(fresh.run("id", "-nG", "xce-prober").stdout.split())
    assert fresh.run("id", "-nG", "xce-nodeagent").stdout.split() == ["xce-nodeagent"]


def test_jobs_home_keeps_its_cgroups(fresh):
    """Its keeper is out of the way, and neither a stop nor the keeper's death takes a job away."""
    fresh.run("systemctl", "start", JOBS)
    assert fresh.show(JOBS, "Delegate") == "yes"
    assert fresh.show(JOBS, "TasksMax") == "infinity"
    keeper = fresh.show(JOBS, "MainPID")
    assert fresh.run("cat", f"{HOME}/cgroup.procs").stdout == ""
    assert fresh.run("cat", f"{HOME}/keeper/cgroup.procs").stdout.split() == [keeper]

    job = start_job(fresh, "job-1")

    refused = fresh.run("systemctl", "stop", JOBS, check=False)
    assert refused.returncode != 0
    assert "refused" in refused.stderr
    fresh.run("systemctl", "daemon-reload")
    assert fresh.run("cat", f"{HOME}/job-1/cgroup.procs").stdout == job

    fresh.run("sh", "-c", f"kill -9 {keeper}")
    fresh.wait(
        "a new keeper",
        lambda: (
            fresh.show(JOBS, "MainPID") not in {"0", keeper}
            and fresh.show(JOBS, "ActiveState") == "active"
        ),
    )
    assert fresh.run("cat", f"{HOME}/job-1/cgroup.procs").stdout == job


def test_jobs_home_rules_no_device(fresh):
    """No device program of systemd's own is on it, which would rule the jobs below."""
    fresh.run("systemctl", "start", JOBS)
    assert fresh.show(JOBS, "DevicePolicy") == "auto"
    assert fresh.show(JOBS, "DeviceAllow") == ""
    assert fresh.show(JOBS, "PrivateDevices") == "no"


def test_uninstall_leaves_the_jobs(fresh):
    """Units and files are gone, jobs, accounts and state are not; and it can come back."""
    fresh.run("systemctl", "start", JOBS)
    job = start_job(fresh, "job-2")
    fresh.run("/opt/xce-nodeagent/systemd/install", "--uninstall")
    try:
        assert fresh.run("cat", f"{HOME}/job-2/cgroup.procs").stdout == job
        left = fresh.run("systemctl", "list-units", "--plain", "--no-legend", "xce-*")
        assert left.stdout == ""
        assert not fresh.run("sh", "-c", "ls /etc/systemd/system | grep xce", check=False).stdout
        assert fresh.run("id", "-un", "xce-nodeagent").stdout == "xce-nodeagent\n"
    finally:
        fresh.run("/opt/xce-nodeagent/systemd/install")
