"""From when until when a certificate file holds. Pure, but for the one that opens the file.

The standard library tells the dates of the other side's certificate, not of one's own; a report
that stops because a certificate ended is the commonest of faults, so its reason names the date.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

from xce_nodeagent.upstream import regular

_SEQUENCE, _UTC_TIME, _TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0  # tags of DER, X.690
_LENGTH = len("20300131235959Z")  # RFC 5280, 4.1.2.5: always with seconds, always in UTC
_LARGEST = 1 << 20  # of a file with a chain of certificates

SOON = timedelta(days=14)
"""So long before its end people are told of a certificate."""


class Dates(Struct, frozen=True):
    """From when until when a certificate holds, both included; aware of UTC."""

    start: datetime
    end: datetime


def read(path: Path) -> Dates | None:
    """Give the dates of the first certificate in a PEM file; None where there is none to read."""
    try:
        # As a file of text it would import a codec.
        text = regular.read(path, _LARGEST)[0].decode("ascii")
        first = text.index(ssl.PEM_HEADER)
        last = text.index(ssl.PEM_FOOTER, first) + len(ssl.PEM_FOOTER)
        return dates(ssl.PEM_cert_to_DER_cert(text[first:last]))
    except (OSError, ValueError):
        return None


def wrong(path: Path, now: datetime) -> str:
    """Say what the dates make wrong with the certificate in a file; empty where nothing."""
    found = read(path)
    if found is None:
        return ""
    if now > found.end:
        return f"{path} ended {found.end:%Y-%m-%d %H:%M} UTC"
    if now < found.start:
        return f"{path} begins {found.start:%Y-%m-%d %H:%M} UTC"
    return ""


def soon(path: str, end: datetime, now: datetime) -> str:
    """Say when a certificate that holds will end, if that is within `SOON`; empty else."""
    left = end - now
    if not timedelta(0) <= left < SOON:
        return ""
    when = f"in {left.days} days" if left.days > 1 else "within two days"
    return f"{path} ends {when}, {end:%Y-%m-%d %H:%M} UTC"


def dates(der: bytes) -> Dates:
    """Give the dates of a certificate in DER (RFC 5280, 4.1). Raise ValueError."""
    try:
        certificate = _inside(der, _SEQUENCE)
        rest = _inside(certificate, _SEQUENCE)
        if rest[0] == _VERSION:
            rest = _after(rest)
        for _ in ("serial number", "signature", "issuer"):
            rest = _after(rest)
        validity = _inside(rest, _SEQUENCE)
        return Dates(_time(validity), _time(_after(validity)))
    except IndexError:
        raise ValueError("a certificate that is cut short") from None


def _element(data: bytes) -> tuple[int, int, int]:
    """Give an element's tag, and where its content begins and ends."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("a certificate that is cut short")
    return tag, start, start + length


def _inside(data: bytes, wanted: int) -> bytes:
    tag, start, end = _element(data)
    if tag != wanted:
        raise ValueError(f"no certificate: an element {tag:#x} where {wanted:#x} belongs")
    return data[start:end]


def _after(data: bytes) -> bytes:
    return data[_element(data)[2] :]


def _time(data: bytes) -> datetime:
    tag, start, end = _element(data)
    if tag not in {_UTC_TIME, _TIME}:
        raise ValueError(f"no certificate: an element {tag:#x} where a time belongs")
    text = data[start:end].decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year: 50 and above are of the last century
        text = ("19" if text[:2] >= "50" else "20") + text
    if len(text) != _LENGTH or text[-1] != "Z" or not text[:-1].isdecimal():
        raise ValueError(f"no certificate: {text!r} is no time")
    # By hand: strptime() imports a module with its first call, and where this is called the
    # interpreter may be out of reach.
    month, day, hour, minute, second = (int(text[n : n + 2]) for n in range(4, _LENGTH - 1, 2))
    return datetime(int(text[:4]), month, day, hour, minute, second, tzinfo=UTC)
