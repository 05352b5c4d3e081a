"""Files that are there as a whole, or as they were."""

from __future__ import annotations

import os
import secrets
import stat


def replace(file: str, text: str) -> None:
    """Write a file at once: whoever reads it sees the old text or the new one. Raise OSError.

    A link stays, and what it leads to is replaced. What is no regular file (a pipe, a terminal) is
    written to.
    """
    path = os.path.realpath(file)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            with open(path, "w", encoding="utf-8") as opened:
                opened.write(text)
            return
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        mode = None
    beside = f"{path}.{secrets.token_hex(4)}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(beside, flags, 0o666), "w", encoding="utf-8") as opened:
            if mode is not None:
                os.fchmod(opened.fileno(), mode)
            opened.write(text)
        os.replace(beside, path)
    except BaseException:
        if os.path.lexists(beside):
            os.unlink(beside)
        raise
