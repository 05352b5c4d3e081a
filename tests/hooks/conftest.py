"""Agents to talk to, each in a process of its own."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


def _load() -> ModuleType:
    # Test folders are no packages, so the program beside the tests is loaded by its path.
    path = Path(__file__).parents[1] / "wire" / "agent.py"
    spec = importlib.util.spec_from_file_location("xce_test_agent", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def agents() -> ModuleType:
    """The module with `running(directory, *options)`."""
    return _load()


@pytest.fixture
def agent(agents: ModuleType, tmp_path: Path) -> Iterator[str]:
    """An agent's socket."""
    with agents.running(tmp_path) as path:
        yield path
