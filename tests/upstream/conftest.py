from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import etcds


@pytest.fixture(scope="module")
def etcd():
    """An etcd that the tests of a file share: each takes a prefix, or names, of its own."""
    with etcds.running() as one:
        yield one


@pytest.fixture
def chance():
    """Chance that is the same in each run."""
    return Random(1)  # noqa: S311  # no secret
