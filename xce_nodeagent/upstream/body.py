"""The body of a report by HTTP: one JSON object, whole or a delta. Pure.

    {"kind": "full", "head": {…}, "entries": {NAME: VALUE, …}, "shape": {…}}
    {"kind": "delta", "after": DIGEST, "head": {…}, "puts": {…}, "deletes": [NAME, …]}

Values are plain JSON, not deflated and not in base64: a receiver in any language reads them with
what it has, and a whole report is sent once in an hour. They stand there byte for byte as their
digests were made of them. `shape` comes with every whole report, and with a delta to another one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.report import HEAD, Entries, Report, difference


def full(report: Report) -> bytes:
    """Give the body of a whole report."""
    return msgspec.json.encode(
        {
            "kind": "full",
            "head": report.head,
            "entries": _plain(report.entries),
            "shape": msgspec.Raw(packing.plain(report.shape_data)),
        }
    )


def delta(before: Report, after: Report) -> bytes:
    """Give the body that leads from one report to another."""
    change = difference(before, after)
    told: dict[str, Any] = {
        "kind": "delta",
        "after": change.after,
        "head": change.head,
        "puts": _plain(change.puts),
        "deletes": change.deletes,
    }
    if before.shape != after.shape:
        told["shape"] = msgspec.Raw(packing.plain(after.shape_data))
    return msgspec.json.encode(told)


def _plain(entries: Entries) -> dict[str, msgspec.Raw]:
    return {
        name: msgspec.Raw(packing.plain(data)) for name, data in entries.items() if name != HEAD
    }
