"""How the agent and its supervisor start: nothing of where they were started gets in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    done = subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", "run"],
        env=agent.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 78
    assert str(state) in done.stderr
    assert (victim.stat().st_uid, victim.stat().st_mode & 0o777) == (0, 0o755)
