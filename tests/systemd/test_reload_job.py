"""What systemd does to cgroups and units while a job runs and tries: the fence through all of it.

`test_service.py` has the agent's own life as a service; here the agent must notice by itself what
was done to the fence, put it right, and say so.
"""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.needs("nspawn", "cgroup2", "bpf"), pytest.mark.timeout(600)]

AGENT, HELPERS, JOBS = "xce-nodeagent", "xce-nodeagent-helpers", "xce-nodeagent-jobs"
CONFIG = """
[access]
prepare_uids = [0]
[simulate]
profile = "dgx-h100"
"""
PREPARE = (
    "xce-nodeagent", "prepare", "--job", "j", "--attempt", "1", "--request", "rusage[gpu=2]",
    "--format", "json",
)  # fmt: skip

# It tries all the time, and writes what came of it whenever it is asked by a signal.
TRIER = """
import errno, json, os, signal, sys
mine, others = json.loads(sys.argv[1]), json.loads(sys.argv[2])
told = {}
def tell(*_):
    global told
    with open("/run/tried.new", "w") as file: json.dump(told, file)
    os.rename("/run/tried.new", "/run/tried")
    told = {}
signal.signal(signal.SIGUSR1, tell)
tell()
def attempt(path):
    try: os.close(os.open(path, os.O_RDWR))
    except OSError as error: return errno.errorcode[error.errno]
    return "open"
while True:
    for kind, paths in (("mine", mine), ("others", others)):
        for path in paths:
            key = kind + " " + attempt(path)
            told[key] = told.get(key, 0) + 1
"""
# Attach and detach device programs as another tool of root does; there is no bpftool in there.
TOOL = """
import os, sys
from xce_nodeagent.privileged import bpf, bpfcall
verb, path = sys.argv[1:]
fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
if verb == "detach":
    for number in bpfcall.query(fd).ids:
        bpfcall.detach(fd, bpfcall.prog_open(number))
print(len(bpfcall.query(fd).ids))
"""


class Job:
    """A job with 2 of 8 GPUs, and a process in it that tries all the time."""

    def __init__(self, machine):
        self.machine = machine
        inventory = json.loads(machine.run("xce-nodeagent", "inventory", "--json").stdout)
        gpus = [one for one in inventory["instances"] if one["type"] == "gpu"]
        prepared = json.loads(machine.run(*PREPARE).stdout)
        self.cgroup = prepared["cgroup"]["v2"]
        held = prepared["instances"]
        node = {one["id"]: one["devices"][0]["path"] for one in gpus}
        mine = [path for name, path in node.items() if name in held]
        others = [path for name, path in node.items() if name not in held]
        started = machine.run(
            "sh", "-c",
            f'echo $$ >{self.cgroup}/cgroup.procs; python3 -c "$0" "$@" >/dev/null 2>&1 & echo $!',
            TRIER, json.dumps(mine), json.dumps(others),
        )  # fmt: skip
        self.pid = started.stdout.strip()
        self._wait_until_told()

    def tried(self):
        """How its tries went since it was last asked."""
        self.machine.run("rm", "-f", "/run/tried")
        self.machine.run("sh", "-c", f"kill -USR1 {self.pid}")
        self._wait_until_told()
        return json.loads(self.machine.run("cat", "/run/tried").stdout)

    def _wait_until_told(self):
        told = ("test", "-e", "/run/tried")
        self.machine.wait(
            "the job tells", lambda: not self.machine.run(*told, check=False).returncode
        )

    def was_fenced(self):
        """Since it was last asked, it could open what it was given and nothing else, at no time."""
        told = self.tried()
        assert set(told) == {"mine ENXIO", "others EPERM"}, told

    def kept_out(self):
        """Since it was last asked, it could open nothing that it was not given."""
        told = self.tried()
        assert "others EPERM" in told, told
        assert not {key for key in told if key.startswith("others ")} - {"others EPERM"}, told
        return told


def tool(machine, verb, path):
    """Change programs as another tool does; how many hang there now."""
    return int(machine.run("/opt/xce-nodeagent/bin/python", "-c", TOOL, verb, path).stdout)


def doctor(machine, *options):
    told = machine.run("xce-nodeagent", "doctor", "--json", *options, check=False)
    return {check["name"]: check for check in json.loads(told.stdout)["checks"]}


def binding(machine):
    (one,) = json.loads(machine.run("xce-nodeagent", "jobs", "--json").stdout)["bindings"]
    return one


def rounds(machine):
    """What verification has done so far, in the agent's own words."""
    return doctor(machine)["verification"]["text"]


def seen(machine):
    return int(doctor(machine)["reloads"]["text"].rpartition("; ")[2].split()[0])


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
    return Job(served)


@pytest.fixture(autouse=True)
def fenced_before_and_after(job):
    job.tried()
    yield
    job.tried()
    job.was_fenced()


@pytest.mark.parametrize("verb", ["daemon-reload", "daemon-reexec"])
def test_reload_never_opens_the_fence_and_is_noticed(served, job, verb):
    before = seen(served)
    served.run("systemctl", verb)
    served.wait("the agent has seen it", lambda: seen(served) > before)
    job.was_fenced()
    assert binding(served)["healthy"]


@pytest.mark.parametrize("verb", ["daemon-reload", "daemon-reexec"])
def test_what_was_taken_away_is_put_back_at_the_next_reload(served, job, verb):
    def opened():
        # Again, where the second look after the reload before has put it back already.
        tool(served, "detach", job.cgroup)
        return "others ENXIO" in job.tried()

    served.wait("the fault itself opens the fence", opened)
    served.run("systemctl", verb)
    served.wait("the fence is back", lambda: tool(served, "count", job.cgroup) == 1)
    job.tried()
    job.was_fenced()
    assert "the fence is put back: its device program is not attached" in served.journal(AGENT)
    assert ", 0 put back" not in rounds(served)


@pytest.mark.parametrize("verb", ["restart", "reload-or-restart", "try-restart"])
@pytest.mark.parametrize("unit", [AGENT, HELPERS])
def test_restart_of_a_unit_never_opens_the_fence(served, job, verb, unit):
    served.run("systemctl", verb, unit)
    served.wait(
        "it serves", lambda: served.run("xce-nodeagent", "jobs", check=False).returncode == 0
    )
    served.wait(
        "the binding is whole", lambda: "1 whole" in doctor(served, "--repair")["repair"]["text"]
    )
    job.was_fenced()


def test_stopped_agent_puts_back_at_its_start_what_was_taken_meanwhile(served, job):
    served.run("systemctl", "stop", AGENT)
    job.was_fenced()
    tool(served, "detach", job.cgroup)
    served.run("systemctl", "start", AGENT)
    job.tried()
    job.was_fenced()
    assert "1 put back" in rounds(served)


def test_stopped_helpers_change_nothing_and_new_ones_put_back_what_was_taken(served, job):
    served.run("systemctl", "stop", HELPERS)
    job.was_fenced()
    assert binding(served)["healthy"]
    tool(served, "detach", job.cgroup)
    served.run("systemctl", "start", HELPERS)
    served.wait(
        "new helpers repair", lambda: "1 repaired" in doctor(served, "--repair")["repair"]["text"]
    )
    job.tried()
    job.was_fenced()


def test_home_of_the_jobs_refuses_to_be_stopped_and_stays(served, job):
    assert served.run("systemctl", "stop", JOBS, check=False).returncode
    assert served.run("systemctl", "is-active", JOBS).stdout.strip() == "active"
    job.was_fenced()


def test_device_list_set_on_the_jobs_home_is_reported_until_it_is_taken_away(served, job):
    """`set-property` narrows what every job can open; the agent sees it, and cannot undo it."""
    before = seen(served)
    served.run("systemctl", "set-property", "--runtime", f"{JOBS}.service", "DevicePolicy=closed")
    try:
        served.wait("the agent has seen it", lambda: seen(served) > before)
        served.wait("it is reported", lambda: not binding(served)["healthy"])
        fault = binding(served)["fault"]
        assert "masked by program" in fault
        assert f"{JOBS}.service" in fault
        assert "mine EPERM" in job.kept_out()
        assert doctor(served)["binding.j"]["state"] == "warning"
    finally:
        served.run("systemctl", "set-property", "--runtime", f"{JOBS}.service", "DevicePolicy=auto")
    served.wait("it is whole again", lambda: binding(served)["healthy"])
    job.tried()
    job.was_fenced()


def test_device_that_is_allowed_on_the_jobs_home_opens_nothing(served, job):
    """A grant of systemd's cannot widen ours: every program must allow."""
    served.run(
        "systemctl", "set-property", "--runtime", f"{JOBS}.service", "DeviceAllow=char-* rwm"
    )
    try:
        served.wait("it is reported", lambda: not binding(served)["healthy"])
        job.kept_out()
        served.run("systemctl", "daemon-reload")
        job.kept_out()
    finally:
        served.run("systemctl", "set-property", "--runtime", f"{JOBS}.service", "DeviceAllow=")
    served.wait("it is whole again", lambda: binding(served)["healthy"])
    job.tried()


def test_device_list_set_on_the_slice_is_named_with_its_slice(served, job):
    """For ever this time: systemd writes it below /etc."""
    before = seen(served)
    served.run("systemctl", "set-property", "system.slice", "DevicePolicy=strict")
    try:
        served.wait("the agent has seen it", lambda: seen(served) > before)
        served.wait("it is reported", lambda: not binding(served)["healthy"])
        assert "system.slice," in binding(served)["fault"]
        job.kept_out()
    finally:
        served.run("systemctl", "set-property", "system.slice", "DevicePolicy=auto")
    served.wait("it is whole again", lambda: binding(served)["healthy"])
    job.tried()
