"""Machines with the cards of other vendors, each written once."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from xce_nodeagent.discovery import scan
from xce_nodeagent.host import Host
from xce_nodeagent.model.inventory import Inventory
from xce_nodeagent.providers import all_providers


@pytest.fixture(scope="session")
def machines() -> ModuleType:
    """The module that writes them."""
    path = Path(__file__).with_name("machines.py")
    spec = importlib.util.spec_from_file_location("xce_test_vendor_machines", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def machine(machines: ModuleType, tmp_path: Path) -> Callable[[str], Path]:
    """Write a machine of that name, and give its root; a test may change it."""
    return lambda name: machines.write(tmp_path / name, name)


@pytest.fixture
def look() -> Callable[..., Inventory]:
    """Discover all of a root, as the agent does."""
    return lambda root, previous=None: scan(Host(root), all_providers(), previous)
