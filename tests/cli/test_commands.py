"""The commands, as programs of their own, against an agent behind a real socket."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from cli.command import Run, command, good

from xce_nodeagent.cli import main as program


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
