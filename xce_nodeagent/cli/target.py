"""What a command writes for the one who named the file."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from xce_nodeagent.host import whole


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
    beside = f"{os.path.basename(path)}.{secrets.token_hex(4)}"  # of this command alone
    whole.replace(Path(path), text.encode(), mode=mode, beside=beside)
