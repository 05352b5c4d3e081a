"""The soak's short form. Its modules import each other as `soak.NAME`, which is this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from soak import run

TOLD = pytest.StashKey[list[str]]()


@pytest.fixture
def told(request: pytest.FixtureRequest) -> Any:
    """Say something in the summary of the run, also when all went well."""
    return request.config.stash.setdefault(TOLD, []).append


@pytest.fixture(scope="session")
def crew() -> Iterator[Any]:
    """The processes of the harness, for all tests of the session."""
    with run.crew() as made:
        yield made


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for line in config.stash.get(TOLD, []):
        terminalreporter.write_line(line)
