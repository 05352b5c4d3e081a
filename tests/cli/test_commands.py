"""The commands, as programs of their own, against an agent behind a real socket."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
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

from xce_nodeagent.cli import local
from xce_nodeagent.cli import main as program
from xce_nodeagent.privileged import credential

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
SYSTEMD = Path("/run/systemd/system").is_dir()
COMMAND = [sys.executable, "-m", "xce_nodeagent"]


def environment(path: str, **more: str) -> dict[str, str]:
    plain = {name: text for name, text in os.environ.items() if not name.startswith("XCE_")}
    return {**plain, "XCE_NODEAGENT_SOCKET": path, "COLUMNS": "80", **more}


def command(path: str, *arguments: str, stdin: str = "", **more: str) -> Done:
    return subprocess.run(
        [*COMMAND, *arguments], env=environment(path, **more), input=stdin, text=True,
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip


def in_terminal(path: str, columns: int, *arguments: str, code: str = "") -> str:
    """Run it with a terminal of so many columns as stdout; give what it wrote, without colours."""
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", code] if code else [*COMMAND, *arguments]
    with os.fdopen(ours, "rb", buffering=0) as screen:
        with subprocess.Popen(
            words, env=environment(path, COLUMNS=str(columns), TERM="xterm"), stdout=theirs,
            stdin=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            os.close(theirs)
            shown = b""
            try:
                while chunk := screen.read(65536):
                    shown += chunk
            except OSError:  # EIO: the other side has ended
                pass
        assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r\n", "\n")


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
    variables = re.findall(r"^(?:environment)? +(\w+)=", detail, re.MULTILINE)
    assert len(variables) > 2
    assert variables == sorted(variables)
    assert good(run("release", "--job", "17", "--attempt", "1")) == ""
    again = run("release", "--job", "17", "--attempt", "1")
    assert (again.returncode, again.stderr) == (0, "xce-nodeagent: job 17:1 held nothing\n")
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
        (["--pid", "0"], 64, "bad_request"),
        (["--ports", "http=" + "9" * 30], 64, "bad_request"),
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["prepare", "--job", "1", "--format", "shell", "--json"], "--format shell"),
        (["inventory", "--table", "--tree"], "one of --table, --tree, --matrix, --svg, --html and"),
        (["inventory", "--tree", "--json"], "one of --table, --tree, --matrix, --svg, --html and"),
        (["jobs", "--deadline", "0"], "--deadline"),
        (["jobs", "--deadline", "nan"], "--deadline"),
    ],
)
def test_options_that_contradict_are_refused(run: Run, arguments: list[str], told: str) -> None:
    done = run(*arguments)
    assert done.returncode == 64
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "told"),
    [
        (["prepare", "--job", "1", "--uid", "-1"], "", "'--uid': -1 is not in the range"),
        (["prepare", "--job", "1", "--pid", "x"], "", "'--pid': 'x' is not a valid integer"),
        (["prepare", "--job", "\udcff"], "", "--job: '\\udcff' is not UTF-8"),
        (["reconcile"], "[1]", "stdin: entry 1: 1; expected {"),
        (["reconcile"], '[{"job": "1"}, {"job": 2}]', 'stdin: entry 2: {"job": 2}; expected {'),
        (["reconcile"], '{"job": "1"}', "stdin: expected a list"),
    ],
)
def test_a_fault_is_told_in_the_words_of_the_command_line(
    run: Run, arguments: list[str], stdin: str, told: str
) -> None:
    done = run(*arguments, stdin=stdin)
    assert done.returncode == 64
    assert told in done.stderr
    assert "$" not in done.stderr
    assert "io.xce" not in done.stderr


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
    assert re.search(r"^GPU-4 +gpu +1 .* drained", table, re.MULTILINE)
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
    order = [
        tree.index(word) for word in ("NUMA node 0", "PCIe switch 0000:00:00.0", "GPU-0", "MIG-0")
    ]
    assert order == sorted(order)
    value = json.loads(good(run("inventory", "--json")))
    assert (value["schema"], value["source"]) == ("xce.inventory/v1", "agent")


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("style", ["--table", "--tree"])
def test_what_is_shown_fits_the_terminal(shared: str, columns: int, style: str) -> None:
    shown = in_terminal(shared, columns, "inventory", style)
    assert max(len(line) for line in shown.splitlines()) <= columns
    assert "GPU-7" in shown


PROFILE = "dgx-a100-mig"
UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


@pytest.mark.parametrize("columns", [20, 60, 80, 100, 200])
@pytest.mark.parametrize("style", ["--table", "--tree"])
def test_no_id_is_broken_and_a_slice_says_its_profile(columns: int, style: str) -> None:
    asked = ["inventory", style, "--simulate", PROFILE]
    shown = in_terminal("/nonexistent", columns, *asked)
    assert len(UUID.findall(shown)) == 8 + 13
    assert shown.count("1g.10gb") == 9
    assert shown.count("(7 slices)") == 1
    if columns >= 80:
        assert max(len(line) for line in shown.splitlines()) <= columns


def test_a_narrow_table_drops_what_is_empty_and_shortens_what_a_thing_is() -> None:
    asked = ["inventory", "--simulate", PROFILE]
    wide, narrow = (in_terminal("/nonexistent", columns, *asked) for columns in (200, 80))
    assert "HELD BY" in wide
    assert re.search(r"gpu +3 +NVIDIA A100-SXM4-80GB 80 GiB \(2 slices\) +ok", wide)
    assert "HELD BY" not in narrow
    assert re.search(r"gpu +3 +A100 … \(2 slices\) +ok", narrow)
    assert re.search(r"mig +3 +2g.20gb +ok", narrow)
    below = in_terminal("/nonexistent", 60, *asked)
    assert re.search(r"mig +3 +ok\n    NVIDIA A100-SXM4-80GB 2g.20gb 20 GiB\n", below)


@pytest.mark.parametrize("style", ["--table", "--tree"])
def test_in_a_pipe_nothing_is_broken_dropped_or_coloured(style: str) -> None:
    asked = ["inventory", style, "--simulate", PROFILE]
    shown = good(command("/nonexistent", *asked, COLUMNS="20", TERM="xterm"))
    assert "\x1b" not in shown
    slices = [line for line in shown.splitlines() if "MIG-" in line]
    assert len(slices) == 13
    assert all(re.search(r"MIG-\S+ .*NVIDIA A100-SXM4-80GB \dg\.\d+gb", line) for line in slices)
    assert ("HELD BY" in shown) == (style == "--table")


def test_a_matrix_fits_its_terminal_and_is_whole_and_plain_in_a_pipe() -> None:
    asked = ["inventory", "--matrix", "--simulate", PROFILE]
    shown = in_terminal("/nonexistent", 80, *asked)
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert len(re.findall(r"^GPU0 ", shown, re.MULTILINE)) > 2
    piped = good(command("/nonexistent", *asked, COLUMNS="20", TERM="xterm"))
    assert "\x1b" not in piped
    assert len(re.findall(r"^GPU0 ", piped, re.MULTILINE)) == 2
    chart = json.loads(good(command("/nonexistent", *asked, "--json")))
    assert {len(row) for row in chart["distance"]} == {len(chart["instances"])}


ANSWERS = [["inventory"], ["inventory", "--tree"], ["inventory", "--json"], ["jobs"], ["doctor"],
           ["--help"], ["prepare", "--help"], ["prepare", "--job", "1"],
           ["release", "--job", "1", "--json"]]  # fmt: skip


@pytest.mark.parametrize("arguments", ANSWERS, ids=" ".join)
@pytest.mark.parametrize("how", [">&-", ">/dev/full"])
def test_an_answer_that_cannot_be_written_may_be_asked_for_again(
    run: Run, shared: str, arguments: list[str], how: str
) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {how}', *COMMAND, *arguments], env=environment(shared),
        text=True, capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    why = "Bad file descriptor" if how == ">&-" else "No space left on device"
    told = f"done, but the answer cannot be written: {why}; ask again, that is safe"
    assert done.returncode == 75
    assert done.stderr.splitlines()[-1] == f"xce-nodeagent: {told}"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", [">&-", ">/dev/full", "2>&-", "2>/dev/full", ">&- 2>&-"])
def test_an_error_keeps_its_status_where_it_cannot_be_told(shared: str, how: str) -> None:
    for arguments, status in (
        (["job", "none", "--json"], 64), (["job", "none"], 64), (["nonsense"], 64),
    ):  # fmt: skip
        done = subprocess.run(
            ["sh", "-c", f'exec "$0" "$@" {how}', *COMMAND, *arguments], env=environment(shared),
            text=True, capture_output=True, timeout=30, check=False,
        )  # fmt: skip
        assert (done.returncode, "Traceback" in done.stderr) == (status, False)


@pytest.mark.parametrize("arguments", ANSWERS, ids=" ".join)
def test_a_reader_that_goes_away_is_no_error(run: Run, shared: str, arguments: list[str]) -> None:
    with subprocess.Popen(
        [*COMMAND, *arguments], env=environment(shared), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() in ("", "xce-nodeagent: job 1 held nothing\n")
        assert process.wait(10) == 128 + signal.SIGPIPE


class TestWithoutAnAgent:
    """No socket, a socket that refuses, one that says nothing."""

    def test_no_socket(self, tmp_path: Path) -> None:
        began = time.monotonic()
        done = command(str(tmp_path / "none"), "jobs")
        assert done.returncode == 75
        assert "no agent" in done.stderr
        start = "systemctl start xce-nodeagent" if SYSTEMD else "xce-nodeagent run"
        assert f"`{start}`" in done.stderr
        assert ("systemctl" in done.stderr) == SYSTEMD
        assert time.monotonic() - began < 3  # the interpreter's start on a busy machine included

    def test_a_socket_that_refuses(self, tmp_path: Path) -> None:
        path = str(tmp_path / "dead")
        with closing(socket.socket(socket.AF_UNIX)) as sock:
            sock.bind(path)
        for asked in (["jobs"], ["inventory"]):
            done = command(path, *asked, "--json")
            assert done.returncode == 75
            assert json.loads(done.stdout)["error"]["code"] == "not_ready"

    def test_a_file_that_is_no_socket(self, tmp_path: Path) -> None:
        plain = tmp_path / "plain"
        plain.touch()
        for asked in (["jobs"], ["inventory"]):
            done = command(str(plain), *asked)
            assert done.returncode == 64
            assert f"{plain} is not a socket" in done.stderr

    @pytest.mark.parametrize("asked", [["doctor"], ["jobs"], ["inventory"]])
    def test_an_agent_that_says_nothing_is_waited_for_until_the_deadline(
        self, tmp_path: Path, asked: list[str]
    ) -> None:
        path = str(tmp_path / "silent")
        with closing(socket.socket(socket.AF_UNIX)) as silent:
            silent.bind(path)
            silent.listen()
            began = time.monotonic()
            done = command(path, *asked, "--deadline", "0.3")
        assert done.returncode in (69, 75)
        assert "has not answered for 0.3 s" in done.stdout + done.stderr
        assert time.monotonic() - began < 10

    def test_an_agent_that_trickles_is_not_waited_for_longer(self, tmp_path: Path) -> None:
        path = str(tmp_path / "trickle")
        with closing(socket.socket(socket.AF_UNIX)) as slow:
            slow.bind(path)
            slow.listen()
            with subprocess.Popen(
                [*COMMAND, "jobs", "--deadline", "0.5"], env=environment(path), text=True,
                stderr=subprocess.PIPE,
            ) as process:  # fmt: skip
                peer, _ = slow.accept()
                with closing(peer):
                    until = time.monotonic() + 20
                    while process.poll() is None and time.monotonic() < until:
                        try:
                            peer.send(b"{")
                        except OSError:
                            break
                        time.sleep(0.1)
                    assert process.wait(1) == 75
                assert process.stderr is not None
                assert "has not answered for 0.5 s" in process.stderr.read()

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
        for wrong in (tmp_path / "x", kernel):
            done = command(str(tmp_path / "none"), "inventory", "--sysroot", str(wrong))
            assert done.returncode == 64
            assert "expected a folder with sys, proc and dev in it" in done.stderr

    def test_a_wrong_configuration(self, tmp_path: Path) -> None:
        config = tmp_path / "config.toml"
        config.write_text("[ports]\nrange = 7\n")
        asked = ["inventory", "--local"]
        done = command("/nonexistent", *asked, XCE_NODEAGENT_CONFIG=str(config))
        assert done.returncode == 78
        assert f"{config}:2" in done.stderr
        done = command("/nonexistent", *asked, XCE_NODEAGENT_CONFIG=str(tmp_path / "none"))
        assert done.returncode == 78

    def doctor(self, folder: Path, text: str, **more: str) -> dict[str, list[dict[str, str]]]:
        """Let the doctor look without an agent; give its checks by their names."""
        config = folder / "config.toml"
        config.write_text(text)
        (folder / "state").mkdir(exist_ok=True)
        more = {
            "XCE_NODEAGENT_CONFIG": str(config), "XCE_NODEAGENT_STATE_DIR": str(folder / "state"),
            "XCE_NODEAGENT_RUNTIME_DIR": str(folder / "run"), **more,
        }  # fmt: skip
        done = command(str(folder / "none"), "doctor", "--json", **more)
        assert (done.returncode, done.stderr) == (69, "")
        found: dict[str, list[dict[str, str]]] = {}
        for check in json.loads(done.stdout)["checks"]:
            found.setdefault(check["name"], []).append(check)
        plain = command(str(folder / "none"), "doctor", **more)
        assert plain.returncode == 69
        assert plain.stdout.startswith("FAULT   agent: not reachable: there is no socket ")
        for check in json.loads(done.stdout)["checks"]:
            assert f"{check['name']}: {check['text']}" in plain.stdout
        return found

    def test_the_doctor_looks_by_itself(self, tmp_path: Path) -> None:
        checks = self.doctor(tmp_path, '[simulate]\nprofile = "cpu-only"\n')
        assert next(iter(checks)) == "agent"
        states = {name: [one["state"] for one in found] for name, found in checks.items()}
        assert states["agent"] == ["fault"]
        assert states["configuration"] == states["state"] == states["discovery"] == ["ok"]
        assert states["runtime"] == states["simulate"] == ["note"]
        assert "account" in states
        assert "is not there yet" in checks["runtime"][0]["text"]

    def test_the_doctor_tells_all_that_is_wrong(self, tmp_path: Path) -> None:
        checks = self.doctor(tmp_path, "[ports]\nrange = 7\n[agent]\nenforcement = 1\n")
        assert [one["state"] for one in checks["configuration"]] == ["fault", "fault"]
        (tmp_path / "run").touch()
        checks = self.doctor(
            tmp_path,
            f'[agent]\ncgroup_root = "{tmp_path}"\n[simulate]\nprofile = "no-such"\n',
            XCE_NODEAGENT_STATE_DIR=str(tmp_path / "run" / "state"),
        )
        assert checks["simulate"][0]["state"] == checks["runtime"][0]["state"] == "fault"
        assert checks["state"][0]["state"] == "fault"
        assert "there are cpu-only" in checks["simulate"][0]["text"]
        faults = [one for name in ("cgroups", "enforcement") for one in checks.get(name, [])]
        assert "fault" in [one["state"] for one in faults]

    @pytest.mark.needs("root")
    def test_the_doctor_tells_a_folder_of_somebody_elses(self, tmp_path: Path) -> None:
        (tmp_path / "state").mkdir()
        shutil.chown(tmp_path / "state", 12345)
        checks = self.doctor(tmp_path, "")
        assert checks["state"][0]["state"] == "fault"
        assert "of uid 12345" in checks["state"][0]["text"]

    def test_the_runtime_folder_says_where_the_socket_is(self, agent: str) -> None:
        done = command("", "doctor", XCE_NODEAGENT_RUNTIME_DIR=str(Path(agent).parent))
        assert "ledger" in good(done)


def test_the_uid_without_an_account_is_the_agents() -> None:
    assert local.UID_WITHOUT_ACCOUNT == credential.AGENT_UID


def test_every_command_has_help_with_an_example() -> None:
    for name in program._COMMANDS:
        shown = good(command("/nonexistent", name, "--help"))
        assert re.search(rf"Examples?:\n    xce-nodeagent {name}", shown), shown


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


def test_an_encoding_without_our_letters_stops_nothing(shared: str) -> None:
    for style in ("--tree", "--table"):
        assert "GPU-7" in good(command(shared, "inventory", style, PYTHONIOENCODING="ascii"))


HELD = ["GPU-1e0bce46-ca1e-5969-8fb3-502ccf21aa9a", "MIG-d31ab24d-f33d-5e0d-81c9-68dffbaf0acc"]
SHOW_JOBS = (
    "import json, sys; from xce_nodeagent.cli.table import jobs_table;"
    "sys.stdout.write(jobs_table(json.loads(sys.argv[1] if sys.argv[1:] else BINDINGS)))"
)


def bound(job: str) -> str:
    binding = {
        "job": job, "attempt": "1", "state": "bound", "since": 1.7e9, "populated": True,
        "instances": HELD, "ports": [{"port": 20000, "name": "http"}],
    }  # fmt: skip
    return f"BINDINGS = {json.dumps([binding])!r}\n" + SHOW_JOBS


def test_a_uuid_stays_on_one_line_of_the_jobs_at_80_columns() -> None:
    shown = in_terminal("", 80, code=bound("1234"))
    assert [line.split()[-1] for line in shown.splitlines()[1:]] == [*HELD, "http"]
    assert max(map(len, shown.splitlines())) <= 80
    job = "exec-12345-89abcdef"
    shown = in_terminal("", 80, code=bound(job))
    assert shown.splitlines()[1].startswith(f"{job}:1  bound")
    assert [line.strip() for line in shown.splitlines()[2:]] == [*HELD, "port 20000 as http"]
    assert max(map(len, shown.splitlines())) <= 80


def test_in_a_pipe_a_job_is_a_line() -> None:
    shown = subprocess.check_output(
        [sys.executable, "-c", bound("x" * 100)], text=True, env=environment("")
    )
    assert shown.splitlines()[1].endswith(f"yes    {HELD[0]}, {HELD[1]}, port 20000 as http")
