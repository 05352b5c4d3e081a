"""A record of a machine: what discovery read of it, as files that can be looked at elsewhere."""

from __future__ import annotations

from msgspec import Struct


class Folder(Struct, frozen=True, gc=False):
    """A folder."""


class File(Struct, frozen=True, gc=False):
    """A file with the text that was read from it; empty where it was only seen in its folder."""

    text: str = ""


class Link(Struct, frozen=True, gc=False):
    """A symbolic link. Its target is relative, and stays within the record."""

    target: str


Entry = Folder | File | Link
Record = dict[str, Entry]
"""By path (`/sys/class/net/eth0`), with no link on the way to any of them."""
