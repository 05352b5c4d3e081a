"""Ledgers that earlier versions wrote: one sample of each is kept for ever, and is read."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sqlite3
import typing
from pathlib import Path

import pytest

from xce_nodeagent.binding.database import SCHEMA, VERSION
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.errors import Enforcement, Stale
from xce_nodeagent.model import binding as b
from xce_nodeagent.model import wire

SAMPLES = Path(__file__).parent / "samples"
FORMATS = json.loads((SAMPLES / "formats.json").read_text("utf-8"))


def format_now() -> str:
    """Give a hash of what would need another sample: the version, the schema, the events."""
    tags = sorted(event.__struct_config__.tag for event in typing.get_args(b.Event))
    text = json.dumps([VERSION, SCHEMA.split(), tags])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.fixture(params=sorted(FORMATS))
def sample(request, tmp_path):
    """Give a copy of a sample."""
    return Path(shutil.copy(SAMPLES / request.param, tmp_path / "ledger.db"))


def test_every_format_that_ever_landed_has_its_sample():
    assert {path.name for path in SAMPLES.glob("*.db")} == set(FORMATS)
    assert format_now() in FORMATS.values(), (
        "the ledger's version, schema or events have changed: raise VERSION where an older agent"
        " cannot read it, run tests/ledger/samples/make.py for a new sample, and add it to"
        f" formats.json with {format_now()}; the others stay as they are"
    )


def test_the_sample_of_this_format_has_its_schema():
    (name,) = [name for name, known in FORMATS.items() if known == format_now()]
    with sqlite3.connect(SAMPLES / name) as db:
        tables = [sql for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")]
    db.close()
    wanted = SCHEMA.replace("IF NOT EXISTS ", "")
    for table in tables:
        assert "".join(table.split()) in "".join(wanted.split())


def test_an_older_ledger_is_read_released_from_and_granted_from(sample, make_node):
    node = make_node(sample.parent)
    book = node.ledger.book
    assert node.ledger.rebuilt is None
    states = {key[0]: binding.state for key, binding in book.live.items()}
    adopted = {"adopted": "bound"} if "adopted" in states else {}
    assert states == {"live": "bound", "grown": "committed", "left": "quarantined"} | adopted
    assert book.live["grown", "1"].instances == ("GPU-1", "GPU-2", "ports")
    assert ("over", "1") in book.over
    assert book.drained == {"GPU-5": "its fan is loud"}
    seen, number = node.ledger.hardware()
    assert (seen["GPU-0"].changed, number) == (2, 3)
    assert set(node.ledger.boots.values()) == {"boot-1"}
    held = node.held()
    assert (held["GPU-0"], held["GPU-3"]) == ([("live", "1")], [("left", "1")])
    with pytest.raises(Stale):
        asyncio.run(node.life.prepare(wire.Prepare(job="over", attempt="1", instances=("GPU-0",))))
    released = asyncio.run(node.life.releases.release(wire.Release(job="live", attempt="1")))
    assert (released.known, released.recorded) == (True, True)
    asyncio.run(node.life.prepare(wire.Prepare(job="new", attempt="1", instances=("GPU-0",))))
    node.ledger.close()
    node.open()
    assert node.held()["GPU-0"] == [("new", "1")]
    assert ("live", "1") in node.ledger.book.over
    node.ledger.close()
    with sqlite3.connect(sample) as db:
        assert db.execute("SELECT value FROM meta WHERE key='version'").fetchone() == (
            str(VERSION),
        )
    db.close()


def test_a_later_ledger_is_refused_and_stays_where_it_is(sample):
    with sqlite3.connect(sample) as db:
        db.execute("UPDATE meta SET value=? WHERE key='version'", (str(VERSION + 1),))
    db.close()
    before = sample.read_bytes()
    with pytest.raises(Enforcement, match=f"version {VERSION + 1}, this agent knows {VERSION}"):
        Ledger(sample, "boot-1", lambda: 1.0, log_bytes=0)
    assert sample.read_bytes()[100:] == before[100:]
    assert not list(sample.parent.glob("*.damaged-*"))
