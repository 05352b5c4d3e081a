"""What the reporter is made of: the agent's id, the sinks that are configured, doctor's words."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest
from msgspec import structs
from upstream import etcds
from upstream.certificates import Authority, server
from upstream.receivers import receiver

from xce_nodeagent.daemon.agentid import NAME, agent_id
from xce_nodeagent.daemon.sinkchecks import checks
from xce_nodeagent.model.config import parse
from xce_nodeagent.upstream.delivery import Status


def test_an_id_is_made_once_and_kept(tmp_path):
    first = agent_id(tmp_path)
    assert str(uuid.UUID(first)) == first
    assert agent_id(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("found", [b"", b"\xff\xfe", b"x" * 1000, b"1234"])
def test_rubbish_is_no_id_and_another_is_made(tmp_path, caplog, found):
    (tmp_path / NAME).write_bytes(found)
    made = agent_id(tmp_path)
    assert agent_id(tmp_path) == made
    assert "there is no id in it" in caplog.text


def test_where_nothing_can_be_kept_there_is_an_id_all_the_same(tmp_path, caplog):
    first, second = (agent_id(tmp_path / "missing") for _ in range(2))
    assert first != second
    assert "cannot be kept" in caplog.text


def test_doctor_says_how_it_stands():
    well = Status(kind="file", where="/r", number=7, delivered=990.0, deliveries=3, bytes=500)
    noted = structs.replace(well, kind="http", where="http://h", note="in plain")
    behind = Status(kind="etcd", where="e", number=7, delivered=900.0, lag=12.3)
    failing = Status(kind="etcd", where="e", failing=10.0, reason="e: refused", remedy="start it")
    alone = Status(kind="etcd", where="e", failing=10.0, wait=41.7, reason="e: refused")
    starting = Status(kind="etcd", where="e")
    found = checks([well, noted, behind, failing, alone, starting], 1000.0)
    assert [(one.name, one.state) for one in found] == [
        ("report.file", "ok"), ("report.http", "note"), ("report.etcd", "warning"),
        ("report.etcd", "warning"), ("report.etcd", "warning"), ("report.etcd", "note"),
    ]  # fmt: skip
    texts = [one.text for one in found]
    assert texts[0] == "/r: the last was report 7, 10 s ago; 3 in 500 bytes since the start"
    assert texts[1] == f"http://h{texts[0].removeprefix('/r')}; in plain"
    assert texts[2] == "e: nothing got there for 12 s, the last was report 7, 100 s ago"
    since = "1970-01-01 00:00:10 UTC, none since the start"
    assert texts[3] == f"e: refused; no report gets there since {since}; it is tried now"
    assert texts[4] == f"e: refused; no report gets there since {since}; tried again in 42 s"
    assert texts[5] == "e: none since the start; the first is on its way"
    assert found[3].remedy == "start it"
    assert "the newest report is tried again" in found[4].remedy


LATE = """
import sys
from pathlib import Path
from random import Random
from xce_nodeagent.daemon import loop, server, sinks
from xce_nodeagent.model.config import parse
from xce_nodeagent.upstream.newest import Newest
from xce_nodeagent.upstream.delivery import Delivery
from xce_nodeagent.upstream.report import Series
from xce_nodeagent.upstream.sink import Undelivered
from xce_nodeagent.model.inventory import Inventory

config = parse(Path(sys.argv[1]).read_text(), "c")
sinks.prepare(config)
newest = Newest(Series(agent="a"))
made = [Delivery(one, newest, Random(1)) for one in sinks.configured(config, "1")]
newest.tell(Inventory(source="agent", node="n", boot_id="b", generation="b:1"), ())
before = set(sys.modules)
for one in made:
    one.step()
for one in made:
    one.stop()
    one._run()
print([bool(one.status.failing) for one in made])
print(sorted(set(sys.modules) - before))
"""


def late(config):
    """Run sinks as the agent does; give who failed, and what was imported meanwhile."""
    parse(config.read_text("utf-8"), "c")
    done = subprocess.run(
        [sys.executable, "-c", LATE, str(config)], capture_output=True, text=True, check=False
    )
    assert len(done.stdout.splitlines()) == 2, done.stderr
    return done.stdout.splitlines()


def test_what_a_sink_needs_late_is_there_before_the_filter(tmp_path):
    """After it a program may be where the agent's user cannot read: an import would fail."""
    (tmp_path / "password").write_text("x", "ascii")
    (tmp_path / "password").chmod(0o600)
    config = tmp_path / "config.toml"
    config.write_text(
        f"""
[upstream.file]
path = "{tmp_path}/missing/report.json"
[upstream.http]
url = "https://localhost:1/x"
token_file = "{tmp_path}/password"
[upstream.etcd]
endpoints = ["https://127.0.0.1:1", "https://localhost:1"]
user = "u"
password_file = "{tmp_path}/password"
""",
        "utf-8",
    )
    assert late(config) == ["[True, True, True]", "[]"]


@pytest.mark.needs("etcd")
@pytest.mark.needs("openssl")
def test_nothing_is_imported_late_where_all_is_well_either(tmp_path):
    authority = Authority(tmp_path)
    pair = authority.sign("both")
    context = server(pair, clients=authority.ca)
    config = tmp_path / "config.toml"
    with etcds.running() as store, receiver(context) as there:
        config.write_text(
            f"""
[upstream.file]
path = "{tmp_path}/report.json"
[upstream.http]
url = "{there.url}"
ca = "{authority.ca}"
cert = "{pair.cert}"
key = "{pair.key}"
[upstream.etcd]
endpoints = ["{store.url}"]
""",
            "utf-8",
        )
        assert late(config) == ["[False, False, False]", "[]"]
        assert there.kinds() == ["full"]


NOTHING = """
import sys
from xce_nodeagent.daemon import loop, sinks
from xce_nodeagent.model.config import parse
sinks.prepare(parse('[upstream.file]\\npath = "/x"', 'c'))
print({'http.client', 'xce_nodeagent.upstream.web'} & set(sys.modules))
"""


def test_without_a_store_nothing_of_the_network_is_loaded():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            NOTHING,
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()", done.stderr
