"""The commands, as programs of their own, against an agent behind a real socket."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from xce_nodeagent.cli import main as program

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
COMMAND = [sys.executable, "-m", "xce_nodeagent"]


def environment(path: str, **more: str) -> dict[str, str]:
    plain = {name: text for name, text in os.environ.items() if not name.startswith("XCE_")}
    return {**plain, "XCE_NODEAGENT_SOCKET": path, "COLUMNS": "80", **more}


def command(path: str, *arguments: str, stdin: str = "", **more: str) -> Done:
    return subprocess.run(
        [*COMMAND, *arguments], env=environment(path, **more), input=stdin, text=True,
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def shared(agents: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with agents.running(tmp_path_factory.mktemp("shared")) as path:
        yield path


@pytest.fixture
def run(shared: str) -> Iterator[Run]:
    """Run a command; whatever it bound or drained is undone."""

    def call(*arguments: str, **more: Any) -> Done:
        return command(shared, *arguments, **more)

    yield call
    assert call("reconcile", stdin="[]").returncode == 0
    assert call("undrain", "GPU-4").returncode == 0


def good(done: Done) -> str:
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def bindings(run: Run) -> list[Any]:
    listed: list[Any] = json.loads(good(run("jobs", "--json")))["bindings"]
    return listed


def test_the_life_of_a_job(run: Run) -> None:
    prepared = good(run("prepare", "--job", "17", "--attempt", "1", "--instance", "GPU-1",
                        "--instance", "GPU-2", "--ports", "http=1", "--uid", "1000"))  # fmt: skip
    assert "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2\n" in prepared
    assert "WITH_QUOTE=it's $HOME\n" in prepared
    assert re.search(r"17:1 +held", good(run("jobs")))
    detail = good(run("job", "17"))
    assert re.search(r"^user +1000$", detail, re.MULTILINE)
    assert "port 20000 as http" in detail
    assert good(run("release", "--job", "17", "--attempt", "1")) == ""
    assert good(run("jobs")) == "no job holds anything\n"


def test_the_shell_format_survives_a_shell(run: Run) -> None:
    exports = good(run("prepare", "--job", "1", "--format", "shell"))
    script = f'{exports}printf %s "$WITH_QUOTE"'
    assert subprocess.check_output(["sh", "-c", script], text=True) == "it's $HOME"


def test_prepare_as_json_is_the_whole_answer(run: Run) -> None:
    answer = json.loads(good(run("prepare", "--job", "1", "--instance", "GPU-1", "--json")))
    assert {"job", "attempt", "instances", "env", "cgroup", "generation", "enforcement"} <= set(
        answer
    )
    again = json.loads(good(run("prepare", "--job", "1", "--instance", "GPU-1", "--format=json")))
    assert again == answer


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (["--instance", "GPU-1"], 75, "busy"),
        (["--instance", "GPU-7"], 69, "unhealthy"),
        (["--instance", "GPU-77"], 69, "unknown_instance"),
        (["--ports", "http"], 64, "bad_request"),
        (["--uid", "-1"], 64, "bad_request"),
        (["--nonsense"], 64, "bad_request"),
    ],
)
def test_an_error_ends_with_the_status_of_its_class(
    run: Run, arguments: list[str], status: int, error: str
) -> None:
    good(run("prepare", "--job", "first", "--instance", "GPU-1"))
    plain = run("prepare", "--job", "2", *arguments)
    assert (plain.returncode, plain.stdout) == (status, "")
    assert "Traceback" not in plain.stderr
    told = run("prepare", "--json", "--job", "2", *arguments)
    assert told.returncode == status
    facts = json.loads(told.stdout)["error"]
    assert facts["code"] == error
    assert told.stderr.startswith(f"xce-nodeagent: {facts['message']}")


def test_what_is_left_over_is_told_and_is_no_failure(run: Run) -> None:
    done = run("release", "--job", "unclean")
    assert (done.returncode, done.stdout) == (0, "")
    assert "4711 (sleep: cgroup)" in done.stderr
    assert "GPU-1" in done.stderr
    assert json.loads(run("release", "--job", "unclean", "--json").stdout)["clean"] is False


def test_reconcile_from_arguments_and_from_stdin(run: Run) -> None:
    for job in ("1", "2"):
        good(run("prepare", "--job", job, "--attempt", "a"))
    assert good(run("reconcile", "1:a", "3")).split() == [
        "kept",
        "1:a",
        "released",
        "2:a",
        "unknown",
        "3",
    ]
    answer = json.loads(good(run("reconcile", "--json", stdin='{"jobs": [{"job": "9"}]}')))
    assert [ref["job"] for ref in answer["released"]] == ["1"]
    assert run("reconcile", stdin="nonsense").returncode == 64
    assert run("reconcile", stdin="[1]").returncode == 64


def test_drain_shows_and_doctor_judges(run: Run) -> None:
    assert good(run("doctor")).startswith("ok")
    good(run("drain", "GPU-4", "--reason", "noisy fan"))
    table = good(run("inventory"))
    assert re.search(r"^GPU-4 +gpu +1 +drained", table, re.MULTILINE)
    assert "GPU-4: drained: noisy fan" in table
    done = run("doctor")
    assert done.returncode == 69
    assert "do: undrain it" in done.stdout
    assert run("drain", "GPU-4").returncode == 64  # without a reason
    assert json.loads(good(run("undrain", "GPU-4", "--json"))) == {"id": "GPU-4", "drained": False}


def test_the_inventory_says_who_holds_what_and_what_is_wrong(run: Run) -> None:
    good(run("prepare", "--job", "17", "--attempt", "1", "--instance", "GPU-1"))
    table = good(run("inventory"))
    assert re.search(r"^GPU-1 .* 17:1$", table, re.MULTILINE)
    assert "GPU-7: unhealthy: XID 79: it has fallen off the bus" in table
    assert "nvidia: none: no driver is loaded" in table
    tree = good(run("inventory", "--tree"))
    assert re.search(r"gpu GPU-1 .* held by 17:1", tree)
    order = [tree.index(word) for word in ("NUMA node 0", "PCIe 0000:00:00.0", "GPU-0", "MIG-0")]
    assert order == sorted(order)
    value = json.loads(good(run("inventory", "--json")))
    assert (value["schema"], value["source"]) == ("xce.inventory/v1", "agent")


@pytest.mark.parametrize("columns", [20, 80, 200])
@pytest.mark.parametrize("style", ["--table", "--tree"])
def test_what_is_shown_fits_the_terminal(run: Run, columns: int, style: str) -> None:
    shown = good(run("inventory", style, COLUMNS=str(columns)))
    assert max(len(line) for line in shown.splitlines()) <= columns
    assert "\x1b" not in shown
    assert "GPU-7" in shown


def test_a_reader_that_goes_away_is_no_error(shared: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "inventory", "--json"], env=environment(shared), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(10) == 128 + signal.SIGPIPE


class TestWithoutAnAgent:
    """No socket, a socket that refuses, one that says nothing."""

    def test_no_socket(self, tmp_path: Path) -> None:
        began = time.monotonic()
        done = command(str(tmp_path / "none"), "jobs")
        assert done.returncode == 75
        assert "no agent" in done.stderr
        assert "systemctl start xce-nodeagent" in done.stderr
        assert time.monotonic() - began < 3  # the interpreter's start on a busy machine included

    def test_a_socket_that_refuses(self, tmp_path: Path) -> None:
        path = str(tmp_path / "dead")
        with closing(socket.socket(socket.AF_UNIX)) as sock:
            sock.bind(path)
        for asked in (["jobs"], ["inventory"]):
            done = command(path, *asked, "--json")
            assert done.returncode == 75
            assert json.loads(done.stdout)["error"]["code"] == "not_ready"

    def test_a_path_that_is_too_long(self, tmp_path: Path) -> None:
        done = command(str(tmp_path / ("x" * 120)), "jobs")
        assert done.returncode == 64
        assert "too long" in done.stderr

    @pytest.mark.parametrize("more", [[], ["--local"]])
    def test_the_inventory_is_looked_up_where_there_is_no_socket(
        self, tmp_path: Path, more: list[str]
    ) -> None:
        done = command(str(tmp_path / "none"), "inventory", "--json", *more)
        value = json.loads(good(done))
        assert value["source"] == "local"
        assert value["schema"] == "xce.inventory/v1"
        assert value["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert all(instance["held_by"] is None for instance in value["instances"])

    def test_a_recorded_machine(self, tmp_path: Path) -> None:
        kernel = tmp_path / "proc/sys/kernel"
        kernel.mkdir(parents=True)
        (kernel / "hostname").write_text("recorded.example\n")
        done = command(str(tmp_path / "none"), "inventory", "--sysroot", str(tmp_path), "--json")
        assert json.loads(good(done))["node"] == "recorded"
        done = command(str(tmp_path / "none"), "inventory", "--sysroot", str(tmp_path / "x"))
        assert done.returncode == 64

    def test_a_wrong_configuration(self, tmp_path: Path) -> None:
        config = tmp_path / "config.toml"
        config.write_text("[ports]\nrange = 7\n")
        asked = ["inventory", "--local"]
        done = command("/nonexistent", *asked, XCE_NODEAGENT_CONFIG=str(config))
        assert done.returncode == 78
        assert f"{config}:2" in done.stderr
        done = command("/nonexistent", *asked, XCE_NODEAGENT_CONFIG=str(tmp_path / "none"))
        assert done.returncode == 78

    def test_the_runtime_folder_says_where_the_socket_is(self, agent: str) -> None:
        done = command("", "doctor", XCE_NODEAGENT_RUNTIME_DIR=str(Path(agent).parent))
        assert "ledger" in good(done)


def test_every_command_has_help_with_an_example() -> None:
    for name in program._COMMANDS:
        shown = good(command("/nonexistent", name, "--help"))
        assert f"Example:\n    xce-nodeagent {name}" in shown, shown


def test_a_wrong_call_ends_with_the_callers_status() -> None:
    assert command("/nonexistent").returncode == 64
    assert command("/nonexistent", "nonsense").returncode == 64
    assert command("/nonexistent", "release").returncode == 64
    assert command("/nonexistent", "--help").returncode == 0


def test_help_loads_no_command() -> None:
    script = (
        "import sys; from xce_nodeagent.cli.main import main; main(['--help']);"
        "print([m for m in sys.modules if m.split('.')[0] in ('rich', 'msgspec', 'asyncio')])"
    )
    shown = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert shown.splitlines()[-1] == "[]"


def test_a_uuid_stays_on_one_line_of_the_jobs_at_80_columns() -> None:
    held = ["GPU-1e0bce46-ca1e-5969-8fb3-502ccf21aa9a", "MIG-d31ab24d-f33d-5e0d-81c9-68dffbaf0acc"]
    binding = {
        "job": "1234", "attempt": "", "state": "bound", "since": 1.7e9, "populated": True,
        "instances": held, "ports": [],
    }  # fmt: skip
    script = (
        "import json, sys; from xce_nodeagent.cli.table import jobs_table;"
        "sys.stdout.write(jobs_table(json.load(sys.stdin)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps([binding]), text=True,
        env=environment(""), capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert [line.split()[-1] for line in shown.splitlines()[1:]] == held
