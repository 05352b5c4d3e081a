"""The runner: one program, its time, what it prints, and what it leaves behind."""

from __future__ import annotations

import ast
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from xce_nodeagent.model.declared import SIZE_LIMIT
from xce_nodeagent.privileged.channel import Violation
from xce_nodeagent.privileged.ops import Report, Reported
from xce_nodeagent.privileged.runner import ENVIRONMENT, PROCESSES, Runner

RUN = """
import os, sys
from xce_nodeagent.privileged.ops import Report
from xce_nodeagent.privileged.runner import Runner
patience, *program = sys.argv[1:]
runner = Runner(program, patience=float(patience), owners={0, os.geteuid()})
answer = runner.handle(Report(), ())
print((answer.state, answer.reason, answer.output))
"""


BOMBER = 61731  # a user that nobody else is
AS_BOMBER = f"""
import os
from xce_nodeagent.privileged import ops, runner
os.setgroups([])
os.setresgid({BOMBER}, {BOMBER}, {BOMBER})
os.setresuid({BOMBER}, {BOMBER}, {BOMBER})
{RUN}"""


@pytest.fixture
def run(tmp_path):
    """Run a shell script by a runner of its own process, as helpers are; give the answer."""

    def run(script, *arguments, patience=30.0, mode=0o755):
        tmp_path.chmod(0o755)
        program = tmp_path / "probe"
        program.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        program.chmod(mode)
        command = [sys.executable, "-c", RUN, str(patience), str(program), *arguments]
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
        state, reason, output = ast.literal_eval(done.stdout.decode())
        return Reported(state, reason.removeprefix(f"{program}: "), output)

    return run


def test_what_it_prints_is_given_as_it_is(run):
    assert run("printf 'a\\377b'; echo oops >&2") == Reported("found", "", b"a\xffb")
    many = SIZE_LIMIT
    assert len(run(f"head -c {many} /dev/zero").output) == many


def test_it_is_given_its_arguments_and_nothing_else(run):
    found = run('echo "$1|$#|$PWD"; env | grep -v -e ^_= -e ^PWD=; ls -l /proc/self/fd', "a b")
    lines = found.output.decode().splitlines()
    assert lines[0] == "a b|1|/"
    assert set(lines[1:3]) == {f"{name}={value}" for name, value in ENVIRONMENT.items()}
    # its standard ones, and the folder that ls itself looks into
    assert [line.split()[-3] for line in lines[4:]] == ["0", "1", "2", "3"]
    assert lines[4].endswith("/dev/null")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo one >&2; echo two >&2; exit 3", "exit status 3: one"),
        ("exit 4", "exit status 4"),
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("printf '\\033[31mred' >&2; exit 1", "exit status 1: ?[31mred"),
        (f"head -c {SIZE_LIMIT + 1} /dev/zero", f"it printed more than {SIZE_LIMIT} bytes, and"),
        ("yes", f"it printed more than {SIZE_LIMIT} bytes, and was killed"),
        ("yes >&2 & sleep 0.2; kill $!; exit 5", "exit status 5: y"),
    ],
)
def test_what_goes_wrong_is_told(run, script, why):
    found = run(script)
    assert (found.state, found.output) == ("error", b"")
    assert found.reason.startswith(why)


def test_one_that_hangs_is_killed_with_all_that_it_started(run, tmp_path):
    pids = tmp_path / "pids"
    script = f"(setsid sleep 1000 & echo $! >>{pids}); sleep 1000 & echo $! >>{pids}; wait"
    found = run(f"trap '' TERM; {script}", patience=1.0)
    assert found.reason == "it did not end within 1 s, and was killed"
    _expect_ended(pids)


def test_what_it_leaves_behind_is_killed(run, tmp_path):
    pids = tmp_path / "pids"
    found = run(f"setsid sleep 1000 & echo $! >{pids}; sleep 1000 & echo $! >>{pids}; echo hello")
    assert found == Reported("found", "", b"hello\n")
    _expect_ended(pids)


@pytest.mark.needs("root")
def test_one_that_only_multiplies_comes_to_an_end():
    """Each starts others as fast as it can: there is a limit, and none is left in the end."""
    with tempfile.TemporaryDirectory(prefix="xce-test-") as folder:  # where anybody comes
        Path(folder).chmod(0o755)
        program = Path(folder, "probe")
        program.write_text(
            '#!/bin/sh\n[ "$1" ] || { "$0" more & sleep 1000; }\nwhile :; do "$0" more & done\n',
            "utf-8",
        )
        program.chmod(0o755)
        command = [sys.executable, "-c", AS_BOMBER, "1.0", str(program)]
        most = 0
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
            while running.poll() is None:
                most = max(most, len(_bombers()))
            assert running.stdout is not None
            assert "it did not end within 1 s, and was killed" in running.stdout.read()
    assert PROCESSES // 4 < most <= PROCESSES + 8
    assert not _bombers()


def _bombers() -> list[Path]:
    return [one for one in Path("/proc").glob("[0-9]*") if _belongs(one, BOMBER)]


def _belongs(process: Path, user: int) -> bool:
    try:
        return process.stat().st_uid == user
    except OSError:
        return False


def _expect_ended(pids: Path) -> None:
    numbers = [int(pid) for pid in pids.read_text().split()]
    assert len(numbers) == 2
    for pid in numbers:
        until = time.monotonic() + 20
        while Path(f"/proc/{pid}").exists():
            # one that was killed, and whom nobody has waited for, is no process any more
            if ") Z " in Path(f"/proc/{pid}/stat").read_text():
                break
            assert time.monotonic() < until, Path(f"/proc/{pid}/cmdline").read_bytes()
            select.select([], [], [], 0.02)


def test_a_program_that_is_not_there_or_is_anybodys_is_not_started(run, tmp_path):
    assert "Permission denied" in run("echo no", mode=0o644).reason
    found = run("echo no", mode=0o777)
    assert found.state == "error"
    assert "mode 0777; expected root's, writable by nobody else" in found.reason
    missing = Runner((str(tmp_path / "missing"),), patience=1, owners={0, os.geteuid()})
    assert missing.handle(Report(), ()).reason.endswith("No such file or directory")
    tmp_path.chmod(0o777)
    probe = Runner((str(tmp_path / "probe"),), patience=1, owners={0, os.geteuid()})
    assert "mode 0777" in probe.handle(Report(), ()).reason
    tmp_path.chmod(0o755)
    with pytest.raises(Violation):
        probe.handle(Report(), (0,))


def test_a_program_that_others_could_replace_is_not_started(tmp_path):
    """Not in its own folder alone: above it, and on the way of a link, too."""
    folder = tmp_path / "above/folder"
    folder.mkdir(parents=True)
    probe = folder / "probe"
    probe.write_text("#!/bin/sh\necho here\n", "utf-8")
    probe.chmod(0o755)
    (tmp_path / "link").symlink_to("above/way")
    (tmp_path / "above/way").symlink_to("folder/probe")
    (tmp_path / "above").chmod(0o755)

    def start(path: Path) -> str:
        return Runner((str(path),), patience=20, owners={0, os.geteuid()})._untrusted()

    assert [start(probe), start(tmp_path / "link")] == ["", ""]
    (tmp_path / "above").chmod(0o777)
    for one in (probe, tmp_path / "link"):
        assert f"{tmp_path}/above: it belongs to uid" in start(one)
    # In a sticky folder nobody replaces what is another's.
    (tmp_path / "above").chmod(0o1777)
    assert [start(probe), start(tmp_path / "link")] == ["", ""]
    if os.geteuid() == 0:
        os.chown(tmp_path / "above/way", 12345, 12345, follow_symlinks=False)
        assert "above/way: it belongs to uid 12345" in start(tmp_path / "link")
        assert start(probe) == ""
