"""Where an answer goes: a terminal of any width, a pipe, nowhere."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest
from cli.command import COMMAND, Run, command, environment, good, in_terminal


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
