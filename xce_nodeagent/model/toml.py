"""TOML, with one exception for all that can be wrong."""

from __future__ import annotations

import tomllib
from typing import Any

_WORD = 1 << 63  # TOML v1.0.0, "Integer": 64 bits with a sign; what has more is an error


def read(text: str) -> dict[str, Any]:
    """Read a document; raise ValueError where it is none.

    tomllib reads longer integers, which Python then neither prints nor converts, and lets recursion
    come through.
    """
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError("tables or lists stand too deep in each other") from None
    todo: list[Any] = [values]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, list):
            todo += one
        elif isinstance(one, int) and not -_WORD <= one < _WORD:
            raise ValueError("an integer has more than 64 bits")
    return values
