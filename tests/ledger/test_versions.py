"""Ledgers that earlier versions wrote: one sample of each is kept for ever, and is read."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import shutil
import sqlite3
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from xce_nodeagent.binding.database import SCHEMA
from xce_nodeagent.binding.ledger import Ledger
from xce_nodeagent.binding.rebuilt import Rebuilt
from xce_nodeagent.binding.version import VERSION
from xce_nodeagent.errors import Enforcement, Stale
from xce_nodeagent.model import binding as b
from xce_nodeagent.model import wire

SAMPLES = Path(__file__).parent / "samples"
FORMATS = json.loads((SAMPLES / "formats.json").read_text("utf-8"))


def shape(told: Any) -> Any:
    """Give a JSON schema without its prose, and in one order."""
    if isinstance(told, dict):
        # A field may have such a name, too; that has a schema, and no text.
        prose = [key for key in ("title", "description") if isinstance(told.get(key), str)]
        return {key: shape(value) for key, value in told.items() if key not in prose}
    if isinstance(told, list):
        return sorted((shape(one) for one in told), key=json.dumps)
    return told


def format_now() -> str:
    """Give a digest of what would need another sample: the version, the schema, what rows hold.

    These are the events and a binding with all that they hold: names of fields, types, tags,
    defaults. It depends on how msgspec writes a schema, and so on its version as far as that
    changes (0.18.6 to 0.23.0 give the same), and on the names of our classes; not on docstrings,
    and not on what is in no row.
    """
    _, held = msgspec.json.schema_components([b.Event, b.Binding, Rebuilt])
    text = json.dumps([VERSION, SCHEMA.split(), shape(held)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plain(value: object) -> Any:
    """Give a value as JSON reads it."""
    return json.loads(msgspec.json.encode(value))


def events_of(path: Path) -> list[dict[str, Any]]:
    """Give the events of a sample as they are stored, each with its row's `up` as `row_up`."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        rows = [dict(row) for row in db.execute("SELECT * FROM events ORDER BY seq")]
    return [json.loads(row["body"]) | {"row_up": row.get("up")} for row in rows]


def ups_of(path: Path) -> dict[b.Key, dict[str, float]]:
    """Give `up` and `born` of the bindings in a sample, from their rows."""
    found: dict[b.Key, dict[str, float]] = {}
    for event in events_of(path):
        if event["type"] == "committed":
            found[event["job"], event["attempt"]] = dict.fromkeys(
                ("up", "born"), event["row_up"] or 0.0
            )
        if event["type"] == "changed":
            found[event["job"], event["attempt"]]["up"] = event["row_up"] or 0.0
    return found


def told_of(path: Path) -> dict[str, Any]:
    """Give what the version that wrote a sample read in it."""
    return json.loads(path.with_suffix(".json").read_text("utf-8"))["read"]


class Sample(typing.NamedTuple):
    """A copy of a sample, and its name."""

    path: Path
    origin: str


@pytest.fixture(params=sorted(FORMATS))
def sample(request, tmp_path):
    """Give a copy of a sample."""
    return Sample(Path(shutil.copy(SAMPLES / request.param, tmp_path / "ledger.db")), request.param)


def test_every_format_that_ever_landed_has_its_sample():
    assert {path.name for path in SAMPLES.glob("*.db")} == set(FORMATS)
    assert {path.stem for path in SAMPLES.glob("*.db")} | {"formats"} == {
        path.stem for path in SAMPLES.glob("*.json")
    }
    assert format_now() in FORMATS.values(), (
        "the ledger's version, schema or events, or a field of them, have changed: raise VERSION"
        " where an older agent cannot read it, have tests/ledger/samples/make.py write what is new,"
        " run it for a new sample, and add that to its table and to"
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


def test_the_sample_of_this_format_has_every_event_and_fields_that_are_not_their_defaults():
    (name,) = [name for name, known in FORMATS.items() if known == format_now()]
    stored = events_of(SAMPLES / name)
    kinds = {event.__struct_config__.tag: event for event in typing.get_args(b.Event)}
    assert {event["type"] for event in stored} == set(kinds)
    held = [(kinds[event["type"]], event) for event in stored]
    held += [(b.Binding, event["binding"]) for event in stored if event["type"] == "adopted"]
    for kind in {*kinds.values(), b.Binding}:
        values = [value for one, value in held if one is kind]
        for field in msgspec.structs.fields(kind):
            if not field.required:
                usual = plain(field.default)
                assert any(value[field.name] != usual for value in values), (kind, field.name)


NO_RELEASE = {"1-first": {("lost", "1")}}
"""Attempts that this version took for over, and that were not released: they may come again."""


def test_a_ledger_is_taken_for_what_the_version_that_wrote_it_took_it_for(sample, make_node):
    told = told_of(SAMPLES / sample.origin)
    ups = ups_of(sample.path)
    ledger = make_node(sample.path.parent).ledger
    now = {binding.key: binding for binding in ledger.book}
    assert set(now) == {(one["job"], one["attempt"]) for one in told["live"]}
    for then in told["live"]:
        key = then["job"], then["attempt"]
        assert set(then) <= set(b.Binding.__struct_fields__)
        # What it did not know has its default, but for what each row has had for longer.
        assert now[key] == msgspec.convert(ups.get(key, {}) | then, b.Binding)
    over = {tuple(key) for key in told["over"]}
    assert set(ledger.book.over) == over - NO_RELEASE.get(sample.origin.removesuffix(".db"), set())
    assert ledger.book.drained == told["drained"]
    assert [[*key, boot] for key, boot in sorted(ledger.boots.items())] == told["boots"]
    seen, number = ledger.hardware()
    assert (msgspec.to_builtins(seen), number) == (told["seen"], told["number"])
    assert ledger.rebuilt == msgspec.convert(told.get("rebuilt"), Rebuilt | None)
    if "departed" in told:
        assert ledger.departed == msgspec.convert(told["departed"], list[b.Binding])
    else:
        assert {one.job for one in ledger.departed} == {"over", "kept"} & {job for job, _ in over}


def test_an_older_ledger_is_released_from_and_granted_from(sample, make_node):
    node = make_node(sample.path.parent)
    assert node.held()["GPU-0"] == [("live", "1")]
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
    with contextlib.closing(sqlite3.connect(sample.path)) as db:
        version = db.execute("SELECT value FROM meta WHERE key='version'").fetchone()
    assert version == (str(VERSION),)


def make_later(path: Path) -> bytes:
    """Have a ledger be a later version's; give its content."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE meta SET value=? WHERE key='version'", (str(VERSION + 1),))
        db.commit()
    return path.read_bytes()


def test_a_later_ledger_is_refused_and_stays_as_it_is_where_nothing_is_fenced(sample):
    before = make_later(sample.path)
    with pytest.raises(Enforcement, match=f"version {VERSION + 1}, this agent knows {VERSION}"):
        Ledger(sample.path, "boot-1", lambda: 1.0, log_bytes=0)
    assert sample.path.read_bytes() == before
    assert not list(sample.path.parent.glob("*.damaged-*"))


def test_a_later_ledger_whose_version_cannot_be_read_without_writing_is_refused(sample):
    """It crashed in the middle of a transaction, in a mode that is not ours."""
    make_later(sample.path)
    journal = Path(f"{sample.path}-journal")
    with contextlib.closing(sqlite3.connect(sample.path, isolation_level=None)) as db:
        db.execute("PRAGMA cache_size=1")
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE events SET body=zeroblob(100000)")
        torn = {path: path.read_bytes() for path in (sample.path, journal)}
        db.execute("ROLLBACK")
    for path, content in torn.items():
        path.write_bytes(content)
    with pytest.raises(Enforcement, match=f"version {VERSION + 1}, this agent knows {VERSION}"):
        Ledger(sample.path, "boot-1", lambda: 1.0, log_bytes=0)
    with contextlib.closing(sqlite3.connect(sample.path)) as db:
        assert db.execute("SELECT value FROM meta WHERE key='version'").fetchone() == (
            str(VERSION + 1),
        )


def test_beside_a_later_ledger_releases_are_taken_and_nothing_is_believed_or_written(sample):
    before = make_later(sample.path)
    clock = itertools.count(1000.0, 2.0)  # no try is too soon
    ledger = Ledger(sample.path, "boot-1", lambda: next(clock), log_bytes=0, fenced=True)
    assert (ledger.newer, ledger.doubted, ledger.book.live) == (True, True, {})
    adopted = next(one for one in events_of(SAMPLES / "2-excluded.db") if one["type"] == "adopted")
    ledger.note(msgspec.convert(adopted, b.Adopted))
    ledger.confirm("1 bindings (1 adopted)")
    with pytest.raises(Enforcement, match="no new grants"):
        ledger.commit(b.Drained(id="GPU-1", reason="test"))
    assert not ledger.record(b.ReleaseIntended(job="adopted", attempt="1"))
    assert not ledger.recorded("adopted")
    assert not ledger.recorded("nobody knows")
    assert sample.path.read_bytes() == before
    # An admin has seen to all jobs, and moves it aside.
    aside = sample.path.rename(sample.path.with_name("later.db"))
    assert ledger.recorded("adopted")
    assert not ledger.newer
    assert aside.read_bytes() == before
    ledger.close()
    again = Ledger(sample.path, "boot-1", lambda: next(clock), log_bytes=0)
    assert [(one.job, one.state) for one in again.book] == [("adopted", "releasing")]
    again.close()
