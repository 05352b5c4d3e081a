"""What is left of root after `assume`: tried in a child, which cannot come back."""

import grp
import json
import os
import subprocess
import sys

import pytest

from xce_nodeagent.privileged import credential
from xce_nodeagent.privileged.capability import Capability

CHILD = """
import ctypes, json, os, signal, sys
from xce_nodeagent.privileged import capability, credential
from xce_nodeagent.privileged.capability import Capability as C
identity, keep, then = json.loads(sys.argv[1])
who = credential.Identity(*identity[:2], tuple(identity[2])) if identity else None
credential.assume(who, frozenset(C[name] for name in keep))
status = dict(l.split(':', 1) for l in open('/proc/self/status').read().splitlines())
told = {key: status[key].split() for key in
        ('Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs')}
def attempt(what, *arguments):
    try:
        what(*arguments)
    except OSError as error:
        return error.strerror
    return 'worked'
told['setuid 0'] = attempt(os.setresuid, 0, 0, 0)
told['after setuid'] = sorted(capability.effective())
told['setgroups'] = attempt(os.setgroups, [0])
told['/etc/shadow'] = attempt(lambda: open('/etc/shadow').close())
told['dumpable'] = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
print(json.dumps(told))
"""


def assumed(identity=None, keep=()):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps([identity, list(keep), ""])],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    return json.loads(done.stdout)


def bits(*capabilities):
    return [f"{sum(1 << c for c in capabilities):016x}"]


@pytest.mark.needs("root")
def test_the_prober_is_somebody_else_with_its_groups_and_nothing_more():
    told = assumed([61498, 61498, [44, 109]])
    assert told["Uid"] == ["61498"] * 4
    assert told["Gid"] == ["61498"] * 4
    assert told["Groups"] == ["44", "109"]
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert told[kind] == bits(), kind
    assert told["NoNewPrivs"] == ["1"]
    assert told["dumpable"] == 0
    for attempt in ("setuid 0", "setgroups"):
        assert told[attempt] == "Operation not permitted"
    assert told["/etc/shadow"] == "Permission denied"


@pytest.mark.needs("root")
def test_the_witness_keeps_two_capabilities_over_its_change_of_uid():
    keep = (Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH)
    told = assumed([61497, 61497, []], [c.name for c in keep])
    assert told["Uid"] == ["61497"] * 4
    assert told["CapPrm"] == told["CapEff"] == bits(*keep)
    assert told["CapBnd"] == told["CapAmb"] == told["CapInh"] == bits()
    assert told["/etc/shadow"] == "worked"  # that is what DAC_READ_SEARCH means


@pytest.mark.needs("root")
def test_the_binder_stays_root_but_root_gives_nothing_by_itself():
    told = assumed(None, ["SYS_ADMIN"])
    assert told["Uid"] == ["0"] * 4
    assert told["CapPrm"] == told["CapEff"] == bits(Capability.SYS_ADMIN)
    assert told["CapBnd"] == bits()
    assert told["setuid 0"] == "worked"
    assert told["after setuid"] == [Capability.SYS_ADMIN]  # without the fix-up for uid 0
    assert told["setgroups"] == "Operation not permitted"


@pytest.mark.needs("root")
def test_a_capability_that_is_missing_is_no_error():
    code = (
        "from xce_nodeagent.privileged import capability as c\n"
        "c.keep({c.Capability.KILL})\n"
        "c.keep({c.Capability.KILL, c.Capability.MKNOD})\n"
        "c.seal()\n"
        "print(sorted(c.permitted()), sorted(c.effective()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "[5] [5]\n"


def test_an_account_that_nobody_made_is_a_number():
    made = credential.account("no-such-account-of-xce", 61498, [3, 1, 3])
    assert made == credential.Identity(61498, 61498, (1, 3))
    nobody = credential.account("nobody", 61498)
    assert (nobody.uid, nobody.gid) != (61498, 61498)


def test_the_device_groups_are_those_of_the_host_and_never_roots():
    found = credential.device_groups()
    assert 0 not in found
    try:
        assert grp.getgrnam("video").gr_gid in found
    except KeyError:
        pytest.skip("this host has no group video")


def test_a_child_whose_parent_has_gone_does_not_start():
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            credential.die_with_parent(os.getppid() + 1, 9)
        except ProcessLookupError:
            os.write(writer, b"refused")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        assert told.read() == b"refused"
    os.waitpid(pid, 0)
