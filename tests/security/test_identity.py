"""What /proc/PID/status says of each process: who it is, and what it could ever gain."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import pytest
from agent.running import Running, serving

from xce_nodeagent.privileged.capability import Capability

pytestmark = [
    pytest.mark.needs("root", "cgroup2", "bpf"),
    pytest.mark.timeout(120),
    pytest.mark.parametrize("backend", ["cgroup2"], indirect=True),
]

# The simulated machine has nodes, so the binder may make them: MKNOD. The supervisor keeps what
# its helpers need, because a child has no more than its parent. The runner is its account's.
EXPECTED = """\
process     uid    gid    no_new_privs seccomp inheritable ambient permitted = effective
agent       61499  61499  1            2       -           -       -
supervisor  0      0      1            2       -           -       {supervisor}
binder      0      0      1            2       -           -       DAC_OVERRIDE,NET_ADMIN,SYS_ADMIN,MKNOD
prober      61498  61498  1            2       -           -       -
witness     61497  61497  1            2       -           -       DAC_READ_SEARCH,SYS_PTRACE,CHECKPOINT_RESTORE
listener    61498  61498  1            2       -           -       -
runner      {uid:<6} {gid:<6} 1            2       -           -       -
"""  # noqa: E501  # a table
ROLES = ("binder", "prober", "witness", "listener", "runner")
PERSON = "daemon"  # an account that every host has, and no one of ours
SUPERVISOR = (
    "DAC_OVERRIDE,DAC_READ_SEARCH,KILL,SETGID,SETUID,SETPCAP,NET_ADMIN,SYS_PTRACE,SYS_ADMIN,MKNOD"
    ",CHECKPOINT_RESTORE"
)


@pytest.fixture
def agent(mount):
    """An agent with every process that there may be: a site's program is configured as well."""

    class Reported(Running):
        def start(self, profile="dgx-h100"):
            self.extra = f'[reporter]\nprogram = ["/bin/echo", "{{}}"]\nuser = "{PERSON}"\n'
            super().start(profile)

    with serving(mount, Reported) as running:
        yield running


def status(pid):
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def names(bits):
    known = [one.name for one in Capability if int(bits, 16) >> one & 1]
    unknown = int(bits, 16) & ~sum(1 << one for one in Capability)
    return ",".join([*known, *([f"and {unknown:x}"] if unknown else [])]) or "-"


def children(pid):
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    return [int(child) for child in text.split()]


def helpers(supervisor):
    """Give the helpers, when each role is there and has given up what it has not."""
    until = time.monotonic() + 30
    while True:
        found = children(supervisor)
        told = [status(pid) for pid in found]
        ready = [one for one in told if one["CapBnd"].strip("0") == ""]
        named = {one["Name"].removeprefix("xce-") for one in ready}
        if (len(ready) == len(told) and named >= set(ROLES)) or time.monotonic() > until:
            return found
        time.sleep(0.02)


def test_every_process_is_who_it_should_be_and_can_gain_nothing(agent):
    agent.call("Prepare", job="1")
    (supervisor,) = children(agent.process.pid)
    everybody = {"agent": [agent.process.pid], "supervisor": [supervisor]}
    for pid in helpers(supervisor):
        everybody.setdefault(status(pid)["Name"].removeprefix("xce-"), []).append(pid)
    columns = ["process", "uid", "gid", "no_new_privs", "seccomp", "inheritable", "ambient",
               "permitted = effective"]  # fmt: skip
    lines = [columns]
    for name in ("agent", "supervisor", *ROLES):
        rows = set()
        for pid in everybody.pop(name):
            found = status(pid)
            uids, gids = set(found["Uid"].split()), set(found["Gid"].split())
            assert len(uids) == len(gids) == 1, "real, effective, saved and file system"
            assert found["CapPrm"] == found["CapEff"]
            # What it could ever have: nothing, but for the supervisor, whose children have theirs.
            most = found["CapBnd"]
            assert names(most) == (SUPERVISOR if name == "supervisor" else "-"), name
            for thread in Path(f"/proc/{pid}/task").iterdir():
                one = status(f"{pid}/task/{thread.name}")
                same = ("Uid", "Gid", "NoNewPrivs", "Seccomp", "CapEff", "CapPrm", "CapBnd")
                assert [one[key] for key in same] == [found[key] for key in same], thread
            rows.add((
                name, uids.pop(), gids.pop(), found["NoNewPrivs"], found["Seccomp"],
                names(found["CapInh"]), names(found["CapAmb"]), names(found["CapEff"]),
            ))  # fmt: skip
        assert len(rows) == 1, "a spare is as the one that works"
        lines.append(list(rows.pop()))
    assert everybody == {}
    widths = (11, 6, 6, 12, 7, 11, 7, 0)
    table = "".join(
        " ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        + "\n"
        for line in lines
    )
    person = pwd.getpwnam(PERSON)
    assert table == EXPECTED.format(supervisor=SUPERVISOR, uid=person.pw_uid, gid=person.pw_gid)


def test_no_process_of_ours_can_be_traced_or_looked_into_by_its_own_uid(agent):
    """Not dumpable: /proc/PID is root's, whose ever the process is."""
    (supervisor,) = children(agent.process.pid)
    for pid in (agent.process.pid, *children(supervisor)):
        assert Path(f"/proc/{pid}/environ").stat().st_uid == 0, pid


def test_the_agents_groups_are_its_own_alone_and_the_probers_those_of_devices(agent):
    (supervisor,) = children(agent.process.pid)
    pids = {"agent": agent.process.pid}
    pids |= {status(pid)["Name"].removeprefix("xce-"): pid for pid in children(supervisor)}
    groups = {name: set(status(pid)["Groups"].split()) for name, pid in pids.items()}
    assert groups["agent"] == groups["witness"] == set()
    assert groups["prober"] == groups["listener"]
    assert "0" not in groups["prober"]
    person = pwd.getpwnam(PERSON)
    theirs = os.getgrouplist(PERSON, person.pw_gid)
    assert groups["runner"] == set(map(str, theirs)), "as that account has them"
