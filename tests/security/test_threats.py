"""The page `docs/threats.md` and the tests say the same: no claim without one, none unnamed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "threats.md").read_text("utf-8")
NAMED = set(re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)`", PAGE))


def functions_of(path):
    found = ast.walk(ast.parse(path.read_text("utf-8")))
    return {
        node.name
        for node in found
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_test_that_the_page_names_exists():
    for file, name in sorted(NAMED):
        assert (TESTS / file).exists(), file
        assert name in functions_of(TESTS / file), f"{file}::{name}"


def test_every_attack_is_named_in_the_page():
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path.name == Path(__file__).name:
            continue
        for name in sorted(functions_of(path)):
            assert (f"security/{path.name}", name) in NAMED, name


def test_every_row_of_the_page_names_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "| tests |" not in line]
    assert len(rows) > 20
    for row in rows:
        assert re.search(r"`\w+/test_\w+\.py::test_\w+`", row), row


def test_it_is_one_page():
    assert len(PAGE.splitlines()) <= 120
