"""An answer on its way into a shell: whatever the values are, and whoever answers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from xce_nodeagent.host import Host
from xce_nodeagent.model import name
from xce_nodeagent.provider import Grant, PortGrant
from xce_nodeagent.providers import all_providers

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "program": [sys.executable, "-m", "xce_nodeagent", "prepare"],
    "hook": [str(ROOT / "hooks" / "prepare")],
}
VALUES = {
    "XCE_PLAIN": "GPU-1,GPU-2",
    "XCE_QUOTES": "a'b\"c`d",
    "XCE_COMMAND": "$(touch proof)`touch proof`; touch proof && touch proof | touch proof",
    "XCE_VARIABLE": "$HOME ${HOME} \\$HOME !! ~ * ? [a] {a,b}",
    "XCE_SPACES": "  two  spaces\tand a tab  ",
    "XCE_UNICODE": "ünï çødé 漢字 🦀",
    "XCE_BACKSLASH": "\\n\\0\\x41\\",
    "XCE_EMPTY": "",
    "XCE_COMMENT": "# no comment",
    "XCE_OPTION": "-n --help",
    "XCE_PORT_PATH": "20000",
}
HOSTILE = {
    "a newline": {"XCE_A": "x\nLD_PRELOAD=/nowhere/x"},
    "an escape": {"XCE_A": "\x1b]0;x\x07"},
    "an escape of one byte": {"XCE_A": "\x9b2J"},
    "a NUL": {"XCE_A": "x\0y"},
    "a carriage return in a name": {"XCE_A\rB": "x"},
    "a command as a name": {"XCE_A=1; touch proof; B": "x"},
    "a substitution as a name": {"$(touch proof)": "x"},
    "an empty name": {"": "touch proof"},
    "a number as a name": {"1": "x"},
    "a name of other letters": {"XCE_Ä": "x"},
    "the loader": {"LD_PRELOAD": "/nowhere/x.so"},
    "the loader's path": {"LD_LIBRARY_PATH": "/nowhere"},
    "the path": {"PATH": "/nowhere"},
    "the shell's start": {"BASH_ENV": "/nowhere/x", "XCE_A": "x"},
    "the other shell's start": {"ENV": "/nowhere/x"},
    "an exported function": {"BASH_FUNC_ls%%": "() { touch proof; }"},
    "an interpreter's path": {"PYTHONPATH": "/nowhere"},
    "an interpreter's options": {"NODE_OPTIONS": "--require /nowhere/x"},
    "a library's plugin": {"NCCL_NET_PLUGIN": "/nowhere/x.so"},
    "no text": {"XCE_A": 7},
    "no text at all": {"XCE_A": {"a": "b"}},
}


@pytest.fixture
def answering(tmp_path):
    """A stand-in for the agent that answers one Prepare with these variables."""
    path = str(tmp_path / "agent.sock")
    threads = []

    def answer(env, error=None):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(1)
            duplicate = listener.dup()

        def serve():
            with duplicate, duplicate.accept()[0] as peer:
                while not peer.recv(65536).endswith(b"\0"):
                    pass
                reply = error or {"parameters": {"env": env, "job": "1"}}
                peer.sendall(json.dumps(reply).encode() + b"\0")

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return path

    yield answer
    for thread in threads:
        thread.join(30)


def prepared(program, path, style, folder):
    return subprocess.run(
        [*PROGRAMS[program], "--job", "1", "--socket", path, "--format", style],
        capture_output=True, timeout=60, check=False, cwd=folder,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
    )  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "ksh", "zsh"])
def test_shell_output_is_evaluated_to_the_very_values(answering, tmp_path, program, shell):
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell}")
    done = prepared(program, answering(VALUES), "shell", tmp_path)
    assert done.returncode == 0, done.stderr
    script = 'eval "$(cat)"; exec env -0'
    seen = subprocess.run(
        [shell, "-c", script], input=done.stdout, capture_output=True, check=True, cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere", "LC_ALL": "C.UTF-8"},
    ).stdout  # fmt: skip
    found = dict(line.split("=", 1) for line in seen.decode().split("\0") if "=" in line)
    assert {key: found.get(key) for key in VALUES} == VALUES
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("program", PROGRAMS)
def test_env_output_has_a_line_for_each_variable_and_no_other(answering, tmp_path, program):
    done = prepared(program, answering(VALUES), "env", tmp_path)
    lines = done.stdout.decode().split("\n")
    shown = dict(line.split("=", 1) for line in lines if line)
    assert shown == VALUES


@pytest.mark.parametrize("program", PROGRAMS)
def test_json_output_is_the_answer(answering, tmp_path, program):
    done = prepared(program, answering(VALUES), "json", tmp_path)
    assert json.loads(done.stdout)["env"] == VALUES
    assert done.stdout.isascii()


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("style", ["env", "shell"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_captured_agent_gets_no_code_into_the_shell_of_who_asks(
    answering, tmp_path, program, style, kind
):
    done = prepared(program, answering(HOSTILE[kind]), style, tmp_path)
    assert done.returncode == 69, done
    assert done.stdout == b""
    assert not (tmp_path / "proof").exists()


def test_a_captured_agent_gets_no_code_into_a_command_that_is_run_bound(answering, tmp_path):
    path = answering({"LD_PRELOAD": "/nowhere/x.so"})
    done = subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", "exec", "--job", "1", "--attempt", "a",
         "--socket", path, "--", "env"],
        capture_output=True, timeout=60, check=False, text=True,
    )  # fmt: skip
    assert done.returncode == 69
    assert done.stdout == ""


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_message_makes_a_terminal_do_nothing(answering, tmp_path, program):
    bad = {
        "error": "io.xce.NodeAgent.Busy",
        "parameters": {"code": "busy", "class": "transient", "message": "\x1b[2J\x07\x9b2J\rx",
                       "details": {}},
    }  # fmt: skip
    done = prepared(program, answering({}, bad), "env", tmp_path)
    assert done.returncode == 75
    assert all(line.isprintable() for line in done.stderr.decode().split("\n"))


@pytest.mark.parametrize("profile", ["dgx-h100", "dgx-a100-mig", "mi300x", "gb200", "cpu-only"])
def test_every_variable_of_every_provider_may_be_given_to_a_shell(profile):
    host = Host(simulate=profile, port_range=(20_000, 20_010))
    for provider in all_providers():
        found = provider.discover(host).instances
        for one in found:
            grant = Grant(
                instances=(one,), ports=(PortGrant(20_000, "path"),) if one.type == "ports" else ()
            )
            assert name.environment(provider.plan(grant).environment), one.id


def test_the_hook_and_the_program_refuse_the_same():
    text = (ROOT / "hooks" / "prepare").read_text("utf-8")
    module: dict[str, object] = {"__name__": "hook"}
    exec(compile(text, "prepare", "exec"), module)  # noqa: S102  # our own file
    for ours, theirs in (("OBEYED", "_OBEYED"), ("OBEYED_BEGINS", "_OBEYED_BEGINS"),
                         ("OBEYED_ENDS", "_OBEYED_ENDS")):  # fmt: skip
        assert module[ours] == getattr(name, theirs)
