"""What the commands say without an agent, and whether their help fits a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "xce_nodeagent"]
NAMES = ["run", "doctor", "inventory", "prepare", "release", "join", "reconcile", "exec", "jobs",
         "job", "drain", "undrain"]  # fmt: skip


def run(folder: Path, *arguments: str, config: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "config.toml").write_text(config, "utf-8")
    env = {name: text for name, text in os.environ.items() if not name.startswith("XCE_")}
    env |= {
        "XCE_NODEAGENT_SOCKET": str(folder / "none"),
        "XCE_NODEAGENT_CONFIG": str(folder / "config.toml"),
        "COLUMNS": "80",
    }
    return subprocess.run(
        [*COMMAND, *arguments], env=env, text=True, capture_output=True, timeout=30, check=False
    )


def checks(folder: Path, *arguments: str, config: str = "") -> dict[str, dict[str, str]]:
    done = run(folder, "doctor", "--json", *arguments, config=config)
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_a_repair_without_an_agent_says_that_nothing_was_repaired(tmp_path: Path) -> None:
    assert "repair" not in checks(tmp_path)
    told = checks(tmp_path, "--repair")["repair"]
    assert told["state"] == "fault"
    assert "nothing was repaired" in told["text"]
    assert "nothing was repaired" in run(tmp_path, "doctor", "--repair").stdout


def test_an_account_of_another_name_is_not_said_to_be_made_by_our_file(tmp_path: Path) -> None:
    told = checks(tmp_path, config='[agent]\nuser = "nosuchuser"\n')["account"]
    assert "sysusers" not in told["remedy"]
    assert "useradd --system nosuchuser" in told["remedy"]


def test_a_file_that_is_no_toml_is_named_as_the_start_names_it(tmp_path: Path) -> None:
    told = checks(tmp_path, config="[agent\n")["configuration"]["text"]
    assert told.startswith(f"{tmp_path}/config.toml: not TOML: ")
    assert told in run(tmp_path, "run", config="[agent\n").stderr


@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_fits_eighty_columns(tmp_path: Path, name: str) -> None:
    shown = run(tmp_path, *filter(None, [name]), "--help").stdout
    assert shown
    assert [line for line in shown.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("command", [["inventory"], ["export", "prometheus"], ["run"]])
def test_a_profile_that_there_is_not_is_a_wrong_call_and_names_those_there_are(
    tmp_path: Path, command: list[str]
) -> None:
    done = run(tmp_path, *command, "--simulate", "foo")
    assert (done.returncode, done.stdout) == (64, "")
    assert "'--simulate': 'foo': there is no such profile; there are" in done.stderr
    assert "dgx-h100" in done.stderr


def test_one_that_the_configuration_names_is_a_wrong_configuration(tmp_path: Path) -> None:
    done = run(tmp_path, "inventory", "--local", config='[simulate]\nprofile = "foo"\n')
    assert done.returncode == 78
    assert "'foo'" in done.stderr
