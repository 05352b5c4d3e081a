"""The command `fleet` against a real store."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import fleets
import jsonschema
import pytest
from filled import COUNT

from xce_nodeagent.cli.fleet import command
from xce_nodeagent.cli.fleet.order import KEYS
from xce_nodeagent.cli.fleet.schema import schema
from xce_nodeagent.cli.main import main
from xce_nodeagent.upstream.etcdwire import put

pytestmark = pytest.mark.needs("etcd")

DEADLINE = 30.0


@pytest.fixture
def run(capfd):
    def call(store, *arguments: str) -> tuple[int, str, str]:
        status = main(["fleet", *arguments, *(["--config", str(store.config)] if store else [])])
        told = capfd.readouterr()
        return status, told.out, told.err

    return call


def test_the_table_has_every_node_of_the_store(filled, run) -> None:
    status, out, err = run(filled)
    assert (status, err) == (0, "")
    assert out.startswith(f"{COUNT} nodes: 19 available, 1 unavailable, 1 with unhealthy")
    rows = dict(re.findall(r"^(r\d{3}-n\d{2}) +(\S+) ", out, re.MULTILINE))
    assert len(rows) == COUNT
    assert rows[fleets.name(17)] == "stale"
    assert rows[fleets.name(5)] == "unhealthy"
    last = [line for line in out.splitlines() if re.match(r"r\d{3}-n\d{2} +\S+ ", line)][-1]
    assert "r001" in last, "the block is of the configuration"
    drained = next(name for name, state in rows.items() if state == "drained")
    assert re.search(f"^{drained}: .+ drained: \\S", out, re.MULTILINE)
    assert re.search(f"^{fleets.name(17)}: no sign of life; changed ", out, re.MULTILINE)


def test_filters_and_sorts_work_together(filled, run) -> None:
    _, out, _ = run(filled, "--free", "gpu=8", "--sort", "name", "--reverse", "--block", "r000")
    rows = re.findall(r"^(r\d{3}-n\d{2}) ", out, re.MULTILINE)
    assert rows == sorted(rows, reverse=True)
    assert rows
    assert all(name.startswith("r000") for name in rows)
    assert "no node" in run(filled, "--free", "gpu=9")[1]
    status, out, err = run(filled, "--free", "gpux=1")
    assert (status, "no node" in out) == (0, True)
    assert "--free gpux: no node has that type; there are gpu, nic" in err
    _, out, _ = run(filled, "r001-*", "--stale")
    assert re.findall(r"^(r\d{3}-n\d{2}) ", out, re.MULTILINE) == [fleets.name(17)]


def test_json_is_as_its_schema_says_and_has_no_environment(filled, run) -> None:
    status, out, _ = run(filled, "--json")
    value = json.loads(out)
    assert status == 0
    described = schema()
    jsonschema.Draft202012Validator.check_schema(described)
    jsonschema.validate(value, described)
    assert value["schema"] == "xce.fleet/v1"
    assert [node["name"] for node in value["nodes"]] == [fleets.name(at) for at in range(COUNT)]
    assert value["summary"]["nodes"] == {
        "total": COUNT, "available": 19, "unavailable": 1, "faulty": 0,
        "two_agents": 0, "unhealthy": 1,
    }  # fmt: skip
    node = value["nodes"][2]
    assert [one["job"] for one in node["jobs"]] == ["1002.0", "1002.1"]
    assert "cards" not in node
    assert "env" not in out
    assert "CUDA" not in out
    assert json.loads(run(None, "--schema")[1]) == json.loads(json.dumps(described))


def test_a_node_is_shown_in_full(filled, run) -> None:
    name = fleets.name(2)
    status, out, _ = run(filled, name)
    assert status == 0
    assert out.startswith(f"{name}: ok\n")
    assert f"{name}, as seen by its agent, from the store" in out
    assert out.count("1002.0:1") >= 2, "the job, and the card that it holds"
    value = json.loads(run(filled, name, "--json")[1])
    jsonschema.validate(value, schema())
    (node,) = value["nodes"]
    assert node["inventory"]["node"] == name
    assert len(node["inventory"]["instances"]) == len(fleets.inventory(2).instances)
    status, _, err = run(filled, "nobody")
    assert status == 64
    assert "no such node" in err


def test_a_page_is_written(filled, run, tmp_path) -> None:
    file = tmp_path / "fleet.html"
    assert run(filled, "--html", str(file)) == (0, "", "")
    assert file.read_text("utf-8").count("<use ") > COUNT
    assert run(filled, "--html", "-")[1].startswith("<!DOCTYPE html>")


def test_a_store_that_is_away_is_transient(run, tmp_path, capfd) -> None:
    status = main(["fleet", "--endpoint", "http://127.0.0.1:1", "--json"])
    told = capfd.readouterr()
    error = json.loads(told.out)["error"]
    assert status == 75
    assert (error["code"], error["class"]) == ("upstream", "transient")
    assert error["details"]["endpoints"] == ["http://127.0.0.1:1"]
    assert "127.0.0.1:1: Connection refused" in told.err
    assert main(["fleet", "--endpoint", "http://127.0.0.1:1", "--watch"]) == 75


def test_without_a_store_it_is_said_where_to_name_one(tmp_path, capfd) -> None:
    config = tmp_path / "config.toml"
    config.write_text("")
    assert main(["fleet", "--config", str(config)]) == 78
    told = capfd.readouterr().err
    assert f"{config} names no store: expected [upstream.etcd] endpoints" in told
    assert main(["fleet", "--endpoint", "etcd1"]) == 78
    assert "--endpoint: entry 1, 'etcd1': expected a URL" in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--free", "gpu"], ["--free", "gpu=-1"], ["--free", "gpu=²"], ["--html", "x", "--watch"],
     ["--forget"], ["--forget", "a*", "--endpoint", "http://127.0.0.1:1"], ["--sort", "weather"],
     ["--forget-shapes", "a"], ["--forget-shapes", "--watch"], ["--forget-shapes", "--forget", "a"],
     ["--deadline", "nan"]],
)  # fmt: skip
def test_a_wrong_call_is_the_callers(arguments: list[str], capfd) -> None:
    assert main(["fleet", *arguments]) == 64
    assert capfd.readouterr().err


def test_garbage_in_the_store_is_told_and_stops_nothing(changed, run) -> None:
    keys, name = changed.keys, fleets.name(3)
    changed.client.txn((), [put(keys.entry(name, "head"), b"\xff\x00rubbish")])
    changed.client.txn((), [put(changed.prefix.encode() + b"weather", b"rain")])
    status, out, _ = run(changed)
    assert status == 0
    assert re.search(rf"^{name} +unreadable ", out, re.MULTILINE)
    assert "in the store: 1 keys below the prefix are of no node" in out
    assert len(re.findall(r"^r\d{3}-n\d{2} ", out, re.MULTILINE)) == COUNT


# ---- forgetting ----------------------------------------------------------------------------------


def names(changed) -> set[str]:
    found = changed.client.range(changed.keys.all("node"), keys_only=True)[1]
    return {changed.keys.parse(kv.key).node for kv in found}


def test_only_a_node_without_a_living_agent_is_forgotten(changed, run) -> None:
    gone, living = fleets.name(17), fleets.name(1)
    status, _, err = run(changed, "--forget", "--yes", living)
    assert status == 64
    assert f"agent {fleets.agent(1)} of boot {fleets.boot(1)} lives" in err
    assert len(names(changed)) == COUNT
    status, out, _ = run(changed, "--forget", "--yes", gone)
    assert status == 0
    assert re.fullmatch(rf"{gone}: \d+ keys deleted\n", out)
    assert names(changed) == {fleets.name(at) for at in range(COUNT)} - {gone}
    status, _, err = run(changed, "--forget", "--yes", gone)
    assert status == 64
    assert "no such node" in err


@pytest.mark.parametrize(("answer", "status"), [("n\n", 0), ("", 64)])
def test_nothing_is_forgotten_unless_somebody_says_yes(changed, answer: str, status: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", "fleet", "--config", str(changed.config),
         "--forget", fleets.name(17)],
        input=answer, capture_output=True, text=True, check=False, timeout=DEADLINE,
    )  # fmt: skip
    assert done.returncode == status
    assert ("add --yes" in done.stderr) == bool(status)
    assert done.stdout == ""
    assert "Delete all that the store has of r001-n01?" in done.stderr
    assert len(names(changed)) == COUNT


def asked_to_forget_shapes(changed, answer: str):
    return subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", "fleet", "--config", str(changed.config),
         "--forget-shapes"],
        input=answer, capture_output=True, text=True, check=False, timeout=DEADLINE,
    )  # fmt: skip


def test_shapes_that_no_node_has_are_forgotten_and_no_others(changed, run) -> None:
    def shapes() -> set[bytes]:
        return {kv.key for kv in changed.client.range(changed.keys.all("shape"))[1]}

    used, old = shapes(), changed.keys.shape("0" * 64)
    changed.client.txn((), [put(old, b"x" * 3000)])
    done = asked_to_forget_shapes(changed, "n\n")
    assert re.search("Delete 1 shape of 3,[0-9]{3} bytes that no node has", done.stderr)
    assert "nothing was deleted" in done.stderr
    assert shapes() == used | {old}
    done = asked_to_forget_shapes(changed, "y\n")
    assert (done.returncode, done.stdout[:16]) == (0, "1 shape deleted,")
    assert shapes() == used
    told = json.loads(run(changed, "--forget-shapes", "--yes", "--json")[1])
    assert told == {"shapes": [], "bytes": 0}
    # Any shape may be that of a node that cannot be read.
    changed.client.txn((), [put(old, b"x")])
    changed.client.txn((), [put(changed.keys.entry(fleets.name(3), "static"), b"rubbish")])
    status, _, err = run(changed, "--forget-shapes", "--yes")
    assert status == 64
    assert f"what {fleets.name(3)} reported cannot be read" in err
    assert shapes() == used | {old}


# ---- what a command loads ------------------------------------------------------------------------


def test_every_sort_there_is_can_be_asked_for() -> None:
    assert tuple(KEYS) == command._SORTS


@pytest.mark.parametrize(
    ("module", "heavy"),
    [("xce_nodeagent.cli.binding", ("xce_nodeagent.cli.fleet", "xce_nodeagent.upstream", "ssl")),
     ("xce_nodeagent.cli.fleet.command", ("xce_nodeagent.upstream", "ssl", "http", "rich"))],
)  # fmt: skip
def test_nobody_waits_for_what_is_not_used(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([m for m in sys.modules if m.startswith({heavy!r})])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
