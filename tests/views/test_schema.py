"""What `inventory --json` prints is as its JSON Schema says; jsonschema judges."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from xce_nodeagent.host import Host
from xce_nodeagent.model.schema import KNOWN, schema
from xce_nodeagent.providers import all_providers

VALIDATOR = jsonschema.Draft202012Validator(schema())


def faults(inventory: dict[str, Any]) -> list[str]:
    plain = json.loads(json.dumps(inventory))
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(plain)]


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def test_it_knows_every_type_of_every_provider() -> None:
    types = {kind.name for provider in all_providers() for kind in provider.types}
    assert types <= {kind.name for kind in KNOWN}


@pytest.mark.parametrize("profile", ["cpu-only", "dgx-a100-mig", "dgx-h100", "gb200", "mi300x"])
def test_a_profile_is_valid(simulated, profile: str) -> None:
    assert faults(simulated(profile)) == []


@pytest.mark.needs("recorded")
def test_a_recorded_machine_is_valid(look, recorded_root: Path) -> None:
    assert faults(look(Host(recorded_root))) == []


def test_this_machine_is_valid(look, small: Path) -> None:
    assert faults(look(Host("/"))) == []
    assert faults(look(Host(small))) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "xce.inventory/v2"),
        (("source",), "hearsay"),
        (("digest",), "abc"),
        (("instances", 0, "attributes", "minor"), "zero"),
        (("instances", 0, "attributes", "mac"), {"a": 1}),
        (("instances", 0, "healthy"), 1),
        (("instances", 0, "devices", 0, "type"), "x"),
        (("topology", "numa_nodes"), [{"id": "0", "cpus": "0"}]),
        (("topology", "links"), [{"kind": "pcie", "one": "a", "other": "b", "count": 1}]),
        (("topology", "rails"), {"by": "structure", "nics": {"a": "0"}, "gpus": {}}),
        (("topology", "bridges"), {"0000:00:01.0": {"link_width": "16"}}),
        (("counters", "gpu"), {"total": 8}),
    ],
)
def test_it_refuses_what_is_none(simulated, path: tuple[Any, ...], value: Any) -> None:
    inventory = copy.deepcopy(simulated("dgx-h100"))
    at = inventory
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert len(faults(inventory)) == 1


@pytest.mark.parametrize("field", ["instances", "digest", "topology"])
def test_it_misses_what_is_left_out(simulated, field: str) -> None:
    inventory = copy.deepcopy(simulated("cpu-only"))
    del inventory[field]
    assert faults(inventory) == [f"$: '{field}' is a required property"]


def test_a_later_version_may_tell_more(simulated) -> None:
    inventory = copy.deepcopy(simulated("dgx-h100"))
    inventory["weather"] = inventory["topology"]["weather"] = "fair"
    inventory["instances"][0]["attributes"]["shoe_size"] = 42
    inventory["instances"][1]["type"] = "telescope"
    assert faults(inventory) == []


def test_the_command_prints_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xce_nodeagent", "inventory", "--schema"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout) == schema()
