"""A record of a machine, written to a folder that `--sysroot` reads."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from xce_nodeagent.cli.invocation import tell
from xce_nodeagent.daemon.account import load, places, site
from xce_nodeagent.discovery import scan
from xce_nodeagent.errors import BadConfig, BadRequest
from xce_nodeagent.host import trust
from xce_nodeagent.host.recorder import Recorder
from xce_nodeagent.model.anonymous import anonymous
from xce_nodeagent.model.config import Config
from xce_nodeagent.model.record import File, Folder, Link, Record
from xce_nodeagent.model.site import Site
from xce_nodeagent.providers import all_providers

_PATIENCE_S, _NEWS_S = 1.0, 0.5
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Progress:
    """Tells how much was read, where it takes more than a second; then twice in a second."""

    def __init__(
        self,
        say: Callable[[str], None] = tell,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._clock = say, clock
        self._next = clock() + _PATIENCE_S
        self.count = 0

    def __call__(self) -> None:
        """Count one more."""
        self.count += 1
        if self._clock() >= self._next:
            self._next = self._clock() + _NEWS_S
            self._say(f"recording: {self.count:,} files and folders looked at")


def record(folder: str, sysroot: str | None, *, anonymize: bool) -> dict[str, Any]:
    """Look at this machine, or a recorded one, and write what was read to a folder.

    Give what there is now: `folder`, `anonymized`, and how many `files`, `links` and `folders`.
    Raise BadRequest where the folder is not empty or cannot be written; then there may be a part.
    """
    opened = _opened(folder)
    try:
        recorder = Recorder(sysroot or "/", live=sysroot is None, seen=Progress())
        if sysroot is None:
            recorder.site = _site()
        scan(recorder, all_providers())
        if anonymize:
            # What a site calls its own, and tells its jobs, nobody can tell from what is private.
            recorder.record.pop("/declared.json", None)
        found: Record = {part: Folder() for part in ("/sys", "/proc", "/dev")} | recorder.record
        _write(anonymous(found) if anonymize else found, opened)
    except OSError as error:
        raise BadRequest(
            f"--record {folder}: {error.strerror}; what is there is not all of it: delete it"
        ) from error
    finally:
        os.close(opened)
    kinds = Counter(type(entry) for entry in found.values())
    return {
        "folder": folder,
        "anonymized": anonymize,
        "files": kinds[File],
        "links": kinds[Link],
        "folders": kinds[Folder],
    }


def _site() -> Site:
    """Say where instances are declared; a configuration that is wrong costs no record."""
    where = places(os.environ, None)
    try:
        return site(load(where), where, os.geteuid())
    except BadConfig:
        return site(Config(), where, os.geteuid())


def _opened(folder: str) -> int:
    """Open the folder; make it, for its owner alone, where it is not there."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise BadRequest(f"--record {folder!r}: {why}; name a folder that can be made") from error
    found = os.fstat(opened)
    if found.st_uid != os.geteuid() or found.st_mode & trust.SHARED:
        # They could put a link in the place of a folder, and have us write elsewhere.
        os.close(opened)
        raise BadRequest(f"--record {folder}: others can write to it; name a new folder")
    if os.listdir(opened):
        os.close(opened)
        raise BadRequest(f"--record {folder}: it is not empty; name a new folder, or an empty one")
    return opened


def _write(record: Record, folder: int) -> None:
    """Write below an open folder. Links come last, so nothing can be written through one."""
    order = (Folder, File, Link)
    for path, entry in sorted(record.items(), key=lambda one: (order.index(type(one[1])), one[0])):
        below = path.lstrip("/")
        if isinstance(entry, Folder):
            if below:
                os.mkdir(below, 0o755, dir_fd=folder)
        elif isinstance(entry, File):
            with os.fdopen(os.open(below, _FLAGS, 0o644, dir_fd=folder), "wb") as file:
                file.write(entry.text.encode("utf-8", "surrogateescape"))
        else:
            os.symlink(entry.target, below, dir_fd=folder)
