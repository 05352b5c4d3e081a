from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from xce_nodeagent.upstream import certificate


def der(start: bytes, end: bytes) -> bytes:
    """Give the least that has the dates of a certificate: a tag of one byte before each time."""

    def element(tag: int, content: bytes) -> bytes:
        return bytes([tag, len(content)]) + content

    times = b"".join(element(0x17 if len(one) < 15 else 0x18, one) for one in (start, end))
    other = element(0x02, b"1") * 3  # serial number, signature, issuer
    return element(0x30, element(0x30, other + element(0x30, times)))


def test_both_forms_of_a_time() -> None:
    """RFC 5280, 4.1.2.5: two digits of the year until 2049, four from then on."""
    found = certificate.dates(der(b"491231235958Z", b"20500101000001Z"))
    assert found.start == datetime(2049, 12, 31, 23, 59, 58, tzinfo=UTC)
    assert found.end == datetime(2050, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert certificate.dates(der(b"500101000000Z", b"491231235959Z")).start.year == 1950


@pytest.mark.parametrize(
    "wrong",
    [
        b"2012312359Z",  # without seconds
        b"20301231235959+",
        b"2030123123595 Z",
        b"20301331235959Z",
        b"20301231246060Z",
        b"2030 231235959Z",
        b"+030123123595Z",
        b"2030_1_1_1_1_1Z",
        b"\xb2030123123595Z",
    ],
)
def test_what_is_no_time_is_no_date(wrong) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # of several kinds
        certificate.dates(der(b"300101000000Z", wrong))


@pytest.mark.parametrize(
    ("day", "told"),
    [
        (1, ""),
        (17, ""),
        (18, "a.pem ends in 13 days, 2030-01-31 23:59 UTC"),
        (29, "a.pem ends in 2 days, 2030-01-31 23:59 UTC"),
        (30, "a.pem ends within two days, 2030-01-31 23:59 UTC"),
        (31, "a.pem ends within two days, 2030-01-31 23:59 UTC"),
    ],
)
def test_an_end_that_is_near_is_told(day, told) -> None:
    end = datetime(2030, 1, 31, 23, 59, 59, tzinfo=UTC)
    assert certificate.soon("a.pem", end, datetime(2030, 1, day, 12, tzinfo=UTC)) == told


def test_what_ended_does_not_end_soon() -> None:
    end = datetime(2030, 1, 31, tzinfo=UTC)
    assert certificate.soon("a.pem", end, datetime(2030, 1, 31, 0, 0, 1, tzinfo=UTC)) == ""


def test_dates_are_read_without_another_import() -> None:
    """They are read where the interpreter may be out of reach."""
    code = (
        "import sys\n"
        "from xce_nodeagent.upstream import certificate\n"
        "before = set(sys.modules)\n"
        "print(f'{certificate.dates(bytes.fromhex(sys.argv[1])).end:%Y-%m-%d %H:%M}')\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    text = der(b"300101000000Z", b"300131235959Z").hex()
    done = subprocess.run(
        [sys.executable, "-c", code, text], capture_output=True, text=True, check=True
    )
    assert done.stdout == "2030-01-31 23:59\n[]\n"


@given(st.binary(max_size=14))
@example(b"300101000000Z")
def test_a_time_of_any_bytes_is_one_or_a_fault(text) -> None:
    try:
        found = certificate.dates(der(b"300101000000Z", text))
    except ValueError:
        return
    assert f"{found.end:%y%m%d%H%M%SZ}".encode() == text


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
