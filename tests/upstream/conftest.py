from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import etcds


@pytest.fixture(scope="module")
def etcd():
    """An etcd that the tests of a file share: each takes a prefix, or names, of its own."""
    with etcds.running() as one:
        yield one
