"""Tests as tables name them: `tests/FOLDER/FILE.py::test_NAME`."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def functions_of(path: Path) -> set[str]:
    """Give the names of all functions of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def missing(names: Iterable[str]) -> list[str]:
    """Give those of the names that no test has."""

    def exists(name: str) -> bool:
        path, _, function = name.partition("::")
        return (
            function.startswith("test_")
            and (ROOT / path).is_file()
            and function in functions_of(ROOT / path)
        )

    return [name for name in names if not exists(name)]
