"""The table of what went wrong elsewhere: it names tests that there are, and has no empty row."""

from __future__ import annotations

import re
from pathlib import Path

from faults import named

TEXT = Path(__file__).with_name("README.md").read_text("utf-8")


def test_every_test_that_the_table_names_exists():
    names = re.findall(r"`(tests/[\w/]+\.py::test_\w+)`", TEXT)
    assert len(names) > 40
    assert named.missing(names) == []


def test_every_fault_has_its_test_or_its_reason():
    rows = [
        line.split("|")[1:-1] for line in TEXT.splitlines() if re.match(r"\| (?!source)\S", line)
    ]
    assert len(rows) > 50
    for _, what, held in rows:
        words = ("::test_", "not yet: ", "cannot be: ")
        assert any(word in held for word in words), what


def test_every_named_fault_is_in_the_table():
    for path in Path(__file__).parent.glob("test_what_went_wrong_*.py"):
        for name in named.functions_of(path):
            assert not name.startswith("test_") or f"{path.name}::{name}`" in TEXT or name in OTHERS


OTHERS = {"test_a_port_is_given_again_while_its_server_still_listens"}
"""Named so because it is the other end of a fault that the table has."""
