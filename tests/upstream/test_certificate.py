from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xce_nodeagent.upstream import certificate


@given(st.binary(max_size=300))
def test_no_bytes_are_trusted(data):
    try:
        certificate.dates(data)
    except ValueError:
        return
    pytest.fail("rubbish with two dates in it")


@given(st.binary(max_size=200))
def test_no_file_is_trusted(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "rubbish.pem"
    path.write_bytes(b"-----BEGIN CERTIFICATE-----\n" + data + b"\n-----END CERTIFICATE-----\n")
    assert certificate.read(path) is None
