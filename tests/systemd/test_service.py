"""The agent as a service: a job's fence and binding through everything that systemd does to it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.needs("nspawn", "cgroup2", "bpf"), pytest.mark.timeout(600)]

AGENT, HELPERS, JOBS = "xce-nodeagent", "xce-nodeagent-helpers", "xce-nodeagent-jobs"
CONFIG = """
[access]
prepare_uids = [0]
[ports]
range = "20000-20999"
[simulate]
profile = "dgx-h100"
[metrics]
listen = "127.0.0.1:9400"
textfile = "/run/xce-nodeagent/xce.prom"
"""
# A port that is fixed is nobody else's: the container has a network of its own.
SCRAPE = (
    "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9400/metrics').read().decode())"
)
PREPARE = (
    "xce-nodeagent", "prepare", "--job", "12[3]", "--attempt", "1", "--request", "rusage[gpu=2]",
    "--ports", "http=1", "--format", "json",
)  # fmt: skip
TRY = """
import errno, json, os, sys
def attempt(path):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode[error.errno]
    return "open"
print(json.dumps({path: attempt(path) for path in sys.argv[1:]}))
"""


class Job:
    """A job that is bound to 2 of 8 GPUs for all tests of this module."""

    def __init__(self, machine, prepared, gpus):
        self.machine = machine
        self.prepared = prepared
        self.cgroup = prepared["cgroup"]["v2"]
        held = prepared["instances"]
        self.mine = [node["path"] for one in gpus if one["id"] in held for node in one["devices"]]
        self.all = [node["path"] for one in gpus for node in one["devices"]]

    def tried(self):
        """Let a new process in the job's cgroup try all nodes."""
        enter = f'echo $$ >{self.cgroup}/cgroup.procs && exec python3 -c "$0" "$@"'
        return json.loads(self.machine.run("sh", "-c", enter, TRY, *self.all).stdout)

    def is_fenced(self):
        """ENXIO is what the kernel says when the fence lets pass: no driver is behind the node."""
        expected = {path: "ENXIO" if path in self.mine else "EPERM" for path in self.all}
        assert len(self.mine) == 2
        assert len(self.all) == 8
        assert self.tried() == expected

    def is_known(self):
        """The agent has the binding, and the same prepare gives the same answer."""
        told = json.loads(self.machine.run("xce-nodeagent", "job", "12[3]", "--json").stdout)
        binding = told.get("binding", told)
        assert binding["state"] == "bound"
        assert binding["instances"] == self.prepared["instances"]
        assert json.loads(self.machine.run(*PREPARE).stdout) == self.prepared


@pytest.fixture(scope="module")
def served(machine):
    machine.run("/opt/xce-nodeagent/systemd/install")
    machine.run("sh", "-c", 'printf %s "$0" >/etc/xce-nodeagent/config.toml', CONFIG)
    started = machine.run("systemctl", "start", AGENT, check=False)
    if started.returncode:
        pytest.fail(started.stderr + machine.journal(HELPERS) + machine.journal(AGENT))
    yield machine
    said = machine.journal(AGENT) + machine.journal(HELPERS)
    assert "Traceback" not in said, said


@pytest.fixture(scope="module")
def job(served):
    inventory = json.loads(served.run("xce-nodeagent", "inventory", "--json").stdout)
    gpus = [one for one in inventory["instances"] if one["type"] == "gpu"]
    return Job(served, json.loads(served.run(*PREPARE).stdout), gpus)


def main_pid(machine, unit):
    return machine.show(unit, "MainPID")


def is_active(machine, *units):
    return machine.run("systemctl", "is-active", *units, check=False).returncode == 0


def test_start_waits_until_it_serves(served):
    assert served.show(AGENT, "ActiveState") == "active"
    assert served.show(AGENT, "Type") == "notify"
    assert is_active(served, AGENT, HELPERS, JOBS)


def test_doctor_finds_no_fault(served, job):
    told = json.loads(served.run("xce-nodeagent", "doctor", "--json", check=False).stdout)
    faults = [check for check in told["checks"] if check["state"] == "fault"]
    assert not faults


def test_anybody_reads_and_only_the_named_prepare(served, job):
    inventory = json.loads(served.run("xce-nodeagent", "inventory", "--json", user=4242).stdout)
    assert inventory["source"] == "agent"
    assert sum(one["type"] == "gpu" for one in inventory["instances"]) == 8
    refused = served.run("xce-nodeagent", "prepare", "--job", "other", user=4242, check=False)
    assert refused.returncode == 77
    assert served.run("xce-nodeagent", "release", "--job", "12[3]", user=4242, check=False)
    job.is_known()


def test_agent_has_no_privilege(served):
    status = served.run("cat", f"/proc/{main_pid(served, AGENT)}/status").stdout
    fields = dict(line.split(":\t") for line in status.splitlines())
    uid = served.run("id", "-u", "xce-nodeagent").stdout.strip()
    assert set(fields["Uid"].split()) == {uid}
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"):
        assert int(fields[name], 16) == 0
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"


def test_metrics_can_be_asked_for_and_read(served):
    """Neither the unit nor the agent's own filter is in the way."""
    told = served.run("python3", "-c", SCRAPE).stdout
    for name in ("xce_nodeagent_instances", "process_resident_memory_bytes", "process_open_fds"):
        assert re.search(rf"^{name}.* [1-9]", told, re.MULTILINE)
    written = served.run("cat", "/run/xce-nodeagent/xce.prom", user=4242).stdout
    assert "xce_nodeagent_instances" in written


def test_jobs_are_in_the_jobs_home(served, job):
    assert job.cgroup.startswith(f"/sys/fs/cgroup/system.slice/{JOBS}.service/job-")
    job.is_fenced()


def test_restart_of_the_agent(served, job):
    helpers, agent = main_pid(served, HELPERS), main_pid(served, AGENT)
    served.run("systemctl", "restart", AGENT)
    assert main_pid(served, AGENT) != agent
    assert main_pid(served, HELPERS) == helpers
    job.is_fenced()
    job.is_known()


def test_fence_holds_while_the_agent_is_stopped(served, job):
    served.run("systemctl", "stop", AGENT)
    try:
        assert is_active(served, HELPERS, JOBS)
        job.is_fenced()
        assert served.run("xce-nodeagent", "jobs", check=False).returncode == 75
    finally:
        served.run("systemctl", "start", AGENT)
    job.is_known()


def test_fence_holds_through_a_reload(served, job):
    served.run("systemctl", "daemon-reload")
    job.is_fenced()
    served.run("systemctl", "daemon-reexec")
    job.is_fenced()
    job.is_known()


def test_killed_agent_comes_back(served, job):
    agent, helpers = main_pid(served, AGENT), main_pid(served, HELPERS)
    served.run("sh", "-c", f"kill -KILL {agent}")
    job.is_fenced()
    served.wait(
        "a new agent",
        lambda: main_pid(served, AGENT) not in {"0", agent} and is_active(served, AGENT),
    )
    assert main_pid(served, HELPERS) == helpers
    job.is_fenced()
    job.is_known()


def binds_again(machine):
    """Wait until new helpers serve the agent."""
    other = ("xce-nodeagent", "prepare", "--job", "after", "--request", "rusage[gpu=1]")
    machine.wait("it binds again", lambda: machine.run(*other, check=False).returncode == 0)
    machine.run("xce-nodeagent", "release", "--job", "after")


def test_killed_helpers_come_back_and_the_agent_goes_on(served, job):
    agent, helpers = main_pid(served, AGENT), main_pid(served, HELPERS)
    served.run("sh", "-c", f"kill -KILL {helpers}")
    job.is_fenced()
    served.wait(
        "new helpers",
        lambda: main_pid(served, HELPERS) not in {"0", helpers} and is_active(served, HELPERS),
    )
    binds_again(served)
    assert main_pid(served, AGENT) == agent
    job.is_fenced()
    job.is_known()


def test_restart_of_the_helpers(served, job):
    agent, helpers = main_pid(served, AGENT), main_pid(served, HELPERS)
    served.run("systemctl", "restart", HELPERS)
    assert main_pid(served, HELPERS) != helpers
    job.is_fenced()
    binds_again(served)
    assert main_pid(served, AGENT) == agent
    job.is_fenced()
    job.is_known()


def test_no_agent_without_helpers(served, job):
    """It does not start some of its own, without rights; it comes when they are there."""
    served.run("systemctl", "stop", AGENT, HELPERS)
    served.run("rm", "/run/xce-nodeagent-helpers/helpers.sock")
    try:
        assert served.run(
            "systemctl", "start", "--job-mode=ignore-dependencies", AGENT, check=False
        )
        assert not is_active(served, AGENT)
    finally:
        served.run("systemctl", "start", HELPERS)
        served.wait("the agent is there", lambda: is_active(served, AGENT))
    job.is_known()


def test_jobs_outlive_everything(served, job):
    served.run("systemctl", "stop", AGENT, HELPERS)
    try:
        assert not is_active(served, AGENT)
        assert not is_active(served, HELPERS)
        assert is_active(served, JOBS)
        job.is_fenced()
    finally:
        served.run("systemctl", "start", AGENT)
    job.is_fenced()
    job.is_known()


def test_watchdog_is_fed_and_ends_an_agent_that_hangs(served, job):
    """With two seconds instead of the unit's thirty."""
    drop = f"/run/systemd/system/{AGENT}.service.d"
    served.run("sh", "-c", f"mkdir -p {drop}; printf '[Service]\\nWatchdogSec=2\\n' >{drop}/w.conf")
    served.run("systemctl", "daemon-reload")
    served.run("systemctl", "restart", AGENT)
    try:
        agent = main_pid(served, AGENT)
        for _ in range(4):  # of one second each: twice the time after which it would be killed
            last = served.show(AGENT, "WatchdogTimestampMonotonic")
            served.wait(
                "the watchdog is fed",
                lambda last=last: served.show(AGENT, "WatchdogTimestampMonotonic") != last,
                seconds=2,
            )
        assert main_pid(served, AGENT) == agent
        served.run("sh", "-c", f"kill -STOP {agent}")
        served.wait(
            "an agent that hangs is replaced",
            lambda: main_pid(served, AGENT) not in {"0", agent} and is_active(served, AGENT),
        )
        job.is_fenced()
        job.is_known()
    finally:
        served.run("rm", "-r", drop)
        served.run("systemctl", "daemon-reload")
        served.run("systemctl", "restart", AGENT)


@pytest.mark.needs("cc")
def test_worker_of_the_readme_and_the_hooks(served, job, tmp_path):
    """The C program as it stands there prepares a job; the hook releases it."""
    text = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    source = re.search(r"```c\n(.*?)```", text, re.DOTALL)
    assert source
    (tmp_path / "worker.c").write_text(source[1], "utf-8")
    worker = tmp_path / "worker"
    subprocess.run(["cc", "-o", worker, tmp_path / "worker.c"], check=True, timeout=60)
    served.put(worker, "/usr/local/bin/worker")
    answer = json.loads(served.run("worker").stdout.rstrip("\0\n"))["parameters"]
    assert (answer["job"], answer["enforcement"]) == ("4711", "cgroup2")
    assert set(answer["instances"]).isdisjoint(job.prepared["instances"])
    hook = "/opt/xce-nodeagent/hooks/"
    asked = ("--job", "4711", "--attempt", "1", "--request", "rusage[gpu=2]", "--format", "json")
    assert json.loads(served.run(hook + "prepare", *asked).stdout) == answer
    served.run(hook + "release", "--job", "4711", "--attempt", "1")
    assert served.run("xce-nodeagent", "job", "4711", check=False).returncode != 0


@pytest.mark.parametrize(("unit", "limit"), [(AGENT, 2.0), (HELPERS, 6.0)])
def test_exposure(served, unit, limit):
    """What `systemd-analyze security` gives: 0 is closed, 10 is open."""
    said = served.run("systemd-analyze", "security", "--no-pager", f"{unit}.service").stdout
    figure = re.search(r"exposure level for \S+: (\d+\.\d)", said)
    assert figure
    assert float(figure[1]) <= limit
