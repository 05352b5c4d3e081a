"""An agent that the tests of a file share, and what undoes their jobs."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from cli.command import Done, Run, command


@pytest.fixture(scope="module")
def shared(agents: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with agents.running(tmp_path_factory.mktemp("shared")) as path:
        yield path


@pytest.fixture
def run(shared: str) -> Iterator[Run]:
    """Run a command; whatever it bound or drained is undone."""

    def call(*arguments: str, **more: Any) -> Done:
        return command(shared, *arguments, **more)

    yield call
    assert call("reconcile", stdin="[]").returncode == 0
    assert call("undrain", "GPU-4").returncode == 0
