"""A secret in a file: read when it is used, so that a new one counts at once; it is never told."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from xce_nodeagent.upstream.sink import Undelivered

LARGEST = 16 << 10
"""Bytes of a secret that are read at most; a token of a few kilobytes is a large one."""


def read(path: Path) -> str:
    """Give what stands in a file, a line of ASCII. Raise Undelivered; the secret is not in it."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise Undelivered(
            f"{path}: {error.strerror}", remedy="let the agent's user read it", hopeless=True
        ) from None
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o007:
        raise Undelivered(
            f"{path}: everybody can get at the secret in it (mode {mode:04o})",
            remedy="chmod o= it, and take a new secret",
            hopeless=True,
        )
    text = data.decode("ascii", "replace").strip()
    if not text or len(data) > LARGEST or not text.isprintable() or not text.isascii():
        raise Undelivered(
            f"{path}: expected one line of ASCII in it",
            remedy="write the secret there, and nothing else",
            hopeless=True,
        )
    return text
