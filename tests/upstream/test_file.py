"""The file: whole or not at all, the inventory as it always was, and its faults in words."""

from __future__ import annotations

import json
import os
import stat

import msgspec
import pytest
from msgspec import structs
from states import binding, scanned

from xce_nodeagent.model.inventory import Inventory, with_holders
from xce_nodeagent.upstream.file import FileSink
from xce_nodeagent.upstream.report import Series, numbered
from xce_nodeagent.upstream.sink import Undelivered


def report(*bindings):
    return numbered(Series(agent="a", started=3.0).next(scanned(), bindings), 7, 9.0)


def test_it_is_the_inventory_with_two_fields_more(tmp_path):
    path = tmp_path / "report.json"
    card, other = (one.id for one in scanned().instances[:2])
    size = FileSink(path).deliver(report(binding("1", card, attempt="a"), binding("2", card)))
    told = json.loads(path.read_text("utf-8"))
    assert size == path.stat().st_size
    assert told.pop("report") == {
        "version": 1, "agent": "a", "number": 7, "started": 3.0, "time": 9.0, "program": "",
        "report": report(binding("1", card, attempt="a"), binding("2", card)).head.report,
    }  # fmt: skip
    assert [one["job"] for one in told.pop("bindings")] == ["1", "2"]
    holders = {one["id"]: one["held_by"] for one in told["instances"]}
    assert holders[card] == [{"job": "1", "attempt": "a"}, {"job": "2", "attempt": ""}]
    assert holders[other] == []
    assert told.keys() == {field.name for field in structs.fields(Inventory)}
    read = msgspec.json.decode(path.read_bytes(), type=Inventory)
    assert with_holders(read, {}) == with_holders(scanned(), {})


def test_everybody_may_read_it_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "report.json"
    sink = FileSink(path)
    for number in range(3):
        sink.deliver(report(binding(str(number))))
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("missing/report.json", "No such file or directory"),
        ("file/report.json", "Not a directory"),
        ("folder", "Is a directory"),
    ],
)
def test_a_fault_names_the_file_and_what_helps(tmp_path, place, told):
    (tmp_path / "file").write_text("x", "utf-8")
    (tmp_path / "folder").mkdir()
    path = tmp_path / place
    with pytest.raises(Undelivered) as caught:
        FileSink(path).deliver(report())
    assert caught.value.reason == f"{path}: {told}"
    assert f"let the agent's user (uid {os.geteuid()}) write in that folder" in caught.value.remedy
    assert "ReadWritePaths= of xce-nodeagent.service" in caught.value.remedy
    assert not caught.value.hopeless
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
