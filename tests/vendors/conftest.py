"""Machines with the cards of other vendors, each written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from vendors import machines as machines_of_vendors

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.providers import all_providers


@pytest.fixture(scope="session")
def machines() -> ModuleType:
    """The module that writes them."""
    return machines_of_vendors


@pytest.fixture
def machine(machines: ModuleType, tmp_path: Path) -> Callable[[str], Path]:
    """Write a machine of that name, and give its root; a test may change it."""
    return lambda name: machines.write(tmp_path / name, name)


@pytest.fixture
def look() -> Callable[..., Inventory]:
    """Discover all of a root, as the agent does."""
    return lambda root, previous=None: scan(Host(root), all_providers(), previous)
