"""Paths that root alone decides on: nobody else can put another file, or a link, on the way."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection

SHARED = stat.S_IWGRP | stat.S_IWOTH
_LINKS = 8  # that are followed to one file: udev makes one


class Shared(Exception):
    """Others decide on `path`, which is as `found` says."""

    def __init__(self, path: str, found: os.stat_result) -> None:
        super().__init__(path)
        self.path = path
        self.found = found


def follow(
    path: str, owners: Collection[int] = frozenset({0}), *, sticky: bool = False
) -> tuple[str, os.stat_result]:
    """Follow every link of an absolute path; give where it leads, and what is there.

    Raise Shared where a folder on the way is of others than `owners`, or others can write in it.
    With `sticky` it may be one in which everybody can replace his own alone (chmod(1)), as long as
    what the way takes there is the owners'. Raise OSError where there is nothing.
    """
    todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    folder, links = "", 0
    while True:
        kept = check(folder or "/", owners, sticky=sticky)
        part = todo.pop() if todo else "."
        if part == "..":
            folder = folder.rpartition("/")[0]
            continue
        place = f"{folder}/{part}"
        found = os.lstat(place)
        if kept and found.st_uid not in owners:
            raise Shared(place, found)
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, "too many links", path)
            target = os.readlink(place)
            folder = "" if target.startswith("/") else folder
            todo += [one for one in reversed(target.split("/")) if one not in ("", ".")]
        elif todo:
            folder = place
        else:
            return place, found


def check(folder: str, owners: Collection[int] = frozenset({0}), *, sticky: bool = False) -> bool:
    """Raise Shared where others decide what is in a folder; say whether it is a sticky one."""
    found = os.lstat(folder)
    shared = bool(found.st_mode & SHARED)
    if found.st_uid not in owners or (shared and not (sticky and found.st_mode & stat.S_ISVTX)):
        raise Shared(folder, found)
    return shared
