"""Values that no honest agent writes: the entry, its value, and what is told of it."""

from __future__ import annotations

import zlib
from typing import Any

import fleets
import msgspec
from msgspec import structs

from xce_nodeagent.upstream import packing


def head(at: int, **more: Any) -> bytes:
    return packing.pack(structs.replace(fleets.reported(at).head, **more))


def deep(levels: int) -> bytes:
    return b'{"counters":' + b'{"a":' * levels + b"1" + b"}" * levels + b"}"


STATIC = msgspec.json.decode(packing.plain(fleets.reported(2).entries["static"]))
JOB = "binding/1002.0/1"

BAD = {
    "garbage": ("head", b"\x00\xff garbage", "not a Head"),
    "empty": ("head", b"", "not a Head"),
    "another type": ("head", b"[1,2]", "not a Head"),
    "no UTF-8": ("head", b'{"node":"\xff"}', "not a Head"),
    "deep": ("head", deep(9_000), "not a Head"),
    "no number of this world": (
        "head",
        packing.plain(head(2)).replace(b'"healthy":8', b'"healthy":' + b"9" * 400),
        "head: ",
    ),
    "nested": ("head", head(2, counters={"gpu": {"total": {"total": {"a": []}}}}), "is no amount"),
    "future": ("head", head(2, version=9, least=9), "needs a reader of version 9"),
    "another node's": ("head", head(2, node="r000-n03"), "it is of node 'r000-n03'"),
    "generation": ("head", head(2, generation="x:y"), "no generation of boot"),
    "negative number": ("head", head(2, number=-1), "is negative"),
    "negative counter": ("head", head(2, counters={"gpu": {"total": -1}}), "'gpu' is no amount"),
    "bomb": ("static", zlib.compress(b" " * (64 << 20)), "more than 4194304 bytes"),
    "bomb of a state": ("state/x", zlib.compress(b" " * (4 << 20)), "more than 65536 bytes"),
    "bomb of a binding": (JOB, zlib.compress(b" " * (4 << 20)), "more than 524288 bytes"),
    "huge head": ("head", head(2, program="x" * (65 << 10)), "more than 65536 bytes"),
    "huge": ("static", b"{" + b" " * (5 << 20) + b"}", "at most 4194304 are read"),
    "cut short": ("static", fleets.reported(2).entries["static"][:-9], "cut short"),
    "no such shape": ("static", packing.pack({**STATIC, "shape": "0" * 64}), "not in the store"),
    "fewer": ("static", packing.pack({**STATIC, "ids": STATIC["ids"][1:]}), "but its shape has"),
    "one id twice": (
        "static",
        packing.pack({**STATIC, "ids": [STATIC["ids"][0]] * len(STATIC["ids"])}),
        "two instances have one id",
    ),
    "state": ("state/ff00:29:00.0", b"{", "state/ff00:29:00.0: not a State"),
    "binding": (JOB, b'{"job":1}', f"{JOB}: not a Held"),
    "another job's": (JOB, packing.pack({"job": "7", "state": "bound"}), "it is of job '7'"),
    "problems": ("problems", b"\x78\x9c", "problems: "),
}

WORTHLESS = [value for _, value, _ in BAD.values() if len(value) < 10_000]
