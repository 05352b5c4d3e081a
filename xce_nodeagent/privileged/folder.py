"""Folders that root makes or trusts: nobody else may have put something in their place."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection

from xce_nodeagent.errors import BadConfig

_SHARED = stat.S_IWGRP | stat.S_IWOTH
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def make(path: str, uid: int, gid: int, mode: int) -> None:
    """Make a folder and what is missing above it, and give it to a user; raise BadConfig.

    One that is there already must be that user's or ours. Only the folder itself is given: what
    is in it belongs to that user, who could have put a link there.
    """
    above, name = os.path.split(os.path.abspath(path))
    try:
        os.makedirs(above, 0o755, exist_ok=True)
        parent = os.open(above, _OPEN)
    except OSError as error:
        raise BadConfig(f"{path}: cannot be made: {above}: {error.strerror}") from None
    try:
        _check_parent(parent, above, (os.geteuid(), uid))
        # By descriptors: whatever happens to the names, it is this folder that is given away.
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=parent)
        folder = _open(name, parent, path)
    finally:
        os.close(parent)
    try:
        found = os.fstat(folder)
        _check_owner(found, path, (os.geteuid(), uid))
        # Nothing is written that is right already: the disk may be read-only by now.
        if (found.st_uid, found.st_gid) != (uid, gid):
            os.fchown(folder, uid, gid)
        if stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(folder, mode)
    finally:
        os.close(folder)


def check(path: str, uid: int) -> None:
    """Refuse, with BadConfig, a folder in which a third could put something in our files' place.

    It must be ours or `uid`'s, no link, and nobody else may write to it or replace it.
    """
    above, name = os.path.split(os.path.abspath(path))
    owners = (os.geteuid(), uid)
    try:
        parent = os.open(above, _OPEN)
    except OSError as error:
        raise BadConfig(f"{path}: expected a folder: {above}: {error.strerror}") from None
    try:
        _check_parent(parent, above, owners)
        folder = _open(name, parent, path)
    finally:
        os.close(parent)
    try:
        found = os.fstat(folder)
    finally:
        os.close(folder)
    _check_owner(found, path, owners)
    if found.st_mode & _SHARED:
        raise BadConfig(
            f"{path}: expected a folder of uid {owners[0]} or {uid} that nobody else can write to;"
            f" its mode is {stat.S_IMODE(found.st_mode):04o}"
        )


def _open(name: str, parent: int, path: str) -> int:
    try:
        return os.open(name or ".", _OPEN | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        raise BadConfig(f"{path}: expected a folder, and no link: {error.strerror}") from None


def _check_parent(parent: int, above: str, owners: Collection[int]) -> None:
    found = os.fstat(parent)
    _check_owner(found, above, {0, *owners})
    if found.st_mode & _SHARED and not found.st_mode & stat.S_ISVTX:
        raise BadConfig(
            f"{above}: others can replace what is in it: its mode is"
            f" {stat.S_IMODE(found.st_mode):04o}; take their right to write away, or set its"
            " sticky bit"
        )


def _check_owner(found: os.stat_result, path: str, owners: Collection[int]) -> None:
    if found.st_uid not in owners:
        raise BadConfig(
            f"{path}: it is a folder of uid {found.st_uid}, expected one of"
            f" {' or '.join(str(uid) for uid in sorted(set(owners)))}"
        )
