"""How the agent and its supervisor start and end, and what keeps them from starting."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from upstream import certificates
from upstream.receivers import Receiver, receiver

pytestmark = [pytest.mark.needs("root", "cgroup1", "cgroup2", "bpf"), pytest.mark.timeout(120)]


def descriptors(pid: int) -> set[str]:
    there = Path(f"/proc/{pid}/fd")
    return {os.readlink(number) for number in there.iterdir() if int(number.name) > 2}


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    return [int(child) for child in text.split()]


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_code_in_the_current_directory_is_not_run(agent, tmp_path):
    """As a console script has it: its own folder is searched for modules, the current one not."""
    agent.stop()
    script = agent.folder / "script"
    script.mkdir()
    (script / "xce").write_text("from xce_nodeagent.cli.main import main\nraise SystemExit(main())")
    proof = tmp_path / "proof"
    for module in ("tomllib", "msgspec", "xce_nodeagent"):
        (tmp_path / f"{module}.py").write_text(f"open({str(proof)!r}, 'w').close()")
    agent.program = [str(script / "xce")]
    agent.directory = tmp_path
    agent.start()
    assert agent.call("Prepare", job="1")["enforcement"] == "cgroup2"
    assert not proof.exists()


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_descriptors_of_whoever_started_it_are_closed(agent, tmp_path):
    agent.stop()
    secret = tmp_path / "secret"
    secret.touch()
    with secret.open() as held:
        agent.inherits = (held.fileno(),)
        agent.start()
    (supervisor,) = children(agent.process.pid)
    everybody = [agent.process.pid, supervisor, *children(supervisor)]
    assert len(everybody) >= 5
    for pid in everybody:
        assert str(secret) not in descriptors(pid)


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_helper_program_closes_what_it_inherits_too(agent, tmp_path):
    """The unit starts it without the agent. Here it fails, and says what it had open."""
    secret = tmp_path / "secret"
    secret.touch()
    code = (
        "import os, sys\n"
        "from xce_nodeagent.daemon import helpers\n"
        "status = helpers.main(['--socket', '--folder', sys.argv[1]])\n"
        "print(status, os.path.exists('/proc/self/fd/' + sys.argv[2]))\n"
    )
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with secret.open() as held:
        done = subprocess.run(
            [sys.executable, "-c", code, str(shared), str(held.fileno())],
            env=agent.env,
            pass_fds=(held.fileno(),),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert done.stdout == "78 False\n"
    assert "nobody else can write to" in done.stderr


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_link_in_the_place_of_the_state_is_refused(agent, tmp_path):
    agent.stop()
    victim = tmp_path / "victim"
    victim.mkdir(0o755)
    state = agent.folder / "state"
    state.rename(agent.folder / "away")
    state.symlink_to(victim)
    done = agent.refused_start()
    assert done.returncode == 78
    assert str(state) in done.stderr
    assert (victim.stat().st_uid, victim.stat().st_mode & 0o777) == (0, 0o755)


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_second_agent_in_the_same_place_is_refused_and_the_first_goes_on(agent):
    agent.call("Prepare", job="1", attempt="a")
    done = agent.refused_start("--simulate", "dgx-h100")
    assert done.returncode == 75
    assert "another agent" in done.stderr
    assert agent.call("Prepare", job="2")["enforcement"] == "cgroup2"


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_second_agent_with_the_same_state_is_refused(agent):
    """Each would give the same card away: neither sees what the other wrote."""
    done = agent.refused_start(
        "--simulate", "dgx-h100", XCE_NODEAGENT_RUNTIME_DIR=str(agent.folder / "run2")
    )
    assert done.returncode == 75
    assert "XCE_NODEAGENT_STATE_DIR" in done.stderr


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_configuration_with_faults_is_refused_with_all_of_them(agent):
    agent.stop()
    agent.config.write_text("[agent]\nuser = 7\n[ports]\nrange = 'x'\n", "utf-8")
    done = agent.refused_start()
    assert done.returncode == 78
    assert "config.toml:2: [agent] user" in done.stderr
    assert "config.toml:4: [ports] range" in done.stderr


@pytest.fixture
def rejecting(agent) -> Iterator[Receiver]:
    """A receiver that the agent reports to with a certificate that ended yesterday."""
    folder = agent.folder / "pem"
    folder.mkdir()
    authority = certificates.Authority(folder)
    own, ended = authority.sign("receiver"), authority.sign("agent", days=-1)
    for path in folder.iterdir():
        path.chmod(0o644)
    with receiver(certificates.server(own, clients=authority.ca)) as there:
        agent.extra = (
            f'[upstream.http]\nurl = "{there.url}"\nca = "{authority.ca}"\n'
            f'cert = "{ended.cert}"\nkey = "{ended.key}"\n'
        )
        yield there


def text_of(agent, name: str, word: str) -> str:
    """Wait until a check of doctor's has a word in its text; give the text."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        (check,) = (one for one in agent.call("Doctor")["checks"] if one["name"] == name)
        if word in check["text"]:
            return str(check["text"])
        select.select([], [], [], 0.05)
    return pytest.fail(f"{name}: {check}")


@pytest.mark.needs("openssl")
@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_once_it_serves_it_imports_nothing_more(agent, rejecting, in_job, refused):
    """The interpreter may lie where only root can read, and the agent is not root any more."""
    agent.stop()
    agent.log.write_text("", "utf-8")
    agent.python = [sys.executable, "-X", "importtime"]
    agent.start()
    agent.call("GetInventory")
    answer = agent.call(
        "Prepare", job="1", attempt="a", request="rusage[gpu=1]", ports=[{"count": 1}]
    )
    inside = in_job(answer["cgroup"]["v2"])
    for ask in ({"job": "1", "attempt": "a", "request": "rusage[gpu=2]"}, {"job": "/"}, {}):
        with pytest.raises(refused, match=r"io\.xce"):
            agent.call("Prepare", **ask)
    agent.call("Prepare", job="1", attempt="a", request="rusage[nic=1]", add=True)
    assert f"{agent.folder}/pem/agent.pem ended" in text_of(agent, "report.http", "ended")
    agent.call("GetBinding", job="1")
    agent.call("Release", job="1", attempt="a")
    inside.end()
    agent.call("Drain", id="ports", reason="x")
    os.kill(agent.process.pid, signal.SIGHUP)  # looks at the hardware again
    agent.call("Reconcile", jobs=[])
    assert agent.stop() == 0
    lines = agent.log.read_text("utf-8").splitlines()
    serving = next(n for n, line in enumerate(lines) if "serving:" in line)
    assert any(line.startswith("import time:") for line in lines[:serving])
    assert [line for line in lines[serving:] if line.startswith("import time:")] == []


@pytest.mark.parametrize("backend", ["cgroup2"], indirect=True)
def test_a_signal_to_the_whole_group_and_a_second_one_leave_nothing_behind(agent):
    """timeout(1) signals its child and then the group; Ctrl-C is pressed twice."""
    agent.stop()
    agent.in_group = True
    agent.start()
    group = agent.process.pid
    os.kill(group, signal.SIGTERM)
    os.killpg(group, signal.SIGTERM)
    os.killpg(group, signal.SIGINT)
    assert agent.process.wait(20) == 0
    assert not agent.home.exists()
    assert not agent.devices.exists()


def test_the_witness_yields_to_the_jobs_that_start(agent):
    everybody = psutil.Process(agent.process.pid).children(recursive=True)
    assert {p.nice() for p in everybody if p.name() == "xce-witness"} == {10}
    assert {p.nice() for p in everybody if p.name() == "xce-binder"} == {0}
