"""Every pinned error, brought about on a real agent and told by the command line.

The code is what programs read, the class says whose fault it is, the exit status is the class.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from xce_nodeagent.errors import BY_CODE

pytestmark = pytest.mark.needs("root", "cgroup2", "bpf")

COMMAND = [sys.executable, "-m", "xce_nodeagent"]
# Another user cannot read this interpreter everywhere: it is loaded before the user changes.
AS_OTHER = (
    "import os, sys; from xce_nodeagent.cli import binding, main, invocation, table;"
    "from xce_nodeagent.daemon import client;"
    "os.setgroups([]); os.setgid(54321); os.setuid(54321); sys.exit(main.main(sys.argv[1:]))"
)


def tell(agent, *arguments, command=COMMAND, **more):
    done = subprocess.run(
        [*command, *arguments], env=agent.env | more, text=True, capture_output=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


def busy(agent):
    held = agent.call("Prepare", job="other", request="rusage[gpu=1]")["instances"]
    return ["prepare", "--job", "1", "--instance", held[0]]


def stale(agent):
    agent.call("Prepare", job="1", attempt="a")
    agent.call("Release", job="1", attempt="a")
    return ["prepare", "--job", "1", "--attempt", "a"]


def no_fit_now(agent):
    agent.call("Prepare", job="other", request="rusage[gpu=1]")
    return ["prepare", "--job", "1", "--request", "rusage[gpu=8]"]


def drained(agent):
    card = agent.instances("gpu")[0]["id"]
    agent.call("Drain", id=card, reason="fan fault")
    return ["prepare", "--job", "1", "--instance", card]


def reserved(agent):
    nic = agent.instances("nic")[-1]["id"]
    agent.stop()
    agent.extra = f'[nic]\nreserve = ["{nic}"]'
    agent.start()
    return ["prepare", "--job", "1", "--instance", nic]


def conflict(agent):
    agent.call("Prepare", job="1", attempt="a")
    return ["prepare", "--job", "1", "--attempt", "a", "--request", "rusage[gpu=1]"]


def enforcement(agent):
    agent.home.rmdir()  # where the job's cgroup is to be made
    return ["prepare", "--job", "1"]


def not_ready(agent):
    agent.kill()
    return ["prepare", "--job", "1"]


def bad_config(agent):
    agent.config.write_text("[agent]\nno_such_key = 1\n", "utf-8")
    return ["inventory", "--local"]


CASES = {
    "busy": ("transient", 75, busy),
    "stale": ("transient", 75, stale),
    "not_ready": ("transient", 75, not_ready),
    "no_fit_now": ("transient", 75, no_fit_now),
    "never_fits": ("job", 65, ["prepare", "--job", "1", "--request", "rusage[gpu=9]"]),
    "unhealthy": ("node", 69, ["prepare", "--job", "1", "--port", "20007"]),
    "drained": ("node", 69, drained),
    "reserved": ("caller", 64, reserved),
    "unknown_instance": ("node", 69, ["prepare", "--job", "1", "--instance", "GPU-none"]),
    "conflict": ("caller", 64, conflict),
    "enforcement": ("node", 69, enforcement),
    "bad_request": ("caller", 64, ["prepare", "--job", "1", "--request", "rusage["]),
    "bad_job_id": ("caller", 64, ["prepare", "--job", "a b"]),
    "bad_cgroup": ("caller", 64, ["prepare", "--job", "1", "--cgroup", "/sys/fs/cgroup/x"]),
    "bad_port": ("caller", 64, ["prepare", "--job", "1", "--port", "80"]),
    "not_permitted": ("denied", 77, ["prepare", "--job", "1"]),
    "bad_config": ("config", 78, bad_config),
}


def test_every_pinned_code_has_its_case():
    # `internal` is a fault of ours: nobody knows how to bring it about. No agent says `upstream`:
    # it is of the commands that read the store.
    assert set(CASES) == set(BY_CODE) - {"internal", "upstream"}


@pytest.mark.parametrize("code", CASES)
def test_pinned_error(agent, code):
    error_class, status, asked = CASES[code]
    arguments = asked if isinstance(asked, list) else asked(agent)
    command = [sys.executable, "-c", AS_OTHER] if code == "not_permitted" else COMMAND
    with socket.socket() as stranger:
        if code == "unhealthy":
            stranger.bind(("127.0.0.1", 20_007))
            stranger.listen()
        plain = tell(agent, *arguments, command=command)
        told = tell(agent, *arguments, "--json", command=command)
    assert (plain.returncode, plain.stdout) == (status, ""), plain.stderr
    error = json.loads(told.stdout)["error"]
    assert (told.returncode, error["code"], error["class"]) == (status, code, error_class)
    assert BY_CODE[code].error_class == error_class
    # The message is for people: it says what is wrong and what to do.
    assert plain.stderr.startswith("xce-nodeagent: ")
    assert len(error["message"]) > 30
    if code == "busy":
        assert error["details"]["holders"] == [{"job": "other", "attempt": ""}]
    assert os.path.exists(agent.folder / "state" / "ledger.db")


def test_what_is_left_over_is_a_success(agent, in_job):
    """A release that is not clean is no error: exit status 0, and the evidence in the answer."""
    answer = agent.call("Prepare", job="1", request="rusage[gpu=1]")
    inside = in_job(answer["cgroup"]["v2"])
    assert inside.opens("/dev/null") == "open"
    done = tell(agent, "release", "--job", "1", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["released"], told["clean"]) == (0, True, False)
    assert [one["pid"] for one in told["holders"]] == [inside.process.pid]
    assert told["quarantined"] == answer["instances"]
