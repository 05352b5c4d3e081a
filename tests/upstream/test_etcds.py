"""The tests' own etcd does what the other tests rely on."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.needs("etcd")


def test_its_data_outlives_a_kill(etcd):
    etcd.ctl("put", "a", "1")
    before = etcd.revision()
    etcd.restart()
    assert etcd.ctl("get", "a", "--print-value-only").strip() == "1"
    assert etcd.revision() == before
    assert etcd.keys() == ["a"]
