from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from xce_nodeagent.cli.main import main

FORMATS = ("cdi", "classad", "dra", "lsf-elim", "nccl-topo", "prometheus", "slurm-gres")


@pytest.fixture
def export(tmp_path_factory, monkeypatch, capfd) -> Callable[..., tuple[int, str, str]]:
    """Run `export` where there is no agent; give its status, and what it wrote to whom."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "config.toml").touch()
    monkeypatch.setenv("XCE_NODEAGENT_SOCKET", str(folder / "none.sock"))
    monkeypatch.setenv("XCE_NODEAGENT_CONFIG", str(folder / "config.toml"))

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        status = main(["export", *map(str, arguments)])
        written = capfd.readouterr()
        return status, written.out, written.err

    return run


@pytest.mark.parametrize("format_", [one for one in FORMATS if one != "cdi"])
def test_each_format_of_a_recorded_machine(export, small: Path, format_: str) -> None:
    status, out, _ = export(format_, "--sysroot", small)
    assert status == 0
    assert out


def test_a_file_is_replaced(export, tmp_path: Path) -> None:
    target = tmp_path / "topo.xml"
    target.write_text("old", "utf-8")
    assert export("nccl-topo", "--simulate", "dgx-h100", "--output", target)[:2] == (0, "")
    assert target.read_text("utf-8").startswith("<system")
    assert os.listdir(tmp_path) == ["topo.xml"]


def test_cdi_has_a_file_for_each_kind(export, tmp_path: Path) -> None:
    assert export("cdi", "--simulate", "dgx-a100-mig", "--output", tmp_path)[0] == 0
    told = {name: json.loads((tmp_path / name).read_text("utf-8")) for name in os.listdir(tmp_path)}
    assert {name: one["kind"] for name, one in told.items()} == {
        f"xce.io-{kind}.json": f"xce.io/{kind}" for kind in ("gpu", "mig", "nic")
    }
    status, out, err = export("cdi", "--simulate", "dgx-a100-mig", "--kind", "mig")
    assert status == 0
    assert "left out: ports" not in err
    assert json.loads(out) == told["xce.io-mig.json"]


def test_no_file_of_a_kind_that_is_gone_stays(export, tmp_path: Path) -> None:
    folder = tmp_path / "etc/cdi"
    assert export("cdi", "--simulate", "dgx-a100-mig", "--output", folder)[0] == 0
    (folder / "nvidia.json").write_text("another's", "utf-8")
    status, _, err = export("cdi", "--simulate", "mi300x", "--output", folder)
    assert status == 0
    assert "removed xce.io-mig.json" in err
    assert sorted(os.listdir(folder)) == ["nvidia.json", "xce.io-gpu.json", "xce.io-nic.json"]
    assert export("cdi", "--simulate", "dgx-a100-mig", "--kind", "mig", "--output", folder)[0] == 0
    assert len(os.listdir(folder)) == 4


def test_json_has_the_text_of_each_file(export) -> None:
    status, out, _ = export("cdi", "--simulate", "mi300x", "--json")
    assert status == 0
    told = json.loads(out)
    assert told["format"] == "cdi"
    assert set(told["files"]) == {"xce.io-gpu.json", "xce.io-nic.json"}
    status, out, _ = export("classad", "--simulate", "mi300x", "--json")
    assert json.loads(out)["files"]["classad"].startswith("DetectedGPUs=")


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["cdi", "--simulate", "dgx-a100-mig"], "give --kind KIND, or --output FOLDER"),
        (["cdi", "--simulate", "mi300x", "--kind", "mig"], "there are gpu, nic"),
        (["cdi", "--simulate", "mi300x", "--output", "/dev/null"], "name a folder"),
        (["dra", "--kind", "gpu"], "--kind is for cdi"),
        (["dra", "--interval", "5"], "are for lsf-elim"),
        (["lsf-elim", "--interval", "5", "--json"], "without end"),
        (["slurm"], "slurm-gres"),
        (["dra", "--sysroot", "/nowhere"], "sys, proc and dev"),
    ],
)
def test_an_error_tells_the_remedy(export, arguments: list[str], remedy: str) -> None:
    status, out, err = export(*arguments)
    assert status == 64
    assert not out or "--json" in arguments
    assert remedy in " ".join(err.split())


def test_definitions_of_lsf(export) -> None:
    status, out, _ = export("lsf-elim", "--simulate", "mi300x", "--definitions")
    assert status == 0
    assert "xce_gpu_free Numeric 60 N (gpu instances that no job holds)" in out


def test_an_elim_goes_on_until_its_reader_is_gone(agent: str) -> None:
    """LSF reads the lines of an ELIM while it runs, and ends it."""
    program = [sys.executable, "-m", "xce_nodeagent", "export", "lsf-elim", "--interval", "1"]
    with subprocess.Popen(
        [*program, "--socket", agent], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for _ in range(2):
            assert re.match(r"\d+( xce_\w+ \d+)+\n$", child.stdout.readline())
        child.stdout.close()
        assert child.wait(timeout=60) == 128 + 13


def test_it_asks_the_agent(agent: str, export) -> None:
    status, out, _ = export("prometheus", "--socket", agent)
    assert status == 0
    assert "xce_instance_held{" in out  # which nobody else knows


def test_completion_knows_the_formats() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "xce-nodeagent"],
        env={
            **os.environ,
            "_XCE_NODEAGENT_COMPLETE": "bash_complete",
            "COMP_WORDS": "xce-nodeagent export ",
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.removeprefix("plain,") for line in done.stdout.splitlines()] == list(FORMATS)


def test_help_has_an_example_of_each(export) -> None:
    status, out, _ = export("--help")
    assert status == 0
    examples = out.partition("Examples:")[2]
    assert all(re.search(rf"export {one}\b", examples) for one in FORMATS)
