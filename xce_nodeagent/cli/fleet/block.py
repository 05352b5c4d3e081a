"""A node's switch block, as `[fleet] block` tells how to find it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from xce_nodeagent.model.upstream import ATTRIBUTE

Block = Callable[[str, Mapping[str, Any]], str]
"""Gives a node's switch block from its name and its host's attributes; empty where none is told."""

_MOST_LETTERS = 253  # of a name that a block is looked for in (RFC 1035)


def block_of(told: str) -> Block:
    """Give what finds a node's switch block."""
    if told.startswith(ATTRIBUTE):
        attribute = told.removeprefix(ATTRIBUTE)
        return lambda _, attributes: str(attributes.get(attribute, ""))
    if not told:
        return lambda *_: ""
    pattern = re.compile(told)

    def block(name: str, _: Mapping[str, Any]) -> str:
        found = pattern.search(name[:_MOST_LETTERS])
        return (found[1] or "") if found else ""

    return block
