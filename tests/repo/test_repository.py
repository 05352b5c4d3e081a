"""Rules about the repository itself."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from xce_nodeagent import errors
from xce_nodeagent.cli import main
from xce_nodeagent.model.config import SECTIONS, parse
from xce_nodeagent.model.schema import schema

ROOT = Path(__file__).parents[2]
UNITS = sorted(path.name for path in (ROOT / "systemd").glob("*.service"))
HOOKS = sorted(path for path in (ROOT / "hooks").iterdir() if path.suffix != ".md")

PINNED = {
    "busy": "transient",
    "stale": "transient",
    "not_ready": "transient",
    "no_fit_now": "transient",
    "upstream": "transient",
    "never_fits": "job",
    "unhealthy": "node",
    "drained": "node",
    "reserved": "caller",
    "unknown_instance": "node",
    "conflict": "caller",
    "enforcement": "node",
    "bad_request": "caller",
    "bad_job_id": "caller",
    "bad_cgroup": "caller",
    "bad_port": "caller",
    "not_permitted": "denied",
}
STATUS = {"transient": 75, "node": 69, "job": 65, "caller": 64, "denied": 77, "config": 78}


def every_error(kind=errors.AgentError):
    for error in kind.__subclasses__():
        yield error
        yield from every_error(error)


def test_every_error_has_a_code_of_its_own_and_is_in_the_list():
    found = [error for error in every_error() if error.__module__ == errors.__name__]
    codes = [error.code for error in found]
    assert len(codes) == len(set(codes))
    assert {error.code: error for error in found} == errors.BY_CODE


def test_no_code_outside_of_the_one_file():
    """Lower layers raise errors of `errors.py`; none of them brings its own."""
    for path in (ROOT / "xce_nodeagent").rglob("*.py"):
        if path.name != "errors.py":
            found = re.findall(r"^class \w+\(AgentError\)", path.read_text("utf-8"), re.MULTILINE)
            assert not found, path


@pytest.mark.parametrize("code", PINNED)
def test_class_of_a_pinned_code(code):
    assert errors.BY_CODE[code].error_class.value == PINNED[code]


@pytest.mark.parametrize("name", STATUS)
def test_exit_status_of_a_class(name):
    assert errors.ErrorClass(name).exit_status == STATUS[name]


def test_readme_opens_with_the_two_commands():
    top = (ROOT / "README.md").read_text("utf-8").splitlines()[:12]
    assert "./dev demo" in "\n".join(top)
    assert "./dev test" in "\n".join(top)


def test_readme_names_every_configuration_key():
    text = (ROOT / "README.md").read_text("utf-8")
    missing = [
        f"[{section}] {key}"
        for section, (_, _, keys) in SECTIONS.items()
        for key in keys
        if f"`{key}`" not in text or f"`[{section}]`" not in text
    ]
    assert not missing


def test_shipped_configuration_is_valid():
    text = (ROOT / "systemd/config.toml").read_text("utf-8")
    parse(text, "config.toml")
    # What stands there as a comment is an example, and must be valid as well.
    parse(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE), "config.toml")


def test_profiles_that_are_pinned():
    profiles = ROOT / "xce_nodeagent/providers/profiles"
    names = {path.stem for path in profiles.glob("*.toml")}
    assert {"dgx-h100", "dgx-a100-mig", "mi300x", "gb200", "cpu-only"} <= names


def test_lock_has_every_dependency_with_hashes_and_names_no_place():
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    entries = re.split(r"\n(?=\S)", "\n" + re.sub(r"^#.*\n", "", lock, flags=re.MULTILINE))
    names = set()
    for entry in filter(str.strip, entries):
        name = re.match(r"([a-z0-9-]+)==\S+", entry)
        assert name, entry
        assert "--hash=sha256:" in entry, entry
        names.add(name[1])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    assert {re.split(r"[<>=~! \[]", one)[0].lower() for one in wanted} <= names
    bare = re.sub(r"^#.*\n", "", lock, flags=re.MULTILINE)
    assert not re.search(r"/|@|--(?!hash=)", bare)


def test_units_are_three():
    assert UNITS == [
        "xce-nodeagent-helpers.service", "xce-nodeagent-jobs.service", "xce-nodeagent.service",
    ]  # fmt: skip


@pytest.mark.needs("systemd")
def test_units_verify(tmp_path):
    for name in UNITS:
        text = (ROOT / "systemd" / name).read_text("utf-8")
        (tmp_path / name).write_text(text.replace("@PYTHON@", sys.executable), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(tmp_path / name for name in UNITS)],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    # Other units of the machine may have faults of their own.
    said = [line for line in done.stderr.splitlines() if "xce-" in line or str(tmp_path) in line]
    assert not said


@pytest.mark.needs("cc")
def test_readme_worker_in_c_compiles(tmp_path):
    source = re.search(r"```c\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert source
    (tmp_path / "worker.c").write_text(source[1], "utf-8")
    subprocess.run(
        ["cc", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "worker", tmp_path / "worker.c"],
        check=True, timeout=60,
    )  # fmt: skip


def test_readme_prologs_are_shell():
    scripts = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert len(scripts) > 3
    for script in scripts:
        subprocess.run(["sh", "-n", "-c", script], check=True, timeout=60)


def test_readme_names_every_option_of_the_commands():
    table = (ROOT / "README.md").read_text("utf-8").partition("## The commands")[2]
    for name in main._COMMANDS:
        command = main._program.get_command(None, name)
        lines = [line for line in table.splitlines() if re.match(rf"\|.*`{name}\b", line)]
        assert lines, name
        options = {one.opts[0] for one in command.params if isinstance(one, click.Option)}
        missing = {
            one
            for one in options - {"--socket", "--deadline", "--json", "--verbose"}
            if f"{one}" not in lines[0]
        }
        assert not missing, name


def test_the_schema_that_is_shipped_is_that_of_the_model():
    text = (ROOT / "xce_nodeagent/inventory.schema.json").read_text("utf-8")
    told = "make it anew: xce-nodeagent inventory --schema >xce_nodeagent/inventory.schema.json"
    assert json.loads(text) == schema(), told


def test_dev_says_how_it_is_used():
    usage = subprocess.run([ROOT / "dev", "--help"], capture_output=True, text=True, check=True)
    for command in ("demo", "bench", "lint", "setup", "soak", "lock"):
        assert re.search(rf"^  {command} ", usage.stdout, re.MULTILINE)
        for option in ("--help", "-h") if command not in ("bench", "soak") else ():
            told = subprocess.run(
                [ROOT / "dev", command, option], capture_output=True, text=True, timeout=30,
                check=True,
            )  # fmt: skip
            assert (told.stdout, told.stderr) == (usage.stdout, "")


@pytest.mark.parametrize("hook", HOOKS, ids=lambda path: path.name)
def test_hook_is_executable_and_needs_the_standard_library_alone(hook):
    assert os.access(hook, os.X_OK)
    text = hook.read_text("utf-8")
    assert text.startswith("#!")
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module)
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_hooks_are_two():
    assert {"prepare", "release"} <= {path.name for path in HOOKS}


@pytest.mark.parametrize("folder", ["xce_nodeagent", "tests"])
def test_no_file_is_too_long(folder):
    """400 lines is the limit of a file, of the package as of its tests."""
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text("utf-8").splitlines())) > 400
    }
    assert not long


def test_architecture_is_short():
    assert len((ROOT / "ARCHITECTURE.md").read_text("utf-8").splitlines()) <= 150
