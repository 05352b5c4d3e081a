"""A user of the host: what was put in the way before the start, and what can be reached after."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

AGENT_UID, ALICE = 61499, 54321

pytestmark = [
    pytest.mark.needs("root", "cgroup2", "bpf"),
    pytest.mark.timeout(120),
    pytest.mark.parametrize("backend", ["cgroup2"], indirect=True),
]


def modes(folder):
    """Owner and mode of a folder and of each thing in it."""
    found = {}
    for path in (folder, *sorted(folder.iterdir())):
        status = path.lstat()
        kind = stat.S_IFMT(status.st_mode) >> 12
        found[path.name] = (kind, status.st_uid, oct(stat.S_IMODE(status.st_mode)))
    return found


def test_the_folders_and_what_is_in_them_belong_to_who_needs_them(agent):
    folder, file, sock = 4, 8, 12
    assert modes(agent.folder / "run") == {
        "run": (folder, AGENT_UID, "0o755"),
        "agent.lock": (file, AGENT_UID, "0o600"),
        "agent.sock": (sock, AGENT_UID, "0o666"),
    }
    assert modes(agent.folder / "run-helpers") == {
        "run-helpers": (folder, 0, "0o755"),
        "binder.lock": (file, 0, "0o600"),
    }
    state = modes(agent.folder / "state")
    assert state.pop("state") == (folder, AGENT_UID, "0o700")
    assert {uid for _, uid, _ in state.values()} == {AGENT_UID}
    home = os.stat(agent.home)
    assert (home.st_uid, stat.S_IMODE(home.st_mode)) == (0, 0o755)
    job = Path(agent.call("Prepare", job="1", uid=ALICE)["cgroup"]["v2"])
    assert {path.stat().st_uid for path in (job, *job.iterdir())} == {0}
    assert not [path for path in job.iterdir() if path.stat().st_mode & 0o022]
    assert os.stat(agent.devices).st_uid == 0
    assert not os.stat(agent.devices).st_mode & 0o022


def test_a_user_can_read_no_state_and_change_nothing(agent):
    agent.call("Prepare", job="1")
    code = (
        "import os,sys,glob\n"
        "run,state,helpers,home,devices = sys.argv[1:]\n"
        "bad = []\n"
        "def tried(what, function):\n"
        "    try: function()\n"
        "    except PermissionError: return\n"
        "    bad.append(what)\n"
        "tried('list', lambda: os.listdir(state))\n"
        "tried('unlink', lambda: os.unlink(run + '/agent.sock'))\n"
        "tried('rename', lambda: os.rename(run, run + '2'))\n"
        "tried('plant', lambda: os.symlink('/etc/passwd', run + '/x'))\n"
        "tried('lock', lambda: open(helpers + '/binder.lock', 'ab'))\n"
        "tried('agent lock', lambda: open(run + '/agent.lock', 'rb'))\n"
        "tried('cgroup', lambda: os.mkdir(home + '/x'))\n"
        "tried('procs', lambda: open(home + '/job-1/cgroup.procs', 'w').write('0'))\n"
        "tried('node', lambda: os.mknod(devices + '/x', 0o20666, os.makedev(120, 0)))\n"
        "print(bad)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, agent.folder / "run", agent.folder / "state",
         agent.folder / "run-helpers", agent.home, agent.devices],
        user=ALICE, group=ALICE, extra_groups=[], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("kind", ["link to a file", "link to nothing", "file", "fifo", "folder"])
def test_what_is_planted_at_the_sockets_path_is_left_alone(agent, tmp_path, kind):
    """Only the agent's own user could; the folder may have been another's before."""
    agent.stop()
    victim = tmp_path / "victim"
    victim.write_text("precious", "utf-8")
    path = agent.folder / "run" / "agent.sock"
    path.unlink(missing_ok=True)
    if kind == "link to a file":
        path.symlink_to(victim)
    elif kind == "link to nothing":
        path.symlink_to(tmp_path / "nothing")
    elif kind == "file":
        path.write_text("precious", "utf-8")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    before = os.lstat(path)
    done = agent.refused_start()
    assert done.returncode in (64, 78), done.stderr
    assert str(path) in done.stderr
    assert os.lstat(path) == before
    assert (victim.read_text("utf-8"), victim.stat().st_mode & 0o777) == ("precious", 0o644)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("name", ["binder.lock", "helpers.sock"])
def test_a_link_in_the_helpers_folder_is_not_written_through(agent, tmp_path, name):
    agent.stop()
    victim = tmp_path / "victim"
    victim.write_text("precious", "utf-8")
    path = agent.folder / "run-helpers" / name
    path.unlink(missing_ok=True)
    path.symlink_to(victim)
    if name == "helpers.sock":
        agent.start()  # by hand, nobody listens there
    else:
        done = agent.refused_start("--simulate", "dgx-h100")
        assert done.returncode != 0
        assert "binder.lock" in done.stderr
    assert (victim.read_text("utf-8"), victim.stat().st_uid) == ("precious", 0)


@pytest.mark.parametrize(
    ("uid", "mode"), [(AGENT_UID, 0o755), (ALICE, 0o755), (0, 0o777), (0, 0o775)]
)
def test_a_helpers_folder_that_is_not_roots_alone_is_refused(agent, uid, mode):
    """Who can put another lock there can have two binders at once: a stale hand on the fence."""
    agent.stop()
    folder = agent.folder / "run-helpers"
    os.chown(folder, uid, uid)
    folder.chmod(mode)
    done = agent.refused_start("--simulate", "dgx-h100")
    assert done.returncode != 0
    assert str(folder) in done.stderr
    assert not agent.home.exists()


@pytest.mark.parametrize(("uid", "mode"), [(ALICE, 0o700), (ALICE, 0o777)])
@pytest.mark.parametrize("name", ["run", "state"])
def test_a_folder_of_another_user_is_refused(agent, name, uid, mode):
    agent.stop()
    folder = agent.folder / name
    os.chown(folder, uid, uid)
    folder.chmod(mode)
    done = agent.refused_start()
    assert done.returncode == 78
    assert f"it is a folder of uid {uid}" in done.stderr
    assert (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) == (uid, mode)


@pytest.mark.parametrize("name", ["run", "state"])
def test_a_folder_that_was_open_to_all_is_closed(agent, name):
    agent.stop()
    (agent.folder / name).chmod(0o777)
    agent.start()
    expected = {"run": 0o755, "state": 0o700}[name]
    assert stat.S_IMODE((agent.folder / name).stat().st_mode) == expected


def test_a_configuration_that_anybody_can_write_is_refused(agent):
    agent.stop()
    agent.config.chmod(0o666)
    done = agent.refused_start()
    assert done.returncode == 78
    assert "anybody can write to it" in done.stderr
    assert "o-w" in done.stderr


def test_a_configuration_of_the_agents_own_user_is_refused_by_the_helpers(agent):
    """They read it by themselves so that they need not believe the agent."""
    agent.stop()
    os.chown(agent.config, AGENT_UID, AGENT_UID)
    done = agent.refused_start("--simulate", "dgx-h100")
    assert done.returncode != 0
    assert "the helpers go by it" in done.stderr
    assert not agent.home.exists()


def test_roots_own_variables_lead_to_no_folder_of_another_user(agent, tmp_path):
    """`sudo` keeps none of them; where root has them all the same, they get the same checks."""
    agent.stop()
    tmp_path.chmod(0o755)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, ALICE, ALICE)
    for variable in ("XCE_NODEAGENT_STATE_DIR", "XCE_NODEAGENT_RUNTIME_DIR"):
        for place in (theirs, theirs / "below"):
            done = agent.refused_start(**{variable: str(place)})
            assert done.returncode == 78, (variable, place)
    assert list(theirs.iterdir()) == []
    assert theirs.stat().st_uid == ALICE


def test_what_lies_where_the_installation_is_started_is_not_run(agent, tmp_path):
    """`systemd/install` looks whether the interpreter has the package; root runs it anywhere."""
    (tmp_path / "xce_nodeagent.py").write_text("open('proof', 'w').close()", "utf-8")
    script = Path(__file__).parents[2] / "systemd" / "install"
    lines = [
        line for line in script.read_text("utf-8").splitlines() if "import xce_nodeagent" in line
    ]
    assert len(lines) == 1
    command = lines[0].replace("||", "").strip()
    subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        check=True,
        env={**os.environ, "python": sys.executable},
    )
    assert not (tmp_path / "proof").exists()


def test_the_socket_of_a_living_agent_is_not_taken_over(agent):
    """Nor that of another program which a user runs at that path."""
    agent.stop()
    path = agent.folder / "run" / "agent.sock"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(1)
        done = agent.refused_start()
        assert done.returncode in (64, 78), done.stderr
        assert str(path) in done.stderr
        assert path.exists()
