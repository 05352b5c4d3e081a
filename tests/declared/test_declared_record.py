"""A record has what the site declared, and a record that somebody sends is no command."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from xce_nodeagent.cli import record as writing
from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.model.site import Site
from xce_nodeagent.providers.declared import PROVIDER

FILES = {
    "a.toml": '[type.scope]\nmeaning = "a scope"\n[[instance]]\nid = "s0"\ntype = "scope"\n'
    'nodes = ["/dev/zero"]\nattributes = { bench = "left" }\nenvironment = { SCOPE_KEY = "x1" }\n'
    '[[instance]]\nid = "s1"\ntype = "scope"\nnodes = ["/dev/no-such-node"]\n',
    "b.toml": "[[instance]\n",
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site's files, which the configuration names."""
    folder = tmp_path / "instances.d"
    folder.mkdir(mode=0o755)
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")
        (folder / name).chmod(0o644)
    config = tmp_path / "config.toml"
    config.write_text(f'[declared]\ndirectory = "{folder}"\n', "utf-8")
    monkeypatch.setenv("XCE_NODEAGENT_CONFIG", str(config))
    return Site(str(folder), frozenset({0, os.geteuid()}))


def seen(host: Host) -> tuple[dict[str, Any], list[str]]:
    inventory: Inventory = scan(host, (PROVIDER,))
    told = {one.id: msgspec.to_builtins(one) for one in inventory.instances}
    return told, [problem.reason for problem in inventory.problems]


def test_what_is_declared_is_the_same_in_the_record(site: Site, tmp_path: Path) -> None:
    host = Host()
    host.site = site
    instances, faults = before = seen(host)
    assert [node["path"] for node in instances["s0"]["devices"]] == ["/dev/zero"]
    assert instances["s1"]["reason"] == "/dev/no-such-node: there is no such node"
    assert "b.toml" in faults[0]
    writing.record(str(tmp_path / "record"), None, anonymize=False)
    assert seen(Host(tmp_path / "record")) == before
    # And in a record of the record.
    writing.record(str(tmp_path / "again"), str(tmp_path / "record"), anonymize=False)
    assert seen(Host(tmp_path / "again")) == before


def test_without_what_is_private_it_is_left_out(site: Site, tmp_path: Path) -> None:
    writing.record(str(tmp_path / "record"), None, anonymize=True)
    assert not (tmp_path / "record/declared.json").exists()
    assert seen(Host(tmp_path / "record")) == ({}, [])


def test_a_wrong_configuration_and_no_files_cost_no_record(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XCE_NODEAGENT_CONFIG", str(tmp_path / "instances.d/b.toml"))
    writing.record(str(tmp_path / "record"), None, anonymize=False)
    assert not (tmp_path / "record/declared.json").exists()


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ({}, "it was not looked at"),
        ({"/dev/zero": "gone"}, "gone"),
        ({"/dev/zero": {"path": "/dev/zero", "type": "c", "major": 1 << 40, "minor": -1}},
         "its numbers are no device's"),
    ],
)  # fmt: skip
def test_a_record_with_other_nodes(tmp_path: Path, nodes: Any, reason: str) -> None:
    text = json.dumps({"files": {"a.toml": FILES["a.toml"]}, "nodes": nodes})
    (tmp_path / "declared.json").write_text(text, "utf-8")
    instances, _ = seen(Host(tmp_path))
    assert instances["s0"]["reason"] == f"/dev/zero: {reason}"
    assert not instances["s0"]["devices"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"files": {"a.toml": 1}}', '{"nodes": {"x": {"major": 1e99}}}',
             json.dumps({"files": {"a.toml": "a." * 40_000 + "a = 1"}})]
)  # fmt: skip
def test_rubbish_in_the_place_of_a_record_is_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "declared.json").write_text(text, "utf-8")
    assert seen(Host(tmp_path)) == ({}, [])
