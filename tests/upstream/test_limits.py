"""What one node may cost a reader: a bound, far above what the largest hosts have."""

from __future__ import annotations

import zlib

import fleets
import msgspec
import pytest
from bad import STATIC
from msgspec import structs
from reader import KEYS, Reader, entry, node, state

from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.upstream import packing, record
from xce_nodeagent.upstream.form import MOST_OVERLAPS, MOST_ROWS
from xce_nodeagent.upstream.mirror import SETTLE
from xce_nodeagent.upstream.reading import MOST_CONFLICTS
from xce_nodeagent.upstream.record import HEAVY_SECONDS, MOST_BYTES
from xce_nodeagent.upstream.report import HEAD, Head, Report, digest, report

BOMB = zlib.compress(b'{"reason":"' + b"a" * ((4 << 20) - 20) + b'"}', 9)


@pytest.fixture
def inflated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the bytes that were inflated, each time."""
    found: list[int] = []
    plain = packing.plain

    def counted(data: bytes, limit: int = packing.LARGEST) -> bytes:
        try:
            told = plain(data, limit)
        except packing.Unreadable:
            found.append(limit)
            raise
        found.append(len(told))
        return told

    monkeypatch.setattr(packing, "plain", counted)
    return found


@pytest.mark.parametrize("size", [4 << 20, 60 << 10])
def test_bombs_are_not_read_beyond_what_a_node_may_have(inflated: list[int], size: int) -> None:
    """Neither those that are too large each, nor those that are so together."""
    bomb = zlib.compress(b'{"reason":"' + b"a" * (size - 20) + b'"}', 9)
    reader = Reader(state())
    before = reader.fleet()
    inflated.clear()
    found = reader.take(*((entry(2, f"state/x{at}"), bomb, 0) for at in range(800)))
    evil = node(found, 2)
    assert any(f"more than {MOST_BYTES} bytes" in fault for fault in evil.faults)
    assert (evil.eligible, evil.bindings, evil.states) == (False, (), {})
    assert sum(inflated) <= MOST_BYTES + packing.LARGEST
    assert [n for n in before.nodes if found.nodes[n] is not before.nodes[n]] == [evil.name]
    # One more, and one that changes, cost what one costs.
    for name in ("x", "x7"):
        inflated.clear()
        reader.now += HEAVY_SECONDS
        reader.put(entry(2, f"state/{name}"), BOMB)
        assert sum(inflated) <= 2 * packing.SMALL
    gone = ((entry(2, f"state/{name}"), None, 0) for name in ("x", *(f"x{n}" for n in range(800))))
    reader.take(*gone)
    assert node(reader.fleet(later=HEAVY_SECONDS), 2) == node(before, 2)


def test_what_did_not_change_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _large("mi300x", cards=8, parts=8, jobs=100)
    hashed: list[str] = []
    summed = record._sum

    def counted(name: str, data: bytes) -> object:
        hashed.append(name)
        return summed(name, data)

    monkeypatch.setattr(record, "_sum", counted)
    reader = Reader()
    reader.take(*_changes(made))
    assert sorted(hashed) == sorted(made.entries)
    hashed.clear()
    entries = {name: data for name, data in made.entries.items() if name != "binding/job7/1"}
    head = structs.replace(packing.unpack(made.entries[HEAD], Head), report=digest(entries))
    key = KEYS.entry(made.head.node, "binding/job7/1")
    found = reader.take((key, None, 0), (KEYS.entry(made.head.node, HEAD), packing.pack(head), 0))
    assert hashed == [HEAD]
    assert len(found.nodes[made.head.node].bindings) == 99
    assert found.nodes[made.head.node].faults == ()


@pytest.mark.parametrize(
    ("profile", "cards", "parts"), [("mi300x", 8, 8), ("mi300x", 8, 64), ("dgx-a100-mig", 8, 7)]
)
def test_the_largest_hosts_are_far_below(profile: str, cards: int, parts: int) -> None:
    made = _large(profile, cards, parts, jobs=1000)
    found = Reader().take(*_changes(made)).nodes[made.head.node]
    assert found.faults == ()
    assert len(found.bindings) == 1000
    assert found.inventory is not None
    assert len(found.inventory.instances) > cards * parts
    sizes = {name: len(packing.plain(data)) for name, data in made.entries.items()}
    assert sum(sizes.values()) < record.HEAVY_BYTES / 2
    assert max(sizes.values()) < packing.LARGEST / 8
    assert max(size for name, size in sizes.items() if name != "static") < packing.SMALL / 8
    assert found.shape is not None
    assert len(found.shape.rows) < MOST_ROWS / 8
    assert sum(len(row.overlaps) for row in found.shape.rows) < MOST_OVERLAPS / 4


def test_a_job_with_all_ports_is_read() -> None:
    made = _large("cpu-only", 0, 0, jobs=1)
    name = next(name for name in made.entries if name.startswith("binding/"))
    held = msgspec.json.decode(packing.plain(made.entries[name]))
    held["ports"] = {str(20000 + at): f"p{at:031}" for at in range(10_000)}
    entries = {**made.entries, name: packing.pack(held)}
    head = structs.replace(made.head, report=digest(entries))
    made = structs.replace(made, entries={**entries, HEAD: packing.pack(head)})
    found = Reader().take(*_changes(made)).nodes[made.head.node]
    assert found.faults == ()
    assert len(found.bindings[0].ports) == 10_000


def test_bindings_that_all_hold_all_are_told_and_come_to_an_end() -> None:
    """With what overlaps followed for each of them these were four billion looks."""
    ids = [str(at) for at in range(2500)]
    row = {"type": "gpu", "provider": "x", "overlaps": [f"#{at}" for at in range(100)]}
    shape = packing.packed({"rows": [row] * len(ids)})
    static = {**STATIC, "shape": shape.digest, "ids": ids, "own": [{}] * len(ids)}
    reader = Reader(state())
    reader.put(KEYS.shape(shape.digest), shape.data)
    reader.put(entry(2, "static"), packing.pack(static))
    held = {"attempt": "1", "state": "bound", "instances": ids}
    reader.take(
        *((entry(2, f"binding/{at}/1"), packing.pack({"job": str(at), **held}), 0)
          for at in range(400))
    )  # fmt: skip
    found = node(reader.fleet(later=SETTLE + 1), 2)
    assert not found.eligible
    assert any("is held by job" in fault for fault in found.faults)
    (more,) = (int(one.split()[1]) for one in found.faults if one.endswith("more faults"))
    assert more <= MOST_CONFLICTS


def test_a_value_of_nothing_but_arrays_is_not_read() -> None:
    reader = Reader(state())
    value = packing.pack({**STATIC, "attributes": {"a": [[]] * packing.MOST_OBJECTS}})
    reader.put(entry(2, "static"), value)
    found = node(reader.fleet(later=SETTLE + 1), 2)
    assert any(f"at most {packing.MOST_OBJECTS} are read" in fault for fault in found.faults)


def test_who_has_more_than_any_host_is_read_once_in_a_while() -> None:
    reader = Reader(state())
    reason = "x" * (packing.SMALL - 100)
    states = [(entry(2, f"state/x{at}"), packing.pack({"reason": reason}), 0) for at in range(20)]
    reader.take(*states)
    heavy = node(reader.fleet(later=SETTLE + 1), 2)
    assert len(heavy.states) >= 20
    assert (
        reader.put(entry(2, "state/x1"), packing.pack({"reason": "y"})).nodes[heavy.name] is heavy
    )
    other = structs.replace(fleets.reported(6).head, number=77)
    found = reader.put(entry(6, HEAD), packing.pack(other))
    assert node(found, 6).head == other
    assert node(found, 2) is heavy
    assert reader.mirror.due() <= reader.now + HEAVY_SECONDS
    assert node(reader.fleet(later=HEAVY_SECONDS), 2).states["x1"].reason == "y"


@pytest.mark.parametrize(
    "rows",
    [
        [{"type": "g", "provider": "x"}] * (MOST_ROWS + 1),
        [{"type": "g", "provider": "x", "overlaps": ["#0"] * 1000}] * 300,
    ],
    ids=["rows", "overlaps"],
)
def test_a_shape_that_is_too_large_is_a_fault(rows: list[dict[str, object]]) -> None:
    shape = packing.packed({"rows": rows})
    reader = Reader(state())
    reader.put(KEYS.shape(shape.digest), shape.data)
    reader.put(entry(2, "static"), packing.pack({**STATIC, "shape": shape.digest}))
    found = node(reader.fleet(later=SETTLE + 1), 2)
    assert any("instances that overlap" in fault for fault in found.faults), found.faults


def test_shapes_that_no_node_has_any_more_are_let_go_of() -> None:
    reader = Reader(state())
    for at in range(200):
        shape = packing.packed({"rows": [], "topology": {"at": at}})
        made = _named(STATIC, shape.digest)
        reader.take((KEYS.shape(shape.digest), shape.data, 0), *made)
    assert len(reader.mirror._forms) <= 64
    # They are read again where a node has them.
    first = packing.packed({"rows": [], "topology": {"at": 0}})
    found = reader.take(*_named(STATIC, first.digest))
    assert node(found, 2).shape is not None


def _named(static: dict[str, object], sha256: str) -> list[tuple[bytes, bytes, int]]:
    value = packing.pack({**static, "shape": sha256, "ids": [], "own": []})
    entries = {"static": value}
    head = structs.replace(fleets.reported(2).head, report=digest(entries))
    gone = fleets.reported(2).entries.keys() - {"static", HEAD}
    return [
        *((entry(2, name), None, 0) for name in gone),
        (entry(2, "static"), value, 0),
        (entry(2, HEAD), packing.pack(head), 0),
    ]


def _changes(made: Report) -> list[tuple[bytes, bytes, int]]:
    below = ((KEYS.entry(made.head.node, n), data, 0) for n, data in made.entries.items())
    return [(KEYS.shape(made.shape), made.shape_data, 0), *below]


def _large(profile: str, cards: int, parts: int, jobs: int) -> Report:
    """Report a host whose cards are each in so many parts, with jobs that hold one or none."""
    base = fleets.inventory(16 * fleets.PROFILES.index(profile))
    others = [one for one in base.instances if one.type not in ("gpu", "mig")]
    gpus = [one for one in base.instances if one.type == "gpu"][:cards]
    made = list(others)
    free = []
    for card in gpus:
        ids = [f"{card.id}-part-{at:03}-5d3b3a52-7d0e-4e57" for at in range(parts)]
        made.append(structs.replace(card, overlaps=tuple(ids)))
        made += [structs.replace(card, id=one, parent=card.id, overlaps=(card.id,)) for one in ids]
        free += ids
    found: Inventory = structs.replace(base, instances=tuple(made))
    cards_of = {one.id: one for one in made}
    bindings = [
        fleets.binding(f"job{at}", [cards_of[one] for one in free[at : at + 1]], found, port=20000)
        for at in range(jobs)
    ]
    return report(found, bindings, agent="a", program="0.1.0")
