"""The sink that needs no store: a file, replaced with each change.

It is the inventory's JSON as `xce-nodeagent inventory --json` has it, `held_by` filled in, with two
fields more: `bindings`, and `report` (which report it is).
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from xce_nodeagent.host import whole
from xce_nodeagent.model.instance import Holder
from xce_nodeagent.model.inventory import with_holders
from xce_nodeagent.upstream import packing
from xce_nodeagent.upstream.report import BINDING, Report
from xce_nodeagent.upstream.sink import Undelivered


class FileSink:
    """Writes to one file; a reader sees the old or the new, whole."""

    kind: ClassVar[str] = "file"
    patience = 5.0  # it is on this host, so there is no herd

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self.note = ""
        self._path = path

    def deliver(self, report: Report) -> int:
        """Put it in the place of the file. Raise Undelivered.

        It is not synced: after a crash of the host all of it is made anew anyway.
        """
        data = content(report)
        try:
            whole.replace(self._path, data, mode=0o644)
        except OSError as error:
            raise Undelivered(
                f"{self._path}: {error.strerror}",
                remedy=f"let the agent's user (uid {os.geteuid()}) write in that folder; under"
                " systemd name it in ReadWritePaths= of xce-nodeagent.service, too",
            ) from None
        return len(data)

    def tend(self) -> float:
        """Nothing is due by the clock."""
        return math.inf

    def close(self) -> None:
        """Leave the file; it says how it was."""


def content(report: Report) -> bytes:
    """Give the JSON of a report as the file has it."""
    holders: dict[str, list[Holder]] = {}
    for binding in report.bindings:
        for instance in binding.instances:
            holders.setdefault(instance, []).append(Holder(*binding.key))
    head = report.head
    told: dict[str, Any] = {
        name: getattr(head, name)
        for name in ("version", "agent", "number", "started", "time", "report", "program")
    }
    shown = msgspec.structs.asdict(with_holders(report.inventory, holders))
    bindings = [
        msgspec.Raw(packing.plain(data))
        for name, data in report.entries.items()
        if name.startswith(BINDING)
    ]
    shown |= {"bindings": bindings, "report": told}
    return msgspec.json.format(msgspec.json.encode(shown), indent=1) + b"\n"
