"""The sink that is there without configuration of any store: a file, replaced with each change.

Nothing on a job's path waits for it, and a sink that fails costs a line in the log: whoever
reports keeps the newest inventory and tries again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import msgspec

from xce_nodeagent.model.inventory import Inventory


def write(path: Path, inventory: Inventory) -> None:
    """Put the inventory's JSON in the place of the file; a reader sees the old or the new, whole.

    It is not synced: after a crash of the host the inventory is made anew anyway. Raises OSError.
    """
    data = msgspec.json.format(msgspec.json.encode(inventory), indent=1) + b"\n"
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
