"""A site's own declarations: where they are, and whose word counts."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from xce_nodeagent.model.declared import Declared


class Site(Struct, frozen=True):
    """Where the files of declared instances are, and who may have written them (uids).

    `patterns` are the nodes that a reporter may name.
    """

    folder: str
    owners: frozenset[int] = frozenset({0})
    patterns: tuple[str, ...] = ()


class Reported(Struct, frozen=True):
    """What a site's program said: `state` and `reason` as a provider's Found has them.

    `declared` is what it said the last time that all was well; None where it never was.
    """

    state: Literal["found", "none", "not_yet", "error"]
    reason: str = ""
    declared: Declared | None = None
