"""With a writable state folder: a ledger that says what nobody asked for."""

from __future__ import annotations

import os
import time

import pytest

from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.host import Host
from xce_nodeagent.model import binding as events
from xce_nodeagent.model.instance import DeviceNode
from xce_nodeagent.model.plan import AdoptCgroup, AllowDevice, CgroupRef, MakeCgroup, Plan, SetEnv

AGENT_UID = 61499

pytestmark = [
    pytest.mark.needs("root", "cgroup1", "cgroup2", "bpf"),
    pytest.mark.timeout(120),
]


def forge(agent, step, *more, state):
    """Write a binding into the ledger, with its checksum and all, as who owns the folder can."""
    (path,) = (p for p in (agent.folder / "state").iterdir() if p.read_bytes()[:6] == b"SQLite")
    ledger = Ledger(path, Host().boot_id(), time.time)
    plan = Plan((step, *more, SetEnv("LD_PRELOAD", "/nowhere/x.so")))
    ledger.commit(
        events.Committed(
            job="forged", attempt="1", ask=events.Ask(uid=0), instances=(), excluded=(), plan=plan,
            generation="x:1", enforcement="cgroup2",
        )
    )  # fmt: skip
    if state != "committed":
        ledger.commit(events.Bound(job="forged", attempt="1"))
    if state == "releasing":
        ledger.commit(events.ReleaseIntended(job="forged", attempt="1"))
    ledger.close()
    for one in (agent.folder / "state").iterdir():
        os.chown(one, AGENT_UID, AGENT_UID)


@pytest.mark.parametrize("state", ["committed", "bound", "releasing"])
@pytest.mark.parametrize("what", ["a cgroup outside", "the cgroup of all", "memory", "a disk"])
def test_a_forged_binding_reaches_nothing_and_the_others_are_served(  # noqa: PLR0917  # fixtures
    agent, mount, backend, in_job, refused, state, what
):
    """One of the cgroup of all keeps new jobs out, because bindings do not nest: it opens none."""
    agent.call("Prepare", job="kept", attempt="1", request="rusage[gpu=1]")
    outside = agent.home.parent / "outside"
    outside.mkdir()
    agent.kill()
    step = MakeCgroup(CgroupRef(backend, f"{agent.home}/job-forged"))
    more = ()
    if what == "a cgroup outside":
        step = AdoptCgroup(CgroupRef(backend, str(outside)), populated=True)
    elif what == "the cgroup of all":
        step = AdoptCgroup(CgroupRef(backend, str(mount)), populated=True)
    elif what == "memory":
        more = (AllowDevice(DeviceNode("/dev/mem", "c", 1, 1)),)
    else:
        more = (AllowDevice(DeviceNode("/dev/sda", "b", 8, 0)),)
    forge(agent, step, *more, state=state)
    agent.start()
    assert not [name for name in os.listxattr(outside) if name.startswith("trusted.xce")]
    assert "trusted.xce.binding" not in os.listxattr(mount)
    kept = {b["job"]: b["state"] for b in agent.call("ListBindings")["bindings"]}
    assert kept["kept"] == "bound"
    ask = {"job": "new", "attempt": "1", "request": "rusage[gpu=1]"}
    if what == "the cgroup of all":
        with pytest.raises(refused, match="bindings do not nest"):
            agent.call("Prepare", **ask)
        ask = {"job": "kept", "attempt": "1", "request": "rusage[gpu=1]"}
    answer = agent.call("Prepare", **ask)
    inside = in_job(next(iter(answer["cgroup"].values())))
    cards = agent.instances("gpu")
    assert sorted(inside.opens(one["devices"][0]["path"]) for one in cards).count("ENXIO") == 1
    inside.end()
    outside.rmdir()


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_forged_mark_is_not_a_job_s_to_make(agent):
    """What is rebuilt from the cgroups is read from `trusted.`, which no user writes."""
    path = agent.call("Prepare", job="1", attempt="1")["cgroup"]["v2"]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(54321)
            os.setuid(54321)
            os.setxattr(path, "trusted.xce.binding", b"2\n1")
        except PermissionError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
