"""A site's own declarations: where they are, and whose word counts."""

from __future__ import annotations

from msgspec import Struct


class Site(Struct, frozen=True):
    """Where the files of declared instances are, and who may have written them (uids).

    `patterns` are the nodes that a reporter may name.
    """

    folder: str
    owners: frozenset[int] = frozenset({0})
    patterns: tuple[str, ...] = ()
