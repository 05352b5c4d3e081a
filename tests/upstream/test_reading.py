"""The examples of docs/upstream.md do what they say."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from random import Random

import etcds
import filling
import fleets
import pytest
from certificates import Authority

from xce_nodeagent.model.request import parse
from xce_nodeagent.upstream import Client, Keys, assign
from xce_nodeagent.upstream.tls import Files, Tls

PAGE = Path(__file__).parents[2] / "docs" / "upstream.md"
BEGIN, END = "<!-- run by tests/upstream/test_reading.py -->\n", "<!-- end -->"
NODES = 60


def example(at: int) -> str:
    """Give one of the page's examples."""
    return textwrap.dedent(PAGE.read_text("utf-8").split(BEGIN)[at].partition(END)[0])


def run(code: str) -> list[str]:
    """Run an example; give what it printed, by lines."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.needs("etcd")
def test_the_example_of_a_scheduler(etcd) -> None:
    code = example(1)
    assert "http://127.0.0.1:2379" in code
    with filling.client(etcd.url) as store:
        filling.fill(store, fleets.state(NODES, Keys()), lease=filling.lease(store))
    chosen, state = map(str.split, run(code.replace("http://127.0.0.1:2379", etcd.url)))
    fleet = fleets.fleet(NODES)
    expected = assign(fleet, parse("rusage[gpu=4:nic=1]"))
    assert chosen == [expected.node, expected.generation, *expected.instances]
    assert state[0] in ("reading", "following")
    assert state[2] == fleet.digest


@pytest.mark.needs("etcd")
def test_the_example_with_tls_and_a_user(tmp_path) -> None:
    authority = Authority(tmp_path)
    server = authority.sign("server")
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    options = ("--cert-file", server.cert, "--key-file", server.key, "--bcrypt-cost", "4")
    with etcds.running(*options, scheme="https") as etcd:
        store = Client([etcd.url], Random(1), tls=Tls(Files(authority.ca)))  # noqa: S311  # no secret
        filling.fill(store, fleets.state(NODES, Keys()), lease=filling.lease(store))
        for what in (
            ("role", "add", "xce-readers"),
            ("role", "grant-permission", "xce-readers", "read", "--prefix", "/xce/v1/"),
            *(("user", "add", f"{name}:secret") for name in ("root", "scheduler")),
            ("user", "grant-role", "root", "root"),
            ("user", "grant-role", "scheduler", "xce-readers"),
            ("auth", "enable"),
        ):
            etcd.ctl("--cacert", authority.ca, *what)
        code = example(2)
        for told, real in (
            ("https://etcd1.example:2379", etcd.url),
            ("https://etcd2.example:2379", etcd.url),
            ("/etc/xce-nodeagent/ca.pem", authority.ca),
            ("/etc/xce-nodeagent/password", str(password)),
            ("14841639068965178418", str(store.cluster)),
        ):
            assert told in code
            code = code.replace(told, real)
        store.close()
        lines = run(code)
    fleet = fleets.fleet(NODES)
    free = {kind: count.free for kind, count in fleet.totals.items()}
    assert lines[0] == f"{store.cluster} {free}"
    away = [node.name for node in fleet.nodes.values() if not node.eligible]
    assert [line.split()[0] for line in lines[1:]] == away


def test_the_door_for_schedulers_has_what_it_names() -> None:
    code = "import sys, xce_nodeagent.upstream as door; names = set(sys.modules)\n"
    code += "print(sorted(n for n in names if n.startswith('xce_nodeagent.upstream.')))\n"
    code += "print([getattr(door, name).__name__ for name in door.__all__] == door.__all__)"
    assert run(code) == ["[]", "True"]
    with pytest.raises(ImportError, match="Nothing"):
        exec("from xce_nodeagent.upstream import Nothing")  # noqa: S102  # the statement is the test
