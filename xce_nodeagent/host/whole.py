"""Files that are there as a whole, or as they were: written beside, then renamed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from xce_nodeagent.host.durable import sync_file


def replace(
    path: Path,
    data: bytes,
    *,
    mode: int | None = 0o600,
    sync: bool = False,
    beside: str = "",
) -> None:
    """Put these bytes in the place of a file: a reader sees the old or the new. Raise OSError.

    `mode` None is what the umask leaves. With `sync` the new one is on the disk, under its name,
    before this returns; without, a crash of the host may leave an empty file. `beside` is the name
    in the same folder that it is written under first; else that is the file's own, with `.` before
    and `.new` behind, so that a writer that is killed leaves one file at most, which the next one
    takes away. Where several may write one file at once, each needs a name of its own there.
    """
    new = path.with_name(beside or f".{path.name}.new")
    if not beside:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
    # Nothing that somebody put there is written to or followed.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(new, flags, 0o666 if mode is None else 0o600)
    try:
        with open(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)
            file.write(data)
            if sync:
                file.flush()
                os.fsync(descriptor)
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    if sync:
        sync_file(path.parent)
